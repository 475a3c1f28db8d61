//! What prepared data holds: counted, shown, checked.

use super::{bar, counted};
use crate::failure::Failure;
use crate::output::{Table, grouped, print_json};
use crate::standard::stdout;
use clap::Args;
use hadal_data::{ShardSet, Stats, peek, stats};
use std::io::{self, Write};
use std::path::PathBuf;

const TOKENS: &str = "{wide_bar} {human_pos}/{human_len} tokens {per_sec}  ETA {eta}";

/// Count tokens and documents of prepared data
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal data stats data/books
  hadal data stats data/books --top 50
  hadal data stats data/books --json | jq .bytes_per_token")]
pub(super) struct StatsOf {
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
    pub(super) fn run(self) -> Result<(), Failure> {
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
pub(super) struct PeekAt {
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
    pub(super) fn run(self) -> Result<(), Failure> {
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
pub(super) struct Verify {
    /// Directory with shards
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
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
