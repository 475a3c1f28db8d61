//! `hadal diagnose`: what the layers of a model really do.

use crate::failure::Failure;
use crate::output::print_json;
use crate::standard::{stderr, stdout};
use clap::Args;
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_model::Part;
use hadal_study::diagnose::{
    DiagnoseError, Diagnosis, Kind, MASSIVE, Options, SkipsSummary, Summary, diagnose, overlay,
    write,
};
use hadal_study::{Samples, Subject};
use indicatif::ProgressBar;
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Look into a model: what each block does, and which could go
///
/// RUN is a folder of `hadal train` (its finished model, or else its newest checkpoint, on its own held-out
/// data), a directory with a model of hadal or of the Hugging Face families that `hadal import` knows, or a GGUF file;
/// models need --data. Figures are written as JSON, CSV and SVG, by default to RUN/diagnosis.
#[derive(Args)]
#[command(after_help = "\
Diagnostics for --only:
  output       size of the stream behind each block, and its growth
  gradients    how strongly the loss depends on each block
  writes       relative size and angle of each sub-layer's output (dilution)
  distance     angular distance between the inputs of any two blocks
  removal      loss and perplexity without each block and sub-layer
  activations  massive activations
  gates        how wide gates are open
  pools        what readings are pooled from
  lanes        NAG's gains, rotations, norm and temperature
  sink         attention on the first token
  skips        who skips what: by depth, by kind, by position and by token

Examples:
  hadal diagnose runs/nano-mgr-0
  hadal diagnose tests/models/stories260K --data story.txt --out story-diagnosis
  hadal diagnose runs/a --only removal,distance --batches 4
  hadal diagnose runs/prenorm runs/mgr runs/nag --out compared
  hadal diagnose runs/a --without 3,attn:5 --out without
  hadal diagnose runs/a --json")]
pub(crate) struct Diagnose {
    /// Run folders, model directories or GGUF files
    #[arg(required = true, value_name = "RUN|DIR")]
    subjects: Vec<PathBuf>,
    /// What to measure with: a text, or a directory of `hadal data prepare`
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// Batches of about 2048 tokens [default: 512 sequences or 65,536 tokens]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Only these diagnostics
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these blocks, attentions and MLPs out, e.g. 17,18,attn:20
    #[arg(long, alias = "skip-blocks", value_name = "PART,..", value_delimiter = ',')]
    without: Vec<Part>,
    /// Where figures go [default: RUN/diagnosis]; several models are laid over each other there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

impl Diagnose {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let only: Result<Vec<Kind>, _> = self.only.iter().map(|name| name.parse()).collect();
        let options = Options {
            batches: self.batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX)),
            only: only?,
        };
        if self.subjects.len() > 1 && self.out.is_none() {
            return Err(Failure::usage(
                "several models are laid over each other; say where with --out DIR",
            ));
        }
        let _ = start_pool(None);
        let mut found = Vec::new();
        for path in &self.subjects {
            let diagnosis = in_pool(|| self.look(path, &options))?;
            if diagnosis.figures.is_empty() {
                return Err(Failure::usage(format!(
                    "{} has nothing to show for --only {}: its policy is {}",
                    path.display(),
                    self.only.join(","),
                    diagnosis.summary.residual
                )));
            }
            found.push(diagnosis);
        }
        self.name_apart(&mut found);
        let out = match &self.out {
            Some(out) => out.clone(),
            // A file cannot hold figures, so a model in one gets a folder beside it.
            None if self.subjects[0].is_file() => self.subjects[0].with_extension("diagnosis"),
            None => self.subjects[0].join("diagnosis"),
        };
        let summaries: Vec<Summary> = found.iter().map(|d| d.summary.clone()).collect();
        let figures = match found.len() {
            1 => found.remove(0).figures,
            _ => {
                overlay(&found.into_iter().map(|d| (d.summary.name, d.figures)).collect::<Vec<_>>())
            }
        };
        write(&out, &figures, &summaries)?;
        if self.json {
            let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
            print_json(&json!({ "out": out, "figures": names, "models": summaries }))?;
        } else {
            let mut stdout = stdout();
            for summary in &summaries {
                show(summary, &mut stdout)?;
            }
            writeln!(
                stderr(),
                "{} figures are in {} (JSON, CSV and SVG)",
                figures.len(),
                out.display()
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn look(&self, path: &Path, options: &Options) -> Result<Diagnosis, DiagnoseError> {
        let mut subject = Subject::open(path)?;
        subject.leave_out(&self.without)?;
        let samples = Samples::of(&subject, self.data.as_deref())?;
        let bar = bar(&subject.name);
        let mut progress = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let diagnosis = diagnose(&subject, &samples, options, &mut progress);
        bar.finish_and_clear();
        diagnosis
    }

    /// Runs of the same name in different folders are told apart by their paths.
    fn name_apart(&self, found: &mut [Diagnosis]) {
        let names: Vec<String> = found.iter().map(|d| d.summary.name.clone()).collect();
        for (i, path) in self.subjects.iter().enumerate() {
            if names.iter().filter(|name| **name == names[i]).count() > 1 {
                found[i].summary.name = path.display().to_string();
            }
        }
    }
}

fn bar(name: &str) -> ProgressBar {
    crate::output::bar("{msg} {bar:24} {pos}/{len} passes, {eta} left")
        .with_message(name.to_owned())
}

/// The most telling numbers, in sentences.
fn show(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    let Summary { name, residual, blocks, sequences, tokens, loss, perplexity, .. } = summary;
    let step = summary.step.map_or(String::new(), |step| format!(", step {step}"));
    writeln!(out, "{name}: {residual}, {blocks} blocks{step}")?;
    writeln!(
        out,
        "  loss          {loss:.4} (perplexity {perplexity:.3}) on {sequences} sequences, {tokens} tokens"
    )?;
    if let Some(growth) = summary.norm_growth {
        writeln!(out, "  norm growth   {growth:.2} times from the embedding to the head")?;
    }
    if let Some((first, last)) = summary.write_sizes {
        writeln!(
            out,
            "  writes        the first block changes the stream by {:.1} %, the last by {:.1} %",
            100.0 * first,
            100.0 * last
        )?;
    }
    if let Some(ratio) = summary.gradient_ratio {
        writeln!(
            out,
            "  gradients     {ratio:.2} times as large behind the first block as behind the last"
        )?;
    }
    show_removals(summary, out)?;
    if let Some(largest) = &summary.largest {
        let verdict = if largest.times_median >= MASSIVE { "massive" } else { "not massive" };
        writeln!(
            out,
            "  activations   largest {:.4}, {:.0} times the median: {verdict} (behind {}, position {}, channel {})",
            largest.value, largest.times_median, largest.behind, largest.position, largest.channel
        )?;
    }
    if let Some((block, share)) = summary.sink {
        writeln!(
            out,
            "  first token   gets {:.1} % of the attention in block {block}, the most of all",
            100.0 * share
        )?;
    }
    if let Some(widest) = summary.widest_gate {
        writeln!(out, "  gates         widest {widest:.3}")?;
    }
    if let Some(lanes) = &summary.lanes {
        let correlation = lanes
            .temperature_correlation
            .map_or(String::new(), |r| format!("; log norm and token loss correlate by {r:.2}"));
        writeln!(
            out,
            "  rotation      {:.2} degrees in a sub-layer on average, {:.1} % of gains above 0.25{correlation}",
            lanes.rotation,
            100.0 * lanes.large_gains
        )?;
    }
    if let Some(skips) = &summary.skips {
        show_skips(skips, out)?;
    }
    Ok(())
}

fn show_skips(skips: &SkipsSummary, out: &mut impl Write) -> io::Result<()> {
    let percent = |share: Option<f64>| {
        share.map_or("none".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    writeln!(
        out,
        "  skipped       {} of the FLOPs that can be; {} of attention, {} of MLPs",
        percent(Some(skips.flops)),
        percent(skips.attention),
        percent(skips.mlp)
    )?;
    for (which, tokens) in [("most", &skips.most), ("least", &skips.least)] {
        let named = tokens.iter().map(|t| format!("{} {}", t.name(), percent(Some(t.skipped))));
        let named: Vec<String> = named.collect();
        if !named.is_empty() {
            writeln!(out, "  skip {which:<9}{}", named.join(", "))?;
        }
    }
    Ok(())
}

fn show_removals(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    if let Some((block, change)) = summary.dearest() {
        writeln!(out, "  dearest       block {block}: without it the loss rises by {change:.4}")?;
        let useless: Vec<String> = summary.useless().iter().map(usize::to_string).collect();
        let which = match useless.len() {
            0 => "none: every block lowers the loss by more than 0.01".to_owned(),
            1 => format!("block {}", useless[0]),
            _ => format!("blocks {}", useless.join(", ")),
        };
        writeln!(out, "  nearly free   {which}")?;
    }
    let kept: Vec<String> = summary
        .removals
        .iter()
        .filter(|removal| removal.reason.is_some())
        .map(|removal| removal.block.to_string())
        .collect();
    if !kept.is_empty() {
        writeln!(out, "  not removable {} (they fill streams)", kept.join(", "))?;
    }
    Ok(())
}
