//! `hadal compare`: which residual stream is better, and is that luck?

mod answer;
mod emit;
mod planned;
mod view;

use crate::device::DeviceOption;
use crate::failure::Failure;
use crate::output::print_json;
use crate::screen::Screen;
use crate::standard::{stdout, tell};
use crate::word::whole;
use clap::Args;
use hadal_compare::{
    Budget, Compared, Lanes, Missing, Pace, Results, RunResult, RunState, Start, Suite,
    SuiteFolder, Tuning, Work, compare,
};
use hadal_cpu::machine::cores;
use hadal_report::page::{Request, write};
use hadal_report::suite::SuiteTable;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use view::View;

/// Compare residual policies under one budget, seed by seed
///
/// A suite is the settings of a run, `seeds`, and a list of `[[variant]]` that differ only in their residual stream.
/// All variants see the same tokens in the same order and start from the same draws. Each run is an ordinary run folder
/// DIR/runs/NAME, made by a process of its own. A suite that was stopped or killed continues when it is started again,
/// and gives the same table. Started several times, here or on machines that share DIR, the processes divide the runs
/// among themselves (docs/cluster.md). With `[tune]` every variant is first tuned over a grid of learning rates or other keys, on
/// seeds that the table does not use, and enters the table at its own best.
#[derive(Args)]
#[command(after_help = "\
With no arguments it compares prenorm, attnres, hc, mgr and nag on a book that ships with it: about
seven minutes on two cores. Suites: docs/compare.md.

Examples:
  hadal compare
  hadal compare configs/suites/depth-sweep.toml --out runs/depth --jobs 2
  hadal compare configs/suites/iso-flop.toml --dry-run
  hadal compare my-suite.toml --set train.steps=1000 --json > results.json
  hadal compare my-suite.toml --out /shared/mine              # the same on each of several machines
  hadal compare my-suite.toml --out /shared/mine --table      # what is done so far
  hadal compare my-suite.toml --out /shared/mine --emit slurm --tasks 8 > mine.sbatch")]
pub(crate) struct Compare {
    /// What to compare [default: a built-in suite]
    #[arg(value_name = "SUITE.toml")]
    suite: Option<PathBuf>,
    /// Folder of the suite [default: runs/compare, or runs/SUITE]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Runs at a time [default: as many as the cores hold]
    #[arg(long, value_name = "N", value_parser = whole::<1, 1024>)]
    jobs: Option<usize>,
    /// Change one setting of all runs, e.g. train.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    device: DeviceOption,
    /// Print the runs with their steps, parameters and FLOPs, guess time and memory, and stop
    #[arg(long)]
    dry_run: bool,
    /// Print the table of what is done, and make and write nothing
    #[arg(long, conflicts_with = "dry_run")]
    table: bool,
    /// End when every run that is left is with another process, instead of waiting for the whole table
    #[arg(long, conflicts_with_all = ["dry_run", "table"])]
    no_wait: bool,
    /// Take over the runs of a process on another machine after so long without a sign of life
    #[arg(long, value_name = "SECONDS", value_parser = whole::<1, 86400>)]
    lost_after: Option<usize>,
    #[command(flatten)]
    emit: emit::Options,
    /// Show every column, in several tables where one is too wide
    #[arg(long, conflicts_with = "json")]
    all_columns: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

impl Compare {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut suite = match &self.suite {
            Some(path) => Suite::read(path)?,
            None => Suite::parse(Suite::BUILT_IN, "the built-in suite")?,
        };
        for setting in &self.settings() {
            suite = suite.with_setting(setting)?;
        }
        let lanes = Lanes { jobs: self.jobs(&suite), threads: suite.threads };
        if self.dry_run {
            return planned::show(&suite, lanes, self.json);
        }
        // Whatever makes no sense is reported before there is a folder.
        if !matches!(suite.budget, Budget::Minutes(_)) {
            suite.plan(&Pace::new())?;
            suite.tuning(&Pace::new())?;
        }
        // Each run would say it, in its own log.
        if !self.table && self.emit.kind.is_none() {
            self.device.open()?;
        }
        let out = self.out();
        if let Some(kind) = self.emit.kind {
            let words = emit::Words {
                suite: self.suite.as_deref(),
                out: &out,
                more: self.words(),
                jobs: self.jobs,
                no_wait: self.no_wait,
            };
            stdout().send(&self.emit.script(kind, &words, &suite)?);
            return Ok(ExitCode::SUCCESS);
        }
        let lost_after =
            self.lost_after.map_or(SuiteFolder::LOST_AFTER, |s| Duration::from_secs(s as u64));
        let folder = match self.table {
            true => SuiteFolder::look(&out, &suite, lost_after)?,
            false => SuiteFolder::share(&out, &suite, lost_after)?,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let signal = hadal_train::stop_on_signals(&stop)
            .map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
        if !self.table {
            tell(&opening(&suite, lanes, &out));
        }
        let mut view = if self.table { View::quiet() } else { View::new() };
        let command = |start: Start<'_>| train(&program, start);
        let work = Work { lanes, command: &command, waits: !self.no_wait, stop: &stop };
        let done = compare(&suite, &folder, &work, &mut view);
        view.clear();
        let done = done?;
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            tell("stopped; everything is saved");
            tell(&format!("go on with: {}", self.again()));
            return Ok(ExitCode::from(signal.exit_code()));
        }
        let (results, table) = match done {
            Compared::Table(done) => *done,
            Compared::Missing(runs) => return self.missing(&runs),
            Compared::Stopped => return Err(Failure::failed("the suite has no plan")),
        };
        match self.json {
            true => print_json(&results)?,
            false => {
                let text =
                    answer::text(&table, &results.ranking(), &Screen::stdout(), self.all_columns);
                stdout().send(&text);
            }
        }
        if self.table {
            return Ok(ExitCode::SUCCESS);
        }
        let report = Request {
            inputs: vec![out.clone()],
            output: out.join("report.html"),
            ..Request::default()
        };
        let written = folder.write_alone(&work, &mut view, |_| {
            write(&report, |_| ()).map(|written| written.report).map_err(Failure::failed)
        });
        view.clear();
        let report = written?.unwrap_or(report.output);
        tell(&answer::closing(&out, &report, &results));
        verdict_of(&results, &out)
    }

    /// There is no table, and nothing is wrong.
    fn missing(&self, runs: &[Missing]) -> Result<ExitCode, Failure> {
        const ENOUGH: usize = 8;
        let what = match self.table {
            true => "no table yet; it needs",
            false => "nothing is left to begin; other processes have",
        };
        let mut named: Vec<String> = runs
            .iter()
            .take(ENOUGH)
            .map(|Missing { name, by }| match by {
                Some(by) => format!("{name} ({by})"),
                None => name.clone(),
            })
            .collect();
        if runs.len() > ENOUGH {
            named.push(format!("and {} more", runs.len() - ENOUGH));
        }
        tell(&format!("{what} {}", named.join(", ")));
        if !self.table {
            tell(&format!(
                "the last of them writes the table; look at it: {} --table",
                self.again()
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What is changed of all runs: each is told its device by its settings, so that they say where it ran.
    fn settings(&self) -> Vec<String> {
        let device = self.device.given().map(|name| format!("train.device={name}"));
        device.into_iter().chain(self.settings.iter().cloned()).collect()
    }

    fn out(&self) -> PathBuf {
        let stem = self.suite.as_deref().and_then(Path::file_stem);
        let name =
            stem.map_or_else(|| "compare".into(), |stem| stem.to_string_lossy().into_owned());
        self.out.clone().unwrap_or_else(|| Path::new("runs").join(name))
    }

    /// Cores that a suite's threads leave idle are of no use to it, and more jobs than cores would only make its speeds
    /// meaningless.
    fn jobs(&self, suite: &Suite) -> usize {
        self.jobs.unwrap_or((cores() / suite.threads).max(1))
    }

    /// The same command.
    fn again(&self) -> String {
        let mut words = vec!["hadal compare".to_owned()];
        words.extend(self.suite.as_deref().map(|path| path.display().to_string()));
        words.extend(self.out.as_deref().map(|path| format!("--out {}", path.display())));
        words.extend(self.jobs.map(|jobs| format!("--jobs {jobs}")));
        words.extend(self.device.words());
        words.extend(self.settings.iter().map(|setting| format!("--set {setting}")));
        words.extend(self.no_wait.then(|| "--no-wait".to_owned()));
        words.extend(self.lost_after.map(|seconds| format!("--lost-after {seconds}")));
        words.join(" ")
    }

    /// What every process of a script has to be told as well.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for setting in &self.settings() {
            words.extend(["--set".to_owned(), setting.clone()]);
        }
        let lost = self.lost_after.iter();
        words.extend(lost.flat_map(|after| ["--lost-after".to_owned(), after.to_string()]));
        words
    }
}

/// A process that makes a run and ends with this one.
fn train(program: &Path, start: Start<'_>) -> Command {
    let mut command = Command::new(program);
    command.args(["train", "--leash"]);
    match start {
        Start::New { settings, run } => command.arg(settings).arg("--out").arg(run),
        Start::Resume { run } => command.arg("--resume").arg(run),
    };
    command
}

fn opening(suite: &Suite, lanes: Lanes, out: &Path) -> String {
    let names: Vec<&str> = suite.variants.iter().map(|variant| variant.name.as_str()).collect();
    let depths = match suite.depths.as_slice() {
        [] => String::new(),
        depths => {
            let depths: Vec<String> = depths.iter().map(ToString::to_string).collect();
            format!(" at {} blocks", depths.join(", "))
        }
    };
    let first = suite.rule.as_ref().and_then(|rule| rule.looks.first());
    let seeds = match (first, suite.seeds.len()) {
        (Some(first), most) => format!("{first} to {most} seeds (until all is decided)"),
        (None, 1) => "1 seed".to_owned(),
        (None, seeds) => format!("{seeds} seeds"),
    };
    let tuned = if suite.tune.is_some() { ", each tuned first" } else { "" };
    format!(
        "comparing {}{depths}, {seeds} each{tuned}, {} at a time, in {}",
        names.join(", "),
        lanes.jobs,
        out.display()
    )
}

/// What the command ends with: a run that failed or is damaged can be made once more.
fn verdict_of(results: &Results, out: &Path) -> Result<ExitCode, Failure> {
    let count =
        |is: fn(&RunState) -> bool| results.runs.iter().filter(|run| is(&run.state)).count();
    let failed = count(|state| matches!(state, RunState::Failed(_) | RunState::Stopped));
    let damaged = count(|state| matches!(state, RunState::Damaged(_)));
    let tuning = results.tuning.iter().flat_map(Tuning::all_runs);
    let lost = |run: &&RunResult| !matches!(run.state, RunState::Done | RunState::Diverged(_));
    let lost: Vec<&str> = tuning.filter(lost).map(|run| run.name.as_str()).collect();
    if (failed, damaged) == (0, 0) && !lost.is_empty() {
        return Err(Failure::failed(format!(
            "{} tuning runs failed or are damaged and count as the worst of their grid, such as {} (see {}); start again to try those that failed once more, and remove the folders of damaged ones first",
            lost.len(),
            lost[0],
            out.join("logs").display()
        )));
    }
    match (failed, damaged) {
        (0, 0) => Ok(ExitCode::SUCCESS),
        (0, damaged) => Err(Failure::failed(format!(
            "{damaged} of {} runs are damaged; remove their folders from {} and start again to make them once more",
            results.runs.len(),
            out.join(SuiteTable::RUNS).display()
        ))),
        (failed, _) => Err(Failure::failed(format!(
            "{failed} of {} runs failed (see {}); start again to try them once more",
            results.runs.len(),
            out.join("logs").display()
        ))),
    }
}
