//! `hadal prune check`: whether a cut is what was promised.

use super::bar;
use crate::failure::Failure;
use crate::output::{grouped, print_json};
use crate::standard::stdout;
use clap::Args;
use hadal_cpu::pool::in_pool;
use hadal_study::prune::{Check, CutQuality, check};
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compare a cut model with its original
///
/// The cut is read back; its logits must be those of the original without the parts, to the bit. Then both are asked to
/// count and to copy, by choosing and by writing: choosing survives cuts that writing does not.
#[derive(Args)]
#[command(after_help = "\
Exit code 1 if the logits differ.

Examples:
  hadal prune check smaller --original MODEL --data other.txt
  hadal prune check smaller --original MODEL --json")]
pub(super) struct CheckCommand {
    /// What `hadal prune apply` wrote
    pruned: PathBuf,
    /// What it was made from
    #[arg(long, value_name = "MODEL")]
    original: PathBuf,
    /// What to measure perplexity with [default: what the plan was judged by, if it is still there]
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// Batches of about 2048 tokens [default: as the plan, or 512 sequences or 65,536 tokens]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

impl CheckCommand {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let bar = bar("steps");
        let mut progress = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let batches = self.batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX));
        let found = in_pool(|| {
            check(&self.pruned, &self.original, self.data.as_deref(), batches, &mut progress)
        });
        bar.finish_and_clear();
        let found = found?;
        match self.json {
            true => print_json(&json!(found))?,
            false => show_check(&found, &mut stdout())?,
        }
        Ok(if found.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn show_check(check: &Check, out: &mut impl Write) -> io::Result<()> {
    let logits = &check.logits;
    let verdict = match (check.passed, logits.different) {
        (true, 0) => "the same to the bit".to_owned(),
        (true, _) => {
            format!("the same to rounding (largest difference {:.2e})", logits.largest_difference)
        }
        (false, count) => format!(
            "NOT the same: {} differ, by up to {:.2e} where the largest is {:.2e}",
            grouped(count.into()),
            logits.largest_difference,
            logits.largest_logit
        ),
    };
    writeln!(out, "logits      {} compared, {verdict}", grouped(logits.compared.into()))?;
    match &check.quality {
        Some(quality) => show_quality(quality, out)?,
        None => writeln!(
            out,
            "perplexity  not measured: there is no plan whose data is still there; name a text with --data"
        )?,
    }
    for probe in &check.probes {
        writeln!(
            out,
            "{:<10}  {} questions: chosen {} -> {}, written {} -> {}",
            probe.kind,
            probe.questions,
            probe.likelier[0],
            probe.likelier[1],
            probe.written[0],
            probe.written[1]
        )?;
    }
    if check.probes.is_empty() {
        writeln!(out, "there is no tokenizer, so nothing was asked or written")?;
    }
    for sample in &check.samples {
        writeln!(
            out,
            "\n{}..\n  original  {:?}\n  cut       {:?}",
            sample.prompt, sample.original, sample.cut
        )?;
    }
    Ok(())
}

fn show_quality(quality: &CutQuality, out: &mut impl Write) -> io::Result<()> {
    let CutQuality { original, cut, tokens, data, of_plan } = quality;
    let data =
        data.as_ref().map_or("the run's held-out data".into(), |data| data.display().to_string());
    writeln!(
        out,
        "perplexity  {:.4} -> {:.4} ({:+.2} %), KL {:.5}, on {} tokens of {data}{}",
        original.perplexity,
        cut.perplexity,
        100.0 * (cut.perplexity / original.perplexity - 1.0),
        cut.kl,
        grouped((*tokens).into()),
        if *of_plan { ", by which the plan was judged" } else { "" },
    )
}
