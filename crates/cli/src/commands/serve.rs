//! `hadal serve`: live pages over a folder of runs.

use crate::failure::Failure;
use crate::output::spinner;
use crate::standard::{stderr, stdout};
use clap::Args;
use hadal_serve::{ALL_HOSTS, DEFAULT_HOST, DEFAULT_PORT, Options, Server};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Show runs in a browser while they train
///
/// Suites with their policies, live curves, comparisons, diagnosis of all runs below RUNS_DIR.
/// Only this machine can look. To watch from a phone or another computer in the same network, add --allow-remote
/// and open the address that is printed for it there: it ends in a token, without which nobody may read.
/// Nothing can be written except notes and tags, and those only with a token that you give.
#[derive(Args)]
#[command(after_help = "\
RUNS_DIR/.hadal-index.sqlite only saves reading again what has not changed; it can be deleted at any time.
Ctrl-C ends the server; runs go on.

Examples:
  hadal serve
  hadal serve runs --open
  hadal serve suites/first --port 0
  hadal serve --allow-remote                    also for a phone in the same network
  hadal serve --allow-remote --token WORD       the same, with a token that is easy to type
  HADAL_TOKEN=secret hadal serve runs           lets those who know it leave notes and tags
  ssh -L 7117:localhost:7117 MACHINE            from elsewhere: then open http://localhost:7117 there")]
pub(crate) struct Serve {
    /// Folder of runs and suites
    #[arg(value_name = "RUNS_DIR", default_value = "runs")]
    runs: PathBuf,
    /// Port; 0 is any free one
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Name or address of this machine to listen on [default: 127.0.0.1; with --allow-remote 0.0.0.0, that is all]
    #[arg(long)]
    host: Option<String>,
    /// Let other machines read these runs, with a token
    #[arg(long)]
    allow_remote: bool,
    /// Token that allows leaving notes and tags with runs, and other machines to read [default: HADAL_TOKEN of the
    /// environment; if it is not set, nobody leaves notes, and a token for reading is made up]
    #[arg(long)]
    token: Option<String>,
    /// Let whoever reaches this machine read without a token
    #[arg(long, requires = "allow_remote")]
    without_token: bool,
    /// Open a browser
    #[arg(long)]
    open: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        crate::memory::return_pages();
        let spinner = spinner(format!("reading {}", self.runs.display()));
        let host = if self.allow_remote { ALL_HOSTS } else { DEFAULT_HOST };
        let options = Options {
            host: self.host.unwrap_or_else(|| host.into()),
            port: self.port,
            allow_remote: self.allow_remote,
            token: self.token.or_else(|| std::env::var("HADAL_TOKEN").ok()),
            without_token: self.without_token,
            ..Options::new(self.runs)
        };
        let server = Server::bind(options)?;
        spinner.finish_and_clear();
        let (runs, root) = (server.runs(), server.root().display());
        writeln!(stderr(), "{runs} runs in {root}; Ctrl-C ends")?;
        if let Some(trouble) = server.index_trouble() {
            writeln!(stderr(), "works without an index: {trouble}")?;
        }
        writeln!(stdout(), "{}", server.url())?;
        match server.url_for_others() {
            Some(url) if self.without_token => {
                writeln!(
                    stderr(),
                    "phone or other computer in this network, without a token: {url}"
                )?;
            }
            Some(url) => {
                writeln!(stderr(), "phone or other computer in this network: {url}")?;
                writeln!(
                    stderr(),
                    "(the part behind token= is the key to reading; the connection is not encrypted)"
                )?;
            }
            None => writeln!(
                stderr(),
                "only this machine can look; --allow-remote lets a phone in this network look, too"
            )?,
        }
        if self.open {
            open(&server.url())?;
        }
        server.run()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Asks the system for its browser. If there is none, the printed address is enough.
fn open(url: &str) -> io::Result<()> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let started =
        Command::new(program).arg(url).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    match started {
        Ok(_) => Ok(()),
        Err(error) => writeln!(stderr(), "cannot open a browser with {program}: {error}"),
    }
}
