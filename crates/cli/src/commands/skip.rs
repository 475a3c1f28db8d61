//! `hadal skip`: thresholds for a trained model, and what they cost and save.

use crate::device::DeviceOption;
use crate::estimate::show_estimate;
use crate::failure::Failure;
use crate::output::{Table, grouped, print_json, scaled};
use crate::place::Place;
use crate::screen::Screen;
use crate::standard::{stderr, stdout, tell};
use crate::word::word;
use clap::{Args, Subcommand};
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_residual::{SkippedKeys, Thresholds};
use hadal_study::skip::{
    CalibrationReport, Keep, Options, Shares, SkipError, Sweep, answer, calibrate,
    check_changeable, check_free, estimate, sweep, write,
};
use hadal_study::{Samples, Subject, discard_measurements, measurements_of};
use hadal_train::{SkipGate, SkipPer};
use indicatif::ProgressBar;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Let tokens skip sub-layers of a trained model: find thresholds, see what they cost and save
///
/// NAG and MGR know before a sub-layer runs how much of it a token will take. Tokens that would take less than a
/// threshold skip it and save its work.
#[derive(Args)]
pub(crate) struct Skip {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Calibrate(Calibrate),
    Sweep(SweepRates),
}

impl Skip {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self.action {
            Action::Calibrate(command) => command.run(),
            Action::Sweep(command) => command.run(),
        }
    }
}

/// Options of both commands.
#[derive(Args)]
struct Common {
    /// Run folder (its finished model, or else its newest checkpoint) or model directory
    #[arg(value_name = "RUN|DIR")]
    subject: PathBuf,
    /// What to measure gates on: a text, or a directory of `hadal data prepare` [default: the run's held-out data]
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// Batches of about 2048 tokens [default: 512 sequences or 65,536 tokens]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Which sub-layers have a threshold in common
    #[arg(long, value_parser = word::<SkipPer>(&["model", "kind", "layer"]), default_value = "model")]
    per: SkipPer,
    /// What becomes of gates above the threshold: hard leaves them, continuous takes it off [default: the model's, or
    /// else hard]
    #[arg(long, value_parser = word::<SkipGate>(&["hard", "continuous"]))]
    gate: Option<SkipGate>,
    /// Keys and values of tokens that skip an attention [default: the model's, or else keep]
    #[arg(long, value_parser = word::<SkippedKeys>(&["keep", "drop"]))]
    kv: Option<SkippedKeys>,
    /// Say how many passes there would be, and about how long and how much memory they take, and stop
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    device: DeviceOption,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Common {
    /// What a sweep over these rates takes, or a calibration.
    fn tell_estimate(&self, rates: Option<&[f64]>) -> Result<ExitCode, Failure> {
        let options = self.options();
        let found = self.with(|subject, samples, _| estimate(subject, samples, rates, &options))?;
        match self.json {
            true => print_json(&found)?,
            false => show_estimate(&found, &mut stdout())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self) -> Options {
        Options {
            scope: self.per,
            shrink: self.gate.map(SkipGate::shrink),
            keys: self.kv,
            batches: self.batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX)),
        }
    }

    /// Opens the model and its data, and does `work` with them while a bar shows the progress.
    fn with<R: Send>(
        &self,
        work: impl FnOnce(
            &Subject,
            &Samples,
            &mut dyn FnMut(usize, usize, &str),
        ) -> Result<R, SkipError>
        + Send,
    ) -> Result<R, Failure> {
        let _ = start_pool(None);
        let device = self.device.open()?;
        Ok(in_pool(|| {
            let subject = Subject::open_on(&self.subject, &device)?;
            let samples = Samples::of(&subject, self.data.as_deref())?;
            let bar = bar();
            let mut progress = |done: usize, most: usize, note: &str| {
                bar.set_length(most as u64);
                bar.set_position(done as u64);
                bar.set_message(note.to_owned());
            };
            let result = work(&subject, &samples, &mut progress);
            bar.finish_and_clear();
            result
        })?)
    }
}

/// Find the thresholds with which a share of FLOPs is skipped
///
/// The share is of the skippable FLOPs: attention without keys and values (with --kv drop, all of it) and MLPs. Because
/// skipping early changes later gates, gates are measured again under the thresholds found, until the share is met.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal skip calibrate runs/nag --rate 0.25
  hadal skip calibrate runs/nag --rate 0.25 --per layer --out models/nag-25
  hadal skip calibrate models/mgr --rate 0.1 --data book.txt --write
  hadal generate models/nag-25 --prompt 'Once upon a time'")]
struct Calibrate {
    #[command(flatten)]
    common: Common,
    /// Share of the skippable FLOPs, at least 0 and less than 1
    #[arg(long, allow_negative_numbers = true)]
    rate: f64,
    /// Write the thresholds into the model's own config.json
    #[arg(long, conflicts_with = "out")]
    write: bool,
    /// Write a model directory that holds them
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Calibrate {
    fn run(self) -> Result<ExitCode, Failure> {
        if let Some(out) = &self.out {
            check_free(out)?;
            Place { path: out, option: "-o", example: "other" }.writable()?;
        }
        if self.common.dry_run {
            return self.common.tell_estimate(None);
        }
        let options = self.common.options();
        let found = self.common.with(|subject, samples, progress| {
            if self.write {
                check_changeable(subject)?;
            }
            calibrate(subject, samples, self.rate, &options, progress)
        })?;
        let written = match &self.out {
            Some(out) => {
                found.save(out)?;
                Some(out.clone())
            }
            None if self.write => Some(found.write()?),
            None => None,
        };
        if self.common.json {
            let mut report = serde_json::to_value(&found.report).map_err(Failure::failed)?;
            report["written"] = json!(written);
            print_json(&report)?;
            return Ok(ExitCode::SUCCESS);
        }
        show(&found.report, &mut stdout())?;
        match written {
            Some(place) => writeln!(stderr(), "the thresholds are in {}", place.display())?,
            None => writeln!(stderr(), "nothing is written; say --out DIR or --write")?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Measure loss, accuracy and speed at several skip rates
///
/// For each rate, thresholds are calibrated on one half of the data and measured on the other. Speed is that of reading
/// prompts, in turn with the same model when no token skips. With --out, rates that are done outlive a command that is
/// stopped (DIR.measured), and the same command goes on.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal skip sweep runs/nag
  hadal skip sweep runs/nag --rates 0,0.1,0.25,0.5 --per layer --out sweep
  hadal skip sweep models/mgr --data book.txt --json")]
struct SweepRates {
    #[command(flatten)]
    common: Common,
    /// Shares of the skippable FLOPs
    #[arg(
        long,
        value_name = "RATE,..",
        value_delimiter = ',',
        allow_negative_numbers = true,
        default_value = "0,0.05,0.1,0.15,0.2,0.25,0.3,0.4,0.5"
    )]
    rates: Vec<f64>,
    /// Write figures here, as JSON, CSV, SVG and PNG, and sweep.html with the answer and all of them
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write over what is in DIR
    #[arg(long, requires = "out")]
    force: bool,
}

impl SweepRates {
    fn run(self) -> Result<ExitCode, Failure> {
        if let Some(path) = &self.out {
            Place { path, option: "-o", example: "other" }.free(self.force)?;
        }
        if self.common.dry_run {
            return self.common.tell_estimate(Some(&self.rates));
        }
        let options = self.common.options();
        let kept = self.out.as_deref().map(measurements_of);
        if let Some(kept) = kept.as_deref().filter(|kept| kept.exists() && !self.force) {
            tell(&format!("going on from {}", kept.display()));
        }
        let keep = Keep { path: kept.as_deref(), force: self.force };
        let found = self.common.with(|subject, samples, progress| {
            sweep(subject, samples, &self.rates, &options, keep, progress)
        })?;
        if let Some(out) = &self.out {
            write(out, &found, &answer(&found, &self.common.subject, self.common.data.as_deref()))?;
            discard_measurements(out).map_err(Failure::failed)?;
        }
        if self.common.json {
            print_json(&found)?;
            return Ok(ExitCode::SUCCESS);
        }
        show_sweep(&found, &mut stdout())?;
        if let Some(out) = &self.out {
            writeln!(stderr(), "look at it: {}", out.join("sweep.html").display())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn bar() -> ProgressBar {
    crate::output::bar("{bar:24} {pos} of at most {len} passes, {elapsed}: {msg}")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn gate(shrink: f64, keys: SkippedKeys) -> String {
    let gate = match shrink {
        0.0 => "hard".to_owned(),
        1.0 => "continuous".to_owned(),
        share => format!("takes off {share} of the threshold"),
    };
    match keys {
        SkippedKeys::Keep => format!("{gate}, keys of those who skip are kept"),
        SkippedKeys::Drop => format!("{gate}, keys of those who skip are dropped"),
    }
}

/// Columns of a calibration; the last is a picture.
const SITES: [&str; 5] = ["block", "kind", ">threshold", ">skipped", ""];
/// Columns of a sweep, and those that stay longest on a narrow screen.
const POINTS: [&str; 12] = [
    ">rate",
    ">skipped",
    ">attention",
    ">MLP",
    ">FLOPs/token",
    ">loss",
    ">perplexity",
    ">accuracy",
    ">tokens/s",
    ">time",
    ">FLOPs",
    ">kept",
];
const FIRST: [&str; 8] =
    ["rate", "loss", "time", "skipped", "accuracy", "perplexity", "FLOPs/token", "tokens/s"];
const REST: &str = "--json for the rest";

fn show(report: &CalibrationReport, out: &mut impl Write) -> io::Result<()> {
    let CalibrationReport { name, sequences, tokens, before, after, rounds, .. } = report;
    let Shares { skippable_flops, all_flops, runs, .. } = report.skipped;
    let tokens = grouped(i128::from(*tokens));
    writeln!(out, "{name}: {sequences} sequences, {tokens} tokens, {rounds} rounds")?;
    let threshold = match &report.skip_threshold {
        Thresholds::One(threshold) => threshold.to_string(),
        Thresholds::PerKind { attention, mlp } => {
            format!("{attention} of attention, {mlp} of MLPs")
        }
        Thresholds::PerSite(_) => "of each sub-layer, see below".into(),
    };
    let was = report.before_skipped.skippable_flops;
    let earlier = if was > 0.0 { format!(" (skipping {})", percent(was)) } else { String::new() };
    let facts = [
        format!("  gate       {}", gate(report.skip_shrink, report.skip_kv)),
        format!("  threshold  {threshold}"),
        format!(
            "  skipped    {:.3} % of the FLOPs that can be ({} asked for), {} of all, {} of the runs",
            100.0 * skippable_flops,
            percent(report.rate),
            percent(all_flops),
            percent(runs),
        ),
        format!(
            "  loss       {:.4}{earlier} to {:.4}, perplexity {:.3} to {:.3}, accuracy {} to {}",
            before.loss,
            after.loss,
            before.perplexity,
            after.perplexity,
            percent(before.accuracy),
            percent(after.accuracy),
        ),
    ];
    let screen = Screen::stdout();
    facts.iter().try_for_each(|fact| writeln!(out, "{}", screen.wrapped(fact, 13)))?;
    writeln!(out)?;
    let mut table = Table::new(&SITES).dropping(&[], REST);
    for site in &report.sites {
        table.row([
            site.block.to_string(),
            site.kind.to_owned(),
            format!("{:.5}", site.threshold),
            percent(site.skipped),
            "#".repeat((20.0 * site.skipped).round() as usize),
        ]);
    }
    table.print(out)
}

fn show_sweep(sweep: &Sweep, out: &mut impl Write) -> io::Result<()> {
    let screen = Screen::stdout();
    let about = format!(
        "{}: calibrated on {} tokens, measured on {} others; {}",
        sweep.name,
        grouped(i128::from(sweep.calibration_tokens)),
        grouped(i128::from(sweep.tokens)),
        gate(sweep.skip_shrink, sweep.skip_kv)
    );
    writeln!(out, "{}", screen.wrapped(&about, 2))?;
    let mut table = Table::new(&POINTS).dropping(&FIRST, REST);
    for point in &sweep.points {
        table.row([
            percent(point.rate),
            percent(point.skipped.skippable_flops),
            percent(point.skipped.attention_runs),
            percent(point.skipped.mlp_runs),
            scaled(point.flops_per_token.round()),
            format!("{:.4}", point.quality.loss),
            format!("{:.3}", point.quality.perplexity),
            percent(point.quality.accuracy),
            grouped(point.tokens_per_second.round() as i128),
            format!("{:.3}x", point.prefill.time_ratio),
            format!("{:.3}x", point.prefill.flop_ratio),
            point.prefill.kept.map_or(String::new(), |kept| format!("{kept:.2}")),
        ]);
    }
    table.print(out)?;
    let note = "time and FLOPs of reading are by those when nobody skips; kept is (1 - time) / (1 - FLOPs)";
    writeln!(out, "{}", screen.wrapped(note, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_fits_the_screen_and_what_it_costs_stays() {
        let mut table = Table::new(&POINTS).dropping(&FIRST, REST);
        let row =
            "25.0 %,25.1 %,11.8 %,31.3 %,383.02 k,1.2424,3.464,48.5 %,147438,0.890x,0.800x,0.55";
        table.row(row.split(','));
        let shown = |width| table.text(&Screen { width: Some(width), ..Screen::FILE });
        for width in [40, 60, 80, 120] {
            let text = shown(width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert!(text.contains("loss") && text.contains("time"), "{text}");
            assert_eq!(text.contains("columns; --json"), width < 120, "{text}");
        }
        assert!(shown(60).contains("accuracy") && !shown(80).contains("kept"));
        for name in FIRST {
            assert!(POINTS.iter().any(|column| column.trim_start_matches('>') == name), "{name}");
        }
    }

    #[test]
    fn a_calibration_loses_its_picture_first() {
        let mut table = Table::new(&SITES).dropping(&[], REST);
        table.row(["11", "attention", "0.12345", "50.0 %", "##########"]);
        let shown = |width| table.text(&Screen { width: Some(width), ..Screen::FILE });
        assert!(shown(60).contains("##########"));
        assert!(!shown(42).contains('#') && shown(42).contains("50.0 %"), "{}", shown(42));
    }
}
