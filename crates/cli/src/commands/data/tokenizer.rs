//! `hadal data train-tokenizer`.

use super::{BYTES, bar, counted};
use crate::failure::Failure;
use crate::output::{bytes, print_json, spinner};
use crate::place::Place;
use crate::standard::stdout;
use clap::Args;
use hadal_data::{PrepareOptions, TrainTokenizerOptions, train_tokenizer};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Make a tokenizer from text
///
/// Byte-level BPE as in GPT-2: it can spell any text, and <|endoftext|> ends a document. Inputs are those
/// of `hadal data prepare`. The same text and size give the same file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal data train-tokenizer books.txt --vocab-size 4096 --out tokenizer.json
  hadal data prepare books.txt --tokenizer tokenizer.json --out data/books")]
pub(super) struct TrainTokenizer {
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
    pub(super) fn run(self) -> Result<(), Failure> {
        let options = TrainTokenizerOptions {
            inputs: self.inputs,
            text_key: self.text_key,
            vocab_size: self.vocab_size,
            max_bytes: self.max_bytes,
            out: self.out,
            threads: self.threads,
        };
        let place = Place { path: &options.out, option: "--out", example: "other.json" };
        place.never_over()?;
        place.make_folders()?;
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
            "{}: {} from {} ({} of text{})",
            trained.path.display(),
            counted(trained.vocab_size as u64, "token"),
            counted(trained.documents, "document"),
            bytes(trained.bytes as f64),
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
