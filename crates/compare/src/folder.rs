//! A suite's folder: `suite.json` (what was asked), `settings/`, `logs/`, `runs/`, `claims/`, and the results.

use super::claim::{Claims, Look};
use super::error::CompareError;
use super::execute::{End, Task, Watch, Work, execute};
use super::halt::Halt;
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
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Steps of a run that measures the pace, and how many of them warm up.
const PACE_STEPS: u64 = 24;
const WARM_UP: usize = 4;
/// What they have measured.
const PACE: &str = "pace.json";

/// What only one process does at a time, by its name among the claims: to write results, and to measure the pace.
const WRITING: &str = "writing";
const MEASURING: &str = "measuring";

/// A suite's folder, which several processes can share.
#[derive(Debug)]
pub struct SuiteFolder {
    path: PathBuf,
    pub(crate) claims: Claims,
}

/// What must stay the same while a folder is in use.
#[derive(Serialize, Deserialize)]
struct Promise {
    threads: usize,
}

impl SuiteFolder {
    /// When a process on another machine that shows no sign of life has lost its runs.
    pub const LOST_AFTER: Duration = Duration::from_secs(120);

    /// Opens or makes the folder of a suite.
    pub fn open(path: &Path, suite: &Suite) -> Result<Self, CompareError> {
        Self::share(path, suite, Self::LOST_AFTER)
    }

    /// The same, with another time after which processes on other machines have lost their runs.
    pub fn share(path: &Path, suite: &Suite, lost_after: Duration) -> Result<Self, CompareError> {
        for part in [SuiteTable::RUNS, "settings", "logs"] {
            let path = path.join(part);
            create_directory(&path)?;
        }
        let folder = Self { path: path.into(), claims: Claims::open(path, lost_after)? };
        if !folder.promises(suite)? {
            let file = path.join("suite.json");
            let written = write_json(&file, &Promise { threads: suite.threads });
            // Another process may have been faster.
            if !folder.promises(suite)? {
                written?;
            }
        }
        Ok(folder)
    }

    /// The folder of a suite that is there, only to look at it: nothing in it is changed.
    pub fn look(path: &Path, suite: &Suite, lost_after: Duration) -> Result<Self, CompareError> {
        if !SuiteTable::is_suite(path) {
            return Err(CompareError::NoSuite { path: path.into() });
        }
        let folder = Self { path: path.into(), claims: Claims::visiting(path, lost_after) };
        folder.promises(suite)?;
        Ok(folder)
    }

    /// Whether the folder says how it is used, which must be as the suite says.
    fn promises(&self, suite: &Suite) -> Result<bool, CompareError> {
        match read_json::<Promise>(&self.path.join("suite.json"))? {
            Some(Promise { threads }) if threads != suite.threads => {
                let (path, there, here) = (self.path.clone(), threads, suite.threads);
                Err(CompareError::OtherThreads { path, there, here })
            }
            there => Ok(there.is_some()),
        }
    }

    /// Whether runs are only looked at.
    pub fn only_looks(&self) -> bool {
        self.claims.only_looks()
    }

    /// Writes results while no other process does. If this one is to stop, it does not wait for others, which come to
    /// the same results.
    pub fn write_alone<T, E: From<CompareError>>(
        &self,
        work: &Work<'_>,
        watch: &mut dyn Watch,
        write: impl FnOnce(&mut dyn Watch) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        self.alone(WRITING, work, watch, write)
    }

    /// Does something while no other process does it. `None` if that was stopped while another process was at it.
    pub(crate) fn alone<T, E: From<CompareError>>(
        &self,
        name: &str,
        work: &Work<'_>,
        watch: &mut dyn Watch,
        act: impl FnOnce(&mut dyn Watch) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        /// Nobody writes for that long, if nothing is wrong.
        const SHORT: Duration = Duration::from_secs(3);
        let (began, mut told) = (Instant::now(), String::new());
        loop {
            let by = match self.claims.look(name) {
                Look::Free(free) | Look::Ended(_, free) => {
                    let taken = self.claims.take(name, free).map_err(CompareError::from)?;
                    if let Some(claim) = taken {
                        let done = act(watch)?;
                        drop(claim);
                        return Ok(Some(done));
                    }
                    String::new()
                }
                Look::Held(by) => by.shown,
            };
            if work.is_stopped() {
                return Ok(None);
            }
            if !by.is_empty() && by != told && began.elapsed() > SHORT {
                watch.waiting(&[(name.to_owned(), by.clone())]);
                told = by;
            }
            sleep(self.claims.every());
        }
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
    /// the same steps.
    pub(crate) fn plan(
        &self,
        suite: &Suite,
        work: &Work<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<PlannedRun>, Halt> {
        let pace = self.pace_of(suite, work, watch)?;
        let plan = suite.plan(&pace)?;
        if suite.tune.is_some() && !self.only_looks() {
            self.set_aside(suite, &plan, work, watch)?;
        }
        plan.iter().try_for_each(|run| check(&self.run(&run.name), &run.config))?;
        Ok(plan)
    }

    /// The pace of the variants, if the budget needs it.
    pub(super) fn pace_of(
        &self,
        suite: &Suite,
        work: &Work<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Pace, Halt> {
        match suite.budget {
            Budget::Minutes(_) => self.pace(suite, work, watch),
            _ => Ok(Pace::new()),
        }
    }

    /// The tasks of a plan.
    pub(crate) fn tasks(&self, plan: &[PlannedRun]) -> Vec<Task> {
        plan.iter().map(|run| self.task(run, SuiteTable::RUNS, "")).collect()
    }

    /// A task whose run is in a folder of the suite's, and whose settings and output stand in folders of a name, apart
    /// from those of the table's runs.
    pub(super) fn task(&self, run: &PlannedRun, folder: &str, apart: &str) -> Task {
        let place = |kind: &str| self.path.join(kind).join(apart);
        Task {
            name: run.name.clone(),
            place: format!("{folder}/{}", run.name),
            run: self.path.join(folder).join(&run.name),
            settings: place("settings").join(format!("{}.toml", run.name)),
            config: Some(Box::new(run.config.clone())),
            log: place("logs").join(format!("{}.log", run.name)),
            steps: run.steps,
            work: run.flops(),
        }
    }

    fn pace(&self, suite: &Suite, work: &Work<'_>, watch: &mut dyn Watch) -> Result<Pace, Halt> {
        loop {
            let (pace, missing) = self.known_pace(suite)?;
            if missing.is_empty() {
                return Ok(pace);
            }
            match self.claims.look(MEASURING) {
                _ if work.is_stopped() => return Err(Halt::Stopped),
                _ if self.only_looks() => return Err(Halt::waiting_for(MEASURING, None)),
                Look::Held(by) if !work.waits && by.is_alive => {
                    return Err(Halt::waiting_for(MEASURING, Some(by.shown)));
                }
                // Another process that has measured meanwhile has measured for all.
                _ => self.alone(MEASURING, work, watch, |watch| {
                    let (pace, missing) = self.known_pace(suite)?;
                    self.measure(pace, &missing, work, watch)
                })?,
            };
        }
    }

    /// The pace as far as it was measured, and runs that measure the rest.
    fn known_pace(&self, suite: &Suite) -> Result<(Pace, Vec<PlannedRun>), CompareError> {
        let pace: Pace = read_json(&self.path.join(PACE))?.unwrap_or_default();
        let mut missing = suite.pacers(PACE_STEPS)?;
        missing.retain(|run| !pace.contains_key(&run.name));
        Ok((pace, missing))
    }

    fn measure(
        &self,
        mut pace: Pace,
        missing: &[PlannedRun],
        work: &Work<'_>,
        watch: &mut dyn Watch,
    ) -> Result<(), Halt> {
        let directory = self.path.join("pace");
        // The rest of an earlier try was timed under other conditions.
        remove_directory(&directory)?;
        create_directory(&directory)?;
        let tasks: Vec<Task> = missing.iter().map(|run| self.task(run, "pace", "")).collect();
        let ends = execute(&tasks, work, &self.claims, watch)?;
        for ((task, end), planned) in tasks.iter().zip(ends).zip(missing) {
            let no_pace = |reason| CompareError::NoPace { run: task.name.clone(), reason };
            match end {
                End::Done | End::DoneBefore | End::DoneElsewhere => {}
                End::Stopped | End::Elsewhere(_) => return Err(Halt::Stopped),
                End::Failed(said) | End::Diverged(said) => return Err(no_pace(said).into()),
            }
            let speeds = Run::read(&task.run)?.steps.into_iter().skip(WARM_UP);
            let speeds: Vec<f64> = speeds.filter_map(|step| step.tokens_per_second).collect();
            if speeds.is_empty() {
                return Err(no_pace("no step was recorded".into()).into());
            }
            pace.insert(task.name.clone(), planned.tokens_per_step as f64 / median(speeds));
        }
        write_json(&self.path.join(PACE), &pace)?;
        Ok(remove_directory(&directory)?)
    }
}

/// An existing run must be the planned one.
pub(super) fn check(run: &Path, planned: &RunConfig) -> Result<(), CompareError> {
    let file = run.join("config.toml");
    if !file.exists() {
        return Ok(());
    }
    let text = read_text(&file)?;
    let origin = file.display().to_string();
    let there = RunConfig::parse(&text, &origin).map_err(|reason| {
        let reason = format!("{reason}; restore it, or remove that run's folder");
        CompareError::Malformed { origin, reason }
    })?;
    if there == *planned {
        return Ok(());
    }
    let difference = difference(&there, planned);
    Err(CompareError::OtherRun { path: run.into(), difference })
}

/// Writes the settings that a run begins with.
pub(super) fn write_settings(path: &Path, config: &RunConfig) -> Result<(), FileError> {
    let text = toml::to_string(config)
        .map_err(|error| file_error(Action::Write, path)(std::io::Error::other(error)))?;
    write_whole(path, text)
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
