//! `hadal serve`: live pages over a folder of runs.

use crate::failure::Failure;
use crate::output::spinner;
use crate::standard::{stderr, stdout};
use clap::Args;
use hadal_serve::{DEFAULT_HOST, DEFAULT_PORT, Options, Server};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Show runs in a browser while they train
///
/// A list with sparklines, live curves, comparisons, diagnosis and suites of all runs below RUNS_DIR.
/// Only this machine can look, unless --host and --allow-remote say otherwise; then a token is needed,
/// which is part of the printed address. Nothing can be written except notes, and those only with a token.
#[derive(Args)]
#[command(after_help = "\
RUNS_DIR/.hadal-index.sqlite only saves reading again what has not changed; it can be deleted at any time.
Ctrl-C ends the server; runs go on.

Examples:
  hadal serve
  hadal serve runs --open
  hadal serve suites/first --port 0
  HADAL_TOKEN=secret hadal serve runs
  hadal serve runs --host 0.0.0.0 --allow-remote")]
pub(crate) struct Serve {
    /// Folder of runs and suites
    #[arg(value_name = "RUNS_DIR", default_value = "runs")]
    runs: PathBuf,
    /// Port; 0 is any free one
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Name or address of this machine to listen on
    #[arg(long, default_value = DEFAULT_HOST)]
    host: String,
    /// Let other machines read these runs, with a token
    #[arg(long)]
    allow_remote: bool,
    /// Token that allows leaving notes with runs, and other machines to read [default: HADAL_TOKEN of the
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
        let options = Options {
            host: self.host,
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
