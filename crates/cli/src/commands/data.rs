//! `hadal data`: from text to token shards.

mod look;
mod tokenizer;

use self::look::{PeekAt, StatsOf, Verify};
use self::tokenizer::TrainTokenizer;
use crate::failure::Failure;
use crate::output::{bytes, grouped, print_json, scaled};
use crate::standard::stdout;
use clap::{Args, Subcommand};
use hadal_data::{Manifest, PrepareOptions, PrepareProgress, TokenizerChoice, prepare};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

/// Turn text into token shards, and look at them
#[derive(Args)]
pub(crate) struct Data {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Prepare(Prepare),
    Stats(StatsOf),
    Peek(PeekAt),
    Verify(Verify),
    TrainTokenizer(TrainTokenizer),
}

impl Data {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self.action {
            Action::Prepare(command) => command.run(),
            Action::Stats(command) => command.run(),
            Action::Peek(command) => command.run(),
            Action::Verify(command) => command.run(),
            Action::TrainTokenizer(command) => command.run(),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Tokenise text into shards that training reads
///
/// An input is a file (.txt or .jsonl, plain or as .gz or .zst, or .parquet), a directory with such files, or a Hugging
/// Face dataset as `owner/name[@revision][:folder]`. Documents of a .txt file are separated by <|endoftext|>. A
/// preparation that was killed continues when the same command is run again; the result is the same, byte for byte, and
/// does not depend on the number of threads.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal data prepare books.txt --out data/books
  hadal data prepare corpus/ extra.jsonl.zst --out data/corpus --tokenizer tokenizer.json
  hadal data prepare HuggingFaceFW/fineweb:sample/10BT --out data/fineweb --tokenizer gpt2/tokenizer.json")]
struct Prepare {
    /// Files, directories and datasets, read in this order
    #[arg(value_name = "INPUT", required = true)]
    inputs: Vec<PathBuf>,
    /// Directory to write
    #[arg(long, short, value_name = "DIR")]
    out: PathBuf,
    /// One token for each byte, a Hugging Face tokenizer.json, or a model that has one
    #[arg(long, value_name = "bytes|FILE|MODEL", default_value = "bytes")]
    tokenizer: TokenizerChoice,
    /// Most tokens in a shard
    #[arg(long, value_name = "N", default_value_t = PrepareOptions::SHARD_TOKENS)]
    shard_tokens: u64,
    /// JSON key or column that holds the text
    #[arg(long, value_name = "NAME", default_value = PrepareOptions::TEXT_KEY)]
    text_key: String,
    /// Threads that tokenise; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Stop with an error at more text than this: a small packed file may hold any amount
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
    /// Print the manifest as JSON
    #[arg(long)]
    json: bool,
}

impl Prepare {
    fn run(self) -> Result<(), Failure> {
        let options = PrepareOptions {
            inputs: self.inputs,
            out: self.out,
            tokenizer: self.tokenizer,
            shard_tokens: self.shard_tokens,
            text_key: self.text_key,
            threads: self.threads,
            max_bytes: self.max_bytes,
        };
        let mut bar = Bar::default();
        let manifest = prepare(&options, &mut |progress| {
            bar.show(progress);
            ControlFlow::Continue(())
        });
        bar.clear();
        let manifest = manifest?;
        if self.json {
            return print_json(&manifest);
        }
        summary(&manifest, &options)?;
        Ok(())
    }
}

fn summary(manifest: &Manifest, options: &PrepareOptions) -> io::Result<()> {
    let totals = manifest.totals;
    let out = options.out.display();
    let mut stdout = stdout();
    writeln!(
        stdout,
        "{out}: {} from {} ({} of text) in {}",
        counted(totals.tokens, "token"),
        counted(totals.documents, "document"),
        bytes(totals.bytes as f64),
        counted(manifest.shards.len() as u64, "shard")
    )?;
    writeln!(stdout, "look at it with `hadal data peek {out}` and `hadal data stats {out}`")
}

/// `1 shard`, `2,000 shards`.
fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number.into()), if number == 1 { "" } else { "s" })
}

/// A bar over the bytes of the sources, or over a file that is being fetched.
#[derive(Default)]
pub(super) struct Bar {
    bar: Option<ProgressBar>,
    downloading: bool,
}

impl Bar {
    pub(super) fn show(&mut self, progress: &PrepareProgress) {
        let (done, total, message) = match progress.download {
            Some(download) => (download.done, download.total, "downloading".to_owned()),
            None => {
                let tokens = scaled(progress.tokens as f64);
                let shards = counted(progress.shards as u64, "shard");
                let message = format!("{tokens} tokens, {shards}");
                (progress.read_bytes, progress.total_bytes, message)
            }
        };
        let downloading = progress.download.is_some();
        let fresh = self.bar.is_none() || self.downloading != downloading;
        self.downloading = downloading;
        let bar = self.bar.get_or_insert_with(|| bar(total, BYTES));
        bar.set_length(total);
        if fresh {
            // Earlier work must not count towards the rate.
            bar.set_position(done);
            bar.reset_eta();
        }
        bar.set_position(done);
        bar.set_message(message);
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

const BYTES: &str = "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec}  ETA {eta}  {msg}";

/// A bar on stderr; invisible off a terminal.
fn bar(total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
