//! `hadal convert`: another residual stream for a trained model.

use super::generate::tokenizer_of;
use crate::failure::Failure;
use crate::output::{bytes_bar, grouped, print_json, show_bytes, spinner};
use crate::place::Place;
use crate::standard::{stderr, stdout};
use clap::Args;
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_model::{
    Checkpoint, Decoder, Device, Restream, RestreamStage, Restreamed, SAME_LOGITS, Tokens,
    read_config, restream,
};
use hadal_residual::ResidualConfig;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Put another residual stream onto a trained prenorm model, which goes on computing the same
///
/// MODEL is what `hadal import` reads: a directory of hadal or Hugging Face, the folder of a finished run, or a .gguf
/// file. Its stream must be prenorm, or fold into it, as lns does. The result has the same logits and the policy's
/// parameters, most of which learn from the first step on. Both models are compared before anything is written: if logits
/// move, nothing is. Policies that are never prenorm are refused with the reason. docs/convert.md has the details.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal convert MODEL --residual hc --out runs/wide
  hadal convert SmolLM2-135M.gguf --residual hy4 --out smollm2-hy4 --data text.txt
  hadal convert MODEL --residual mhc:streams=2,readout=mean --dry-run
  hadal convert MODEL --residual gr --out gr --json
  hadal train --from runs/wide --set data.train=DIR --out runs/wider     # and on it goes")]
pub(crate) struct Convert {
    /// The trained model: a directory, a run or a .gguf file
    model: PathBuf,
    /// The stream that it gets, such as `hc:streams=2`, or the name of a released model's
    #[arg(long, value_name = "POLICY")]
    residual: ResidualConfig,
    /// New directory
    #[arg(short, long, value_name = "DIR", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// A text to compare logits on [default: 64 tokens from all over the vocabulary]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How far logits may move, relative to the largest
    #[arg(long, value_name = "SHARE", default_value_t = SAME_LOGITS, value_parser = tolerance)]
    tolerance: f32,
    /// Compare, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Rows of a text, and their length.
const ROWS: usize = 2;
const LENGTH: usize = 64;

fn tolerance(text: &str) -> Result<f32, String> {
    const MOST: f32 = 0.1;
    match text.parse() {
        Ok(value) if value > 0.0 && value <= MOST => Ok(value),
        _ => Err(format!("it must be a number above 0 and at most {MOST}, such as 1e-5")),
    }
}

impl Convert {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        // If the pool cannot be made here, rayon makes one when it is first needed.
        let _ = start_pool(None);
        let out = self.out.as_deref().filter(|_| !self.dry_run);
        if let Some(path) = out {
            Place { path, option: "--out", example: "other" }.writable()?;
        }
        let tokens = self.tokens()?;
        let request = Restream {
            source: &self.model,
            residual: &self.residual,
            tokens: tokens.as_ref(),
            tolerance: self.tolerance,
        };
        let spinner = spinner(format!("looking at {}", self.model.display()));
        let bar = bytes_bar("writing".to_owned());
        let mut progress = |stage| match stage {
            RestreamStage::Source => spinner.set_message("reading and running the model"),
            RestreamStage::Result => spinner.set_message("building and running the result"),
            RestreamStage::Writing(done, all) => {
                spinner.finish_and_clear();
                show_bytes(&bar, done, all);
            }
        };
        let done = in_pool(|| restream(&request, out, &mut progress));
        spinner.finish_and_clear();
        bar.finish_and_clear();
        self.show(&done?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The beginning of the text, in tokens of the model.
    fn tokens(&self) -> Result<Option<Tokens>, Failure> {
        let Some(data) = &self.data else { return Ok(None) };
        let text = std::fs::read_to_string(data).map_err(|error| {
            Failure::usage(format!("cannot read {} as text: {error}", data.display()))
        })?;
        // Its shape decides about the tokenizer, so no parameter needs to be read.
        let config = read_config(&self.model).map_err(Failure::failed)?;
        let decoder = Decoder::fresh(&config, 0, &Device::flex()).map_err(Failure::failed)?;
        let shape = Checkpoint { decoder, begin: None, ends: Vec::new() };
        let mut ids =
            tokenizer_of(&self.model, None, &shape)?.encode(&text).map_err(Failure::failed)?;
        let length = LENGTH.min(config.max_seq_len).min(ids.len() / ROWS);
        ids.truncate(ROWS * length);
        let short =
            || Failure::usage(format!("{} is too short; give a longer text", data.display()));
        Ok(Some(Tokens::rows(ids, ROWS).filter(|rows| rows.time() > 0).ok_or_else(short)?))
    }

    fn show(&self, done: &Restreamed) -> Result<(), Failure> {
        let Restreamed { from, config, parameters_before, parameters_after, .. } = done;
        let out = self.out.as_ref().filter(|_| !self.dry_run);
        if self.json {
            return print_json(&json!({ "source": self.model, "out": out, "result": done }));
        }
        let mut stdout = stdout();
        writeln!(stdout, "stream      {from} -> {}", config.residual)?;
        writeln!(
            stdout,
            "parameters  {} -> {} ({:+.2} %)",
            grouped((*parameters_before).into()),
            grouped((*parameters_after).into()),
            100.0 * (*parameters_after as f64 / *parameters_before as f64 - 1.0)
        )?;
        writeln!(
            stdout,
            "logits      moved by {:.2e} of their scale on {} tokens ({:.0e} is allowed)",
            done.difference, done.tokens, done.tolerance
        )?;
        match out {
            Some(out) => {
                let out = out.display();
                writeln!(stderr(), "the model is in {out}; next: hadal train --from {out}")?;
            }
            None => writeln!(stderr(), "nothing was written")?,
        }
        Ok(())
    }
}
