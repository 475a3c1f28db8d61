//! A suite's folder: `suite.json` (what was asked), `settings/`, `logs/`, `runs/`, and the results.

use super::error::CompareError;
use super::execute::{End, Lanes, Start, Task, Watch, execute};
use super::plan::{Pace, PlannedRun};
use super::suite::{Budget, Suite};
use hadal_files::{
    Action, FileError, create_directory, file_error, pretty_json, read_text, remove_directory,
    write_whole,
};
use hadal_report::run::Run;
use hadal_report::statistics::median;
use hadal_report::suite::SuiteTable;
use hadal_train::RunConfig;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// Steps of a run that measures the pace, and how many of them warm up.
const PACE_STEPS: u64 = 24;
const WARM_UP: usize = 4;

/// A suite's folder, locked for one process.
#[derive(Debug)]
pub struct SuiteFolder {
    path: PathBuf,
    _lock: File,
}

/// What must stay the same while a folder is in use.
#[derive(Serialize, Deserialize)]
struct Promise {
    threads: usize,
}

impl SuiteFolder {
    /// Opens or makes the folder of a suite.
    pub fn open(path: &Path, suite: &Suite) -> Result<Self, CompareError> {
        for part in [SuiteTable::RUNS, "settings", "logs"] {
            let path = path.join(part);
            create_directory(&path)?;
        }
        let file = path.join("lock");
        let lock = File::create(&file).map_err(file_error(Action::Write, &file))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(CompareError::Busy { path: path.into() });
            }
            Err(TryLockError::Error(reason)) => {
                return Err(file_error(Action::Lock, &file)(reason).into());
            }
        }
        let folder = Self { path: path.into(), _lock: lock };
        let promise = path.join("suite.json");
        match read_json::<Promise>(&promise)? {
            Some(Promise { threads }) if threads != suite.threads => {
                let (path, there, here) = (path.into(), threads, suite.threads);
                return Err(CompareError::OtherThreads { path, there, here });
            }
            Some(_) => {}
            None => write_json(&promise, &Promise { threads: suite.threads })?,
        }
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of a run.
    pub fn run(&self, name: &str) -> PathBuf {
        self.path.join(SuiteTable::RUNS).join(name)
    }

    /// Every run of the suite. For a budget of minutes the pace is measured first, and only once: a resumed suite has
    /// the same steps. `None` if that was stopped.
    pub fn plan(
        &self,
        suite: &Suite,
        lanes: Lanes,
        command: &dyn Fn(Start<'_>) -> Command,
        watch: &mut dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<PlannedRun>>, CompareError> {
        let Some(pace) = self.pace_of(suite, lanes, command, watch, stop)? else {
            return Ok(None);
        };
        let plan = suite.plan(&pace)?;
        if suite.tune.is_some() {
            self.set_aside(suite, &plan, watch)?;
        }
        plan.iter().try_for_each(|run| self.check(run, &self.run(&run.name)))?;
        Ok(Some(plan))
    }

    /// The pace of the variants, if the budget needs it. `None` if measuring it was stopped.
    pub(super) fn pace_of(
        &self,
        suite: &Suite,
        lanes: Lanes,
        command: &dyn Fn(Start<'_>) -> Command,
        watch: &mut dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<Pace>, CompareError> {
        match suite.budget {
            Budget::Minutes(_) => self.pace(suite, lanes, command, watch, stop),
            _ => Ok(Some(Pace::new())),
        }
    }

    /// The tasks of a plan.
    pub fn tasks(&self, plan: &[PlannedRun]) -> Result<Vec<Task>, CompareError> {
        plan.iter().map(|run| self.task(run, self.run(&run.name))).collect()
    }

    fn task(&self, run: &PlannedRun, folder: PathBuf) -> Result<Task, CompareError> {
        self.task_beside(run, folder, "")
    }

    /// A task whose settings and output stand in folders of this name, apart from those of the table's runs.
    pub(super) fn task_beside(
        &self,
        run: &PlannedRun,
        folder: PathBuf,
        apart: &str,
    ) -> Result<Task, CompareError> {
        let place = |kind: &str| self.path.join(kind).join(apart);
        let settings = place("settings").join(format!("{}.toml", run.name));
        let text = toml::to_string(&run.config)
            .map_err(|error| file_error(Action::Write, &settings)(std::io::Error::other(error)))?;
        write_whole(&settings, text)?;
        Ok(Task {
            name: run.name.clone(),
            run: folder,
            settings,
            log: place("logs").join(format!("{}.log", run.name)),
            steps: run.steps,
            work: run.flops(),
        })
    }

    /// An existing run must be the planned one.
    pub(super) fn check(&self, planned: &PlannedRun, path: &Path) -> Result<(), CompareError> {
        let file = path.join("config.toml");
        if !file.exists() {
            return Ok(());
        }
        let text = read_text(&file)?;
        let origin = file.display().to_string();
        let there = RunConfig::parse(&text, &origin).map_err(|reason| {
            let reason = format!("{reason}; restore it, or remove that run's folder");
            CompareError::Malformed { origin, reason }
        })?;
        if there == planned.config {
            return Ok(());
        }
        let difference = difference(&there, &planned.config);
        Err(CompareError::OtherRun { path: path.into(), difference })
    }

    fn pace(
        &self,
        suite: &Suite,
        lanes: Lanes,
        command: &dyn Fn(Start<'_>) -> Command,
        watch: &mut dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<Pace>, CompareError> {
        let file = self.path.join("pace.json");
        let mut pace: Pace = read_json(&file)?.unwrap_or_default();
        let mut pacers = suite.pacers(PACE_STEPS)?;
        pacers.retain(|run| !pace.contains_key(&run.name));
        if pacers.is_empty() {
            return Ok(Some(pace));
        }
        let directory = self.path.join("pace");
        // The rest of an earlier try was timed under other conditions.
        remove_directory(&directory)?;
        let tasks: Vec<Task> = pacers
            .iter()
            .map(|run| self.task(run, directory.join(&run.name)))
            .collect::<Result<_, _>>()?;
        let ends = execute(&tasks, lanes, command, watch, stop)?;
        for ((task, end), planned) in tasks.iter().zip(ends).zip(&pacers) {
            let no_pace = |reason| CompareError::NoPace { run: task.name.clone(), reason };
            match end {
                End::Done | End::DoneBefore => {}
                End::Stopped => return Ok(None),
                End::Failed(said) | End::Diverged(said) => return Err(no_pace(said)),
            }
            let speeds = Run::read(&task.run)?.steps.into_iter().skip(WARM_UP);
            let speeds: Vec<f64> = speeds.filter_map(|step| step.tokens_per_second).collect();
            if speeds.is_empty() {
                return Err(no_pace("no step was recorded".into()));
            }
            pace.insert(task.name.clone(), planned.tokens_per_step as f64 / median(speeds));
        }
        write_json(&file, &pace)?;
        remove_directory(&directory)?;
        Ok(Some(pace))
    }
}

/// The keys in which two configs differ.
pub(super) fn differing(there: &RunConfig, here: &RunConfig) -> Vec<String> {
    let (there, here) = (flat(there), flat(here));
    let mut keys: Vec<&String> = there.iter().chain(&here).map(|(key, _)| key).collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| find(&there, key) != find(&here, key));
    keys.into_iter().cloned().collect()
}

fn flat(config: &RunConfig) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    if let Ok(table) = toml::Table::try_from(config) {
        flatten(&table, "", &mut entries);
    }
    entries
}

fn find(entries: &[(String, String)], key: &str) -> String {
    let entry = entries.iter().find(|(other, _)| other == key);
    entry.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
}

/// Where two configs differ, the first few places.
fn difference(there: &RunConfig, here: &RunConfig) -> String {
    const ENOUGH: usize = 3;
    let keys = differing(there, here);
    let (there, here) = (flat(there), flat(here));
    let mut differ: Vec<String> = keys
        .iter()
        .map(|key| format!("{key} is {}, not {}", find(&there, key), find(&here, key)))
        .collect();
    if differ.len() > ENOUGH {
        let more = differ.len() - ENOUGH;
        differ.truncate(ENOUGH);
        differ.push(format!("and {more} more"));
    }
    differ.join(", ")
}

fn flatten(table: &toml::Table, above: &str, entries: &mut Vec<(String, String)>) {
    for (key, value) in table {
        let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
        match value {
            toml::Value::Table(table) => flatten(table, &path, entries),
            value => entries.push((path, value.to_string())),
        }
    }
}

pub(super) fn read_json<T: for<'a> Deserialize<'a>>(
    path: &Path,
) -> Result<Option<T>, CompareError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = read_text(path)?;
    serde_json::from_str(&text).map(Some).map_err(|error| CompareError::Malformed {
        origin: path.display().to_string(),
        reason: format!("{error}; remove it to start over"),
    })
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    write_whole(path, pretty_json(path, value)? + "\n")
}
