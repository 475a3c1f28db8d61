//! `hadal compare`: which residual stream is better, and is that luck?

use crate::failure::Failure;
use crate::output::{Table, grouped, line, print_json, scaled};
use crate::standard::{stderr, stdout, tell, visible};
use clap::Args;
use hadal_compare::{
    Budget, Earlier, End, Lanes, Pace, PlannedRun, Progress, RunState, Start, Suite, SuiteFolder,
    Task, Watch, compare,
};
use hadal_report::page::{Request, write};
use hadal_report::suite::SuiteTable;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Compare residual policies under one budget, seed by seed
///
/// A suite is the settings of a run, `seeds`, and a list of `[[variant]]` that differ only in their residual stream.
/// All variants see the same tokens in the same order and start from the same draws. Each run is an ordinary run folder
/// DIR/runs/NAME, made by a process of its own. A suite that was stopped or killed continues when it is started again,
/// and gives the same table.
#[derive(Args)]
#[command(after_help = "\
With no arguments it compares prenorm, lns, attnres, mgr and nag on a task that needs depth: about three
minutes on two cores. Suites: docs/compare.md.

Examples:
  hadal compare
  hadal compare configs/suites/depth-sweep.toml --out runs/depth --jobs 2
  hadal compare configs/suites/iso-flop.toml --dry-run
  hadal compare my-suite.toml --set train.steps=1000 --json > results.json")]
pub(crate) struct Compare {
    /// What to compare [default: a built-in suite]
    #[arg(value_name = "SUITE.toml")]
    suite: Option<PathBuf>,
    /// Folder of the suite [default: runs/compare, or runs/SUITE]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Runs at a time [default: as many as the cores hold]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Change one setting of all runs, e.g. train.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Print the runs with their steps, parameters and FLOPs, and stop
    #[arg(long)]
    dry_run: bool,
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
        for setting in &self.settings {
            suite = suite.with_setting(setting)?;
        }
        if self.dry_run {
            return self.show_plan(&suite);
        }
        // Whatever makes no sense is reported before there is a folder.
        if !matches!(suite.budget, Budget::Minutes(_)) {
            suite.plan(&Pace::new())?;
        }
        let out = self.out();
        let folder = SuiteFolder::open(&out, &suite)?;
        let stop = Arc::new(AtomicBool::new(false));
        let signal = hadal_train::stop_on_signals(&stop)
            .map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
        let lanes = Lanes { jobs: self.jobs(&suite), threads: suite.threads };
        tell(&opening(&suite, lanes, &out));
        let mut view = View::new();
        let command = |start: Start<'_>| train(&program, start);
        let done = compare(&suite, &folder, lanes, &command, &mut view, &stop);
        view.bar.finish_and_clear();
        let done = done?;
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            tell("stopped; everything is saved");
            tell(&format!("go on with: {}", self.again()));
            return Ok(ExitCode::from(signal.exit_code()));
        }
        let Some((results, table)) = done else {
            return Err(Failure::failed("the suite has no plan"));
        };
        match self.json {
            true => print_json(&results)?,
            false => show(&table)?,
        }
        let report = Request {
            inputs: vec![out.clone()],
            output: out.join("report.html"),
            ..Request::default()
        };
        let report = write(&report, |_| ()).map_err(Failure::failed)?;
        tell(&closing(&out, &report.report));
        let count =
            |is: fn(&RunState) -> bool| results.runs.iter().filter(|run| is(&run.state)).count();
        let failed = count(|state| matches!(state, RunState::Failed(_) | RunState::Stopped));
        let damaged = count(|state| matches!(state, RunState::Damaged(_)));
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

    fn out(&self) -> PathBuf {
        let stem = self.suite.as_deref().and_then(Path::file_stem);
        let name =
            stem.map_or_else(|| "compare".into(), |stem| stem.to_string_lossy().into_owned());
        self.out.clone().unwrap_or_else(|| Path::new("runs").join(name))
    }

    /// Cores that a suite's threads leave idle are of no use to it, and more jobs than cores would only make its speeds
    /// meaningless.
    fn jobs(&self, suite: &Suite) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or((cores / suite.threads).max(1), usize::from)
    }

    /// The same command.
    fn again(&self) -> String {
        let mut words = vec!["hadal compare".to_owned()];
        words.extend(self.suite.as_deref().map(|path| path.display().to_string()));
        words.extend(self.out.as_deref().map(|path| format!("--out {}", path.display())));
        words.extend(self.jobs.map(|jobs| format!("--jobs {jobs}")));
        words.extend(self.settings.iter().map(|setting| format!("--set {setting}")));
        words.join(" ")
    }

    fn show_plan(&self, suite: &Suite) -> Result<ExitCode, Failure> {
        if let Budget::Minutes(minutes) = suite.budget {
            return Err(Failure::usage(format!(
                "{}: budget.minutes is {minutes}: steps follow from a speed that is measured at the start; there is nothing to show before",
                suite.origin()
            )));
        }
        let plan = suite.plan(&Pace::new())?;
        if self.json {
            print_json(&plan)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&["run", ">parameters", ">steps", ">tokens", ">FLOPs"]);
        for run in &plan {
            table.row([
                run.name.clone(),
                grouped(run.parameters.into()),
                grouped(run.steps.into()),
                scaled(run.tokens() as f64),
                scaled(run.flops()),
            ]);
        }
        let mut out = stdout();
        table.print(&mut out)?;
        let flops: f64 = plan.iter().map(PlannedRun::flops).sum();
        writeln!(out, "{} runs, {}FLOPs", plan.len(), scaled(flops))?;
        Ok(ExitCode::SUCCESS)
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
    let seeds = match suite.seeds.len() {
        1 => "1 seed".to_owned(),
        seeds => format!("{seeds} seeds"),
    };
    format!(
        "comparing {}{depths}, {seeds} each, {} at a time, in {}",
        names.join(", "),
        lanes.jobs,
        out.display()
    )
}

fn closing(out: &Path, report: &Path) -> String {
    let at = |name: &str| out.join(name).display().to_string();
    format!(
        "table: {}, {}; every number: {}; runs: {}\nreport: {} (open it in a browser)\nnext: hadal serve {}, or hadal diagnose one of its runs",
        at(SuiteTable::FILE),
        at("table.csv"),
        at("results.json"),
        at(SuiteTable::RUNS),
        report.display(),
        out.display(),
    )
}

/// Columns of the first table, on what was learnt; the others, on what it took, make the second.
const LEARNT: [&str; 9] = [
    "runs",
    "train loss",
    "validation loss",
    "difference",
    "95 % interval",
    "p (t test)",
    "p (bootstrap)",
    "p (Holm)",
    "verdict",
];
/// Columns of both.
const BOTH: [&str; 2] = ["policy", "blocks"];

fn show(table: &SuiteTable) -> Result<(), Failure> {
    let mut out = stdout();
    for learnt in [true, false] {
        let shown: Vec<usize> = (0..table.columns.len())
            .filter(|&column| {
                let name = table.columns[column].as_str();
                BOTH.contains(&name) || LEARNT.contains(&name) == learnt
            })
            .collect();
        let head: Vec<String> = shown
            .iter()
            .map(|&column| match table.columns[column].as_str() {
                name @ ("policy" | "verdict") => name.to_owned(),
                name => format!(">{name}"),
            })
            .collect();
        let mut text = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
        for row in &table.rows {
            text.row(shown.iter().map(|&column| &row[column]));
        }
        text.print(&mut out)?;
        writeln!(out)?;
    }
    for sentence in &table.verdict {
        writeln!(out, "{sentence}")?;
    }
    Ok(())
}

/// One bar for the whole suite on a terminal, a line for each run in a log.
struct View {
    bar: ProgressBar,
    watched: bool,
    begun: bool,
}

/// Positions of the bar.
const WHOLE: f64 = 1e6;

impl View {
    fn new() -> Self {
        let watched = stderr().is_terminal();
        let bar = if watched { ProgressBar::new(WHOLE as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template(
            "{bar:24} {percent} %, {msg}, {elapsed} elapsed, {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, watched, begun: false }
    }
}

impl Watch for View {
    fn earlier(&mut self, earlier: &Earlier) {
        line(&self.bar, &earlier.sentence());
        for warning in &earlier.warnings {
            line(&self.bar, &format!("warning: {warning}"));
        }
    }

    fn waiting(&mut self, task: &Task) {
        let run = task.run.display();
        line(&self.bar, &format!("another process is at work in {run}; waiting for it to end"));
    }

    fn progress(&mut self, progress: &Progress) {
        self.bar.set_position((WHOLE * progress.share) as u64);
        if !self.begun {
            // Runs that were done before say nothing about the speed.
            self.bar.reset_eta();
            self.begun = true;
        }
        let running: Vec<String> = progress
            .running
            .iter()
            .map(|(name, step, steps)| format!("{name} {step}/{steps}"))
            .collect();
        let running = running.join(", ");
        let message = format!("{} of {} runs, {running}", progress.ended, progress.runs);
        self.bar.set_message(visible(&message).into_owned());
    }

    fn ended(&mut self, task: &Task, end: &End) {
        let text = match end {
            End::Failed(said) => format!("warning: {} failed: {said}", task.name),
            End::Diverged(said) => format!("warning: {} diverged: {said}", task.name),
            End::Done if !self.watched => format!("{} is done", task.name),
            End::DoneBefore if !self.watched => format!("{} was done before", task.name),
            _ => return,
        };
        line(&self.bar, &text);
    }
}
