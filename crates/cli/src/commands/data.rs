//! `hadal data`: from text to token shards, and a look at them.

use crate::failure::Failure;
use crate::output::{Table, grouped, print_json, scaled, spinner};
use crate::standard::stdout;
use clap::{Args, Subcommand};
use hadal_data::{
    Manifest, PrepareOptions, PrepareProgress, ShardSet, Stats, TokenizerChoice,
    TrainTokenizerOptions, peek, prepare, stats, train_tokenizer,
};
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
        "{out}: {} from {} ({}B of text) in {}",
        counted(totals.tokens, "token"),
        counted(totals.documents, "document"),
        scaled(totals.bytes as f64),
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
const TOKENS: &str = "{wide_bar} {human_pos}/{human_len} tokens {per_sec}  ETA {eta}";

/// A bar on stderr; invisible off a terminal.
fn bar(total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Count tokens and documents of prepared data
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal data stats data/books
  hadal data stats data/books --top 50
  hadal data stats data/books --json | jq .bytes_per_token")]
struct StatsOf {
    /// Directory with shards
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// How many of the most frequent tokens to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl StatsOf {
    fn run(self) -> Result<(), Failure> {
        let set = ShardSet::open(&self.directory)?;
        let bar = bar(set.len(), TOKENS);
        let counted = stats(&set, self.top, &mut |tokens| bar.inc(tokens));
        bar.finish_and_clear();
        let counted = counted?;
        if self.json {
            return print_json(&counted);
        }
        print_stats(&counted, &set.manifest().tokenizer.to_string())?;
        Ok(())
    }
}

fn print_stats(stats: &Stats, tokenizer: &str) -> io::Result<()> {
    let mut out = stdout();
    let mut table = Table::new(&["what", ">count"]);
    for (name, count) in [
        ("tokens", grouped(stats.tokens.into())),
        ("documents", grouped(stats.documents.into())),
        ("bytes of text", grouped(stats.bytes.into())),
        ("bytes per token", format!("{:.3}", stats.bytes_per_token)),
        ("shards", grouped(stats.shards as i128)),
        ("vocabulary", grouped(stats.vocab_size as i128)),
        ("tokens of it in use", grouped(stats.used_tokens as i128)),
    ] {
        table.row([name, &count]);
    }
    writeln!(out, "tokenizer: {tokenizer}")?;
    table.print(&mut out)?;

    let lengths = stats.document_lengths;
    writeln!(out)?;
    let mut table = Table::new(&["tokens per document", ">length"]);
    table.row(["mean".to_owned(), format!("{:.1}", lengths.mean)]);
    for (name, length) in [
        ("shortest", lengths.min),
        ("10 %", lengths.p10),
        ("25 %", lengths.p25),
        ("50 %", lengths.p50),
        ("75 %", lengths.p75),
        ("90 %", lengths.p90),
        ("99 %", lengths.p99),
        ("longest", lengths.max),
    ] {
        table.row([name.to_owned(), grouped(length.into())]);
    }
    table.print(&mut out)?;

    if !stats.most_frequent.is_empty() {
        writeln!(out)?;
        let mut table = Table::new(&[">token", "text", ">count", ">share"]);
        for token in &stats.most_frequent {
            table.row([
                token.id.to_string(),
                format!("{:?}", token.text),
                grouped(token.count.into()),
                format!("{:.2} %", 100.0 * token.share),
            ]);
        }
        table.print(&mut out)?;
    }
    Ok(())
}

/// Show prepared data as text
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal data peek data/books
  hadal data peek data/books --at 1000000 --tokens 50 --ids")]
struct PeekAt {
    /// Directory with shards
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// First token to show
    #[arg(long, value_name = "TOKEN", default_value_t = 0)]
    at: u64,
    /// How many tokens to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 256)]
    tokens: usize,
    /// Show the numbers of the tokens as well
    #[arg(long)]
    ids: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl PeekAt {
    fn run(self) -> Result<(), Failure> {
        let set = ShardSet::open(&self.directory)?;
        let window = peek(&set, self.at, self.tokens)?;
        if self.json {
            return print_json(&window);
        }
        let mut out = stdout();
        if self.ids {
            let ids: Vec<_> = window.tokens.iter().map(u32::to_string).collect();
            writeln!(out, "{}", ids.join(" "))?;
        }
        writeln!(out, "{}", window.text)?;
        Ok(())
    }
}

/// Check every byte of prepared data against its manifest
#[derive(Args)]
#[command(after_help = "\
Exit code: 0 if everything is whole, 1 if something is damaged, 2 if there is no prepared data.

Examples:
  hadal data verify data/books")]
struct Verify {
    /// Directory with shards
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Verify {
    fn run(self) -> Result<(), Failure> {
        let set = ShardSet::open(&self.directory)?;
        let bar = bar(set.len(), TOKENS);
        let verdict = set.verify(&mut |tokens| bar.inc(tokens));
        bar.finish_and_clear();
        verdict?;
        writeln!(
            stdout(),
            "{}: {} of {} are as they were written, fingerprint {}",
            self.directory.display(),
            counted(set.shards().len() as u64, "shard"),
            counted(set.len(), "token"),
            set.fingerprint()
        )?;
        Ok(())
    }
}

/// Make a tokenizer from text
///
/// Byte-level BPE as in GPT-2: it can spell any text, and <|endoftext|> ends a document. Inputs are those
/// of `hadal data prepare`. The same text and size give the same file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal data train-tokenizer books.txt --vocab-size 4096 --out tokenizer.json
  hadal data prepare books.txt --tokenizer tokenizer.json --out data/books")]
struct TrainTokenizer {
    /// Files, directories and datasets
    #[arg(value_name = "INPUT", required = true)]
    inputs: Vec<PathBuf>,
    /// Size of the vocabulary, with 256 bytes and <|endoftext|>
    #[arg(long, value_name = "N")]
    vocab_size: usize,
    /// File to write
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// JSON key or column that holds the text
    #[arg(long, value_name = "NAME", default_value = PrepareOptions::TEXT_KEY)]
    text_key: String,
    /// Learn from about this many bytes of text, the first ones
    #[arg(long, value_name = "N", default_value_t = TrainTokenizerOptions::MAX_BYTES)]
    max_bytes: u64,
    /// Threads; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TrainTokenizer {
    fn run(self) -> Result<(), Failure> {
        let options = TrainTokenizerOptions {
            inputs: self.inputs,
            text_key: self.text_key,
            vocab_size: self.vocab_size,
            max_bytes: self.max_bytes,
            out: self.out,
            threads: self.threads,
        };
        let merging = spinner("learning which bytes go together".into());
        let bar = bar(0, BYTES);
        let trained = train_tokenizer(&options, &mut |progress| {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.read_bytes);
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        merging.finish_and_clear();
        let trained = trained?;
        if self.json {
            return print_json(&trained);
        }
        let mut out = stdout();
        writeln!(
            out,
            "{}: {} from {} ({}B of text{})",
            trained.path.display(),
            counted(trained.vocab_size as u64, "token"),
            counted(trained.documents, "document"),
            scaled(trained.bytes as f64),
            if trained.cut_short { ", where --max-bytes ended it" } else { "" }
        )?;
        if trained.vocab_size < options.vocab_size {
            writeln!(
                out,
                "the text has no more pairs to merge; a longer one would give more tokens"
            )?;
        }
        Ok(())
    }
}
