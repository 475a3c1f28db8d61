//! `hadal runs`: the runs of a folder as a table, and one run's metrics as CSV.

use crate::failure::Failure;
use crate::output::{Table, print_json, spinner};
use crate::place::Place;
use crate::standard::{stderr, stdout};
use clap::Args;
use hadal_files::WholeFile;
use hadal_serve::{Listed, list, write_csv};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// List runs, newest first, or write a run's metrics as CSV
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal runs
  hadal runs runs/compare --json | jq '.[0].held_out_loss'
  hadal runs --csv runs/nano-mgr-0 -o nano-mgr-0.csv
  hadal runs --csv runs/nano-mgr-0 | head")]
pub(crate) struct Runs {
    /// Folder of runs and suites
    #[arg(value_name = "RUNS_DIR", default_value = "runs", conflicts_with = "csv")]
    runs: PathBuf,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Write this run's metrics as CSV, a line for each step
    #[arg(long, value_name = "RUN")]
    csv: Option<PathBuf>,
    /// The file for --csv [default: standard output]
    #[arg(short, long, value_name = "FILE", requires = "csv")]
    output: Option<PathBuf>,
    /// Write over FILE
    #[arg(long, requires = "output")]
    force: bool,
}

impl Runs {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        if let Some(run) = self.csv {
            if let Some(path) = self.output.as_deref() {
                Place { path, option: "-o", example: "other.csv" }.free(self.force)?;
            }
            export(&run, self.output.as_deref())?;
            return Ok(ExitCode::SUCCESS);
        }
        if !self.runs.is_dir() {
            return Err(Failure::usage(format!(
                "{} is not a folder: name the one that holds runs, such as runs",
                self.runs.display()
            )));
        }
        let spinner = spinner(format!("reading {}", self.runs.display()));
        let runs = list(&self.runs);
        spinner.finish_and_clear();
        if self.json {
            print_json(&runs)?;
        } else if runs.is_empty() {
            writeln!(stderr(), "no run in {}: hadal train makes one", self.runs.display())?;
        } else {
            table(&runs)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(runs: &[Listed]) -> io::Result<()> {
    let mut table =
        Table::new(&["run", "state", "policy", ">step", ">train loss", ">held-out", ">when"]);
    let loss = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.4}"));
    for run in runs {
        let step = match run.steps.filter(|_| run.state != "done") {
            Some(steps) => format!("{}/{steps}", run.step),
            None => run.step.to_string(),
        };
        // The folder between a suite and its runs tells nothing.
        let name = run.run.replace("/runs/", "/");
        let when = run
            .seconds_left
            .map_or_else(|| ago(run.written), |left| format!("{} left", time(left)));
        let state = run
            .claimed_by
            .as_ref()
            .map_or_else(|| run.state.to_owned(), |process| format!("{} ({process})", run.state));
        let losses = [loss(run.train_loss), loss(run.held_out_loss)];
        let [train, held] = losses;
        table.row([name, state, run.policy.clone(), step, train, held, when]);
    }
    table.print(&mut stdout())
}

/// A time in one word and a unit.
fn time(seconds: f64) -> String {
    match seconds.clamp(0.0, 1e9) as u64 {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds @ 100..5400 => format!("{} min", seconds.div_ceil(60)),
        seconds @ 5400..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

fn ago(written: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_secs(written);
    match SystemTime::now().duration_since(then) {
        _ if written == 0 => "-".into(),
        Ok(past) if past.as_secs() >= 60 => format!("{} ago", time(past.as_secs_f64())),
        _ => "now".into(),
    }
}

fn export(run: &Path, output: Option<&Path>) -> Result<(), Failure> {
    if !run.join("metrics.jsonl").is_file() {
        let remedy = "name a folder that hadal train wrote; hadal runs lists them";
        return Err(Failure::usage(format!("{} holds no metrics.jsonl: {remedy}", run.display())));
    }
    let read = |error: io::Error| Failure::failed(format!("{}: {error}", run.display()));
    let Some(output) = output else {
        write_csv(run, &mut stdout()).map_err(read)?;
        return Ok(());
    };
    let mut file = Whole(WholeFile::create(output).map_err(Failure::failed)?);
    let lines = write_csv(run, &mut file).map_err(read)?;
    file.0.finish().map_err(Failure::failed)?;
    writeln!(stderr(), "{}: {lines} lines", output.display())?;
    Ok(())
}

/// A file that is whole or absent, to write to.
struct Whole(WholeFile);

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.put(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
