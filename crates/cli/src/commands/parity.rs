//! `hadal parity`: does a model compute what an independent implementation wrote down?

use crate::device::DeviceOption;
use crate::failure::Failure;
use crate::output::{Table, print_json, spinner};
use crate::standard::stdout;
use crate::word::{PRECISIONS, word};
use clap::Args;
use hadal_kernels::plainly;
use hadal_model::{Device, Precision};
use hadal_study::{
    BF16_TOLERANCE, Comparison, DEFAULT_TOLERANCE, ParityError, ParityReport, parity,
};
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compare a model with a trace of an independent implementation
///
/// DIR holds config.json, model.safetensors and trace.safetensors. Everything that the trace holds is
/// compared: logits, loss, what every sub-layer reads (h.L), the read-out, the share of skipped tokens
/// and the gradient of every parameter. Errors are relative to the largest magnitude of each tensor.
#[derive(Args)]
#[command(after_help = "\
Exit code: 0 if everything agrees, 1 if not, 2 if it could not be run.

Examples:
  hadal parity tests/golden/mgr-competitive
  hadal parity tests/golden/*
  hadal parity DIR --all --tolerance 1e-5
  hadal parity tests/golden/* --precision bf16x3
  hadal parity DIR --json | jq '.comparisons[] | select(.passed | not)'")]
pub(crate) struct Parity {
    /// Directories with a model and its trace; one is shown in detail, several in a line each
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Largest relative error [default: 2e-4, or 0.15 with --precision bf16]
    #[arg(long, value_parser = tolerance, allow_negative_numbers = true)]
    tolerance: Option<f64>,
    /// What matrix products round
    #[arg(long, default_value = "f32", value_parser = word::<Precision>(PRECISIONS))]
    precision: Precision,
    /// Show every tensor, not only the worst of each kind
    #[arg(long)]
    all: bool,
    /// Use only plain tensor operations, as on backends without fused ones
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    device: DeviceOption,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value),
        _ => Err("a tolerance is zero or a positive number, such as 2e-4".into()),
    }
}

impl Parity {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let device = self.device.open()?;
        let run = || match self.directories.as_slice() {
            [directory] => self.one(directory, &device),
            several => self.several(several, &device),
        };
        if self.plain { plainly(run) } else { run() }
    }

    fn compare(&self, directory: &Path, device: &Device) -> Result<ParityReport, ParityError> {
        let usual = match self.precision {
            Precision::F32 | Precision::Bf16x3 => DEFAULT_TOLERANCE,
            Precision::Bf16 => BF16_TOLERANCE,
        };
        parity(directory, device, self.precision, self.tolerance.unwrap_or(usual))
    }

    fn one(&self, directory: &Path, device: &Device) -> Result<ExitCode, Failure> {
        let spinner = spinner(format!("comparing {}", directory.display()));
        let report = self.compare(directory, device).map_err(Failure::usage)?;
        spinner.finish_and_clear();
        if self.json {
            print_json(&report)?;
        } else {
            print_report(&report, self.all)?;
        }
        Ok(ExitCode::from(u8::from(!report.passed)))
    }

    /// One line each. A directory that cannot be run is reported and the rest goes on; in the exit code it outweighs
    /// differences.
    fn several(&self, directories: &[PathBuf], device: &Device) -> Result<ExitCode, Failure> {
        let mut code = 0;
        let mut reports = Vec::new();
        let width = directories.iter().map(|d| d.display().to_string().len()).max().unwrap_or(0);
        for directory in directories {
            let name = directory.display().to_string();
            match self.compare(directory, device) {
                Err(error) => {
                    reports.push(json!({ "directory": name, "error": error.to_string() }));
                    Failure::usage(error).report();
                    code = 2;
                }
                Ok(report) => {
                    code = code.max(u8::from(!report.passed));
                    if !self.json {
                        writeln!(stdout(), "{name:<width$}  {}", summary(&report))?;
                    }
                    reports.push(json!({ "directory": name, "report": report }));
                }
            }
        }
        if self.json {
            print_json(&reports)?;
        }
        Ok(ExitCode::from(code))
    }
}

fn summary(report: &ParityReport) -> String {
    let total = report.comparisons.len();
    let wrong = report.comparisons.iter().filter(|c| !c.passed).count();
    let worst = worst(&report.comparisons);
    let verdict = if wrong == 0 { "ok".into() } else { format!("{wrong} DIFFER") };
    format!("{verdict}  {total} tensors, largest error {:.1e} in {}", worst.error, worst.name)
}

fn print_report(report: &ParityReport, all: bool) -> io::Result<()> {
    let mut table = Table::new(&["what", ">tensors", ">error", "at", ">expected", ">actual", ""]);
    for group in groups(&report.comparisons, all) {
        let worst = worst(group);
        table.row([
            kind(&worst.name).to_owned(),
            group.len().to_string(),
            format!("{:.1e}", worst.error),
            format!("{} {:?}", worst.name, worst.index),
            format!("{:.6e}", worst.expected),
            format!("{:.6e}", worst.actual),
            if group.iter().all(|c| c.passed) { "ok".into() } else { "DIFFERS".to_owned() },
        ]);
    }
    let mut out = stdout();
    writeln!(out, "{}", report.residual)?;
    table.print(&mut out)?;
    let (total, tolerance) = (report.comparisons.len(), report.tolerance);
    match report.comparisons.iter().filter(|c| !c.passed).count() {
        0 => writeln!(out, "all {total} tensors agree within {tolerance:e}"),
        wrong => writeln!(out, "{wrong} of {total} tensors differ by more than {tolerance:e}"),
    }
}

/// Neighbours of one kind, or each tensor on its own.
fn groups(comparisons: &[Comparison], all: bool) -> impl Iterator<Item = &[Comparison]> {
    comparisons.chunk_by(move |a, b| !all && kind(&a.name) == kind(&b.name))
}

fn kind(name: &str) -> &str {
    match name.split_once('.') {
        Some(("h", _)) => "readings",
        Some(("grad", _)) => "gradients",
        _ => name,
    }
}

fn worst(group: &[Comparison]) -> &Comparison {
    let mut worst = &group[0];
    for comparison in group {
        if comparison.error > worst.error {
            worst = comparison;
        }
    }
    worst
}
