//! `hadal perplexity`: how well a model predicts a text.

use super::generate::tokenizer_of;
use crate::device::DeviceOption;
use crate::failure::Failure;
use crate::output::{bar, grouped, print_json, spinner};
use crate::standard::stdout;
use clap::Args;
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_model::{Part, Variant, load};
use hadal_study::perplexity::{Chunks, perplexity};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure how well a model predicts a text
///
/// Counted as llama.cpp's llama-perplexity does: the text is cut into chunks, each begins with the begin token if the
/// tokenizer adds one, and the second half of each is scored. The perplexity is comparable with llama.cpp's, what follows
/// +- is not: here it comes from how much chunks differ, there from how much single tokens do, as if these were
/// independent. One chunk has none. Perplexities of models with different tokenizers cannot be compared.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal perplexity model-Q4_1.gguf --data wiki.test.raw
  hadal perplexity DIR --data text.txt --context 2048 --chunks 20
  hadal perplexity DIR --data text.txt --without 17,18,attn:20 --json")]
pub(crate) struct PerplexityCommand {
    /// Model directory, or a GGUF file
    model: PathBuf,
    /// A text
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Tokens of a chunk [default: 512, or what the model can read]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Stop after this many chunks [default: the whole text]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    chunks: Option<u64>,
    /// `bytes`, or a tokenizer.json other than MODEL's
    #[arg(long, value_name = "bytes|FILE")]
    tokenizer: Option<PathBuf>,
    /// Leave these blocks, attentions and MLPs out, e.g. 17,18,attn:20
    #[arg(long, alias = "skip-blocks", value_name = "PART,..", value_delimiter = ',')]
    without: Vec<Part>,
    #[command(flatten)]
    device: DeviceOption,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// llama.cpp's default.
const CONTEXT: usize = 512;

impl PerplexityCommand {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        // If the pool cannot be made here, rayon makes one when it is first needed.
        let _ = start_pool(None);
        let device = self.device.open()?;
        let text = std::fs::read_to_string(&self.data).map_err(|error| {
            Failure::usage(format!("cannot read {} as text: {error}", self.data.display()))
        })?;
        let spinner = spinner(format!("loading {}", self.model.display()));
        let checkpoint = load(&self.model, &device).map_err(Failure::failed)?;
        spinner.finish_and_clear();
        let parts = Part::all_sites(&self.without);
        checkpoint.decoder.check_absent(&parts).map_err(Failure::usage)?;
        let variant = Variant::without(&parts);
        let tokenizer = tokenizer_of(&self.model, self.tokenizer.as_deref(), &checkpoint)?;
        let ids = tokenizer.encode(&text).map_err(Failure::failed)?;
        let chunks = Chunks {
            context: self
                .context
                .unwrap_or_else(|| CONTEXT.min(checkpoint.decoder.config().max_seq_len)),
            most: self.chunks.map(|chunks| usize::try_from(chunks).unwrap_or(usize::MAX)),
            begin: tokenizer.begin().filter(|begin| ids.first() == Some(begin)),
        };
        let bar = bar("{bar:24} {pos}/{len} chunks, {eta} left, perplexity so far {msg}");
        let found = in_pool(|| {
            perplexity(&checkpoint.decoder, variant, &ids, &chunks, &mut |so_far, all| {
                bar.set_length(all as u64);
                bar.set_position(so_far.chunks as u64);
                bar.set_message(format!("{:.4}", so_far.perplexity));
            })
        });
        bar.finish_and_clear();
        let found = found.map_err(Failure::usage)?;
        if self.json {
            print_json(&found)?;
        } else {
            let spread = found
                .loss_error
                .map_or(String::new(), |error| format!(" +- {:.4}", found.perplexity * error));
            writeln!(
                stdout(),
                "perplexity {:.4}{spread}, loss {:.5} nats, {} tokens scored in {} chunks of {}",
                found.perplexity,
                found.loss,
                grouped(found.scored as i128),
                found.chunks,
                grouped(found.context as i128),
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
