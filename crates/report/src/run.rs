//! Run folders as data: the files of `hadal train`, read without locking or changing anything.
//!
//! A run that is being written can be read at any time: a last line that is not whole yet is left out. What is damaged
//! is left out as well and named, so that one bad byte costs a line and not a run. Nothing but regular files is read,
//! and of each only as much as such a file can hold.

mod lines;
mod record;

pub use record::{EvaluationPoint, Metric, Outcome, Sample, StepPoint};

use crate::figure::Figure;
use crate::provenance::Provenance;
use hadal_files::{
    FileError, MANIFEST, hash, open, read_at_most, read_manifest, read_text_at_most,
};
use lines::Lines;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Settings and results are far smaller.
const LARGEST_SMALL_FILE: u64 = 4 << 20;
/// So are figures.
const LARGEST_FIGURE: u64 = 64 << 20;
/// Resolved settings.
const CONFIG: &str = "config.toml";
/// Lines of steps and evaluations.
const METRICS: &str = "metrics.jsonl";

/// The contents of a run folder.
#[derive(Clone, Debug)]
pub struct Run {
    /// The folder.
    pub path: PathBuf,
    /// Its last part.
    pub name: String,
    /// Resolved settings, `config.toml`.
    pub settings: toml::Table,
    /// Versions and machine, `run.json`.
    pub about: serde_json::Value,
    /// The same, as far as it is understood.
    pub provenance: Provenance,
    /// Steps of training.
    pub steps: Vec<StepPoint>,
    /// Evaluations on held-out data.
    pub evaluations: Vec<EvaluationPoint>,
    /// Texts written during training.
    pub samples: Vec<Sample>,
    /// Its result, `outcome.json`, once it is finished.
    pub outcome: Option<Outcome>,
    /// Figures of `hadal diagnose`, `diagnosis/*.json`, by name.
    pub figures: Vec<Figure>,
    /// Its status.
    pub status: Status,
    /// What cannot be read and is left out.
    pub damage: Vec<Damage>,
    /// Whether its metrics are what was written, as far as can be told. Others are shown, but not compared.
    pub is_whole: bool,
}

/// Something in a run's folder that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file's name.
    pub file: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.problem)
    }
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All steps are done.
    Done,
    /// A process is at work.
    Running,
    /// It ended at a loss or a gradient that is not finite.
    Failed,
    /// It was interrupted and can be resumed.
    Stopped,
}

/// Why a run cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum RunError {
    /// There is no run.
    #[error("{} holds no run (no config.toml)", path.display())]
    NoRun { path: PathBuf },
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not what it should be.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
}

impl Run {
    /// Whether a folder holds a run.
    pub fn is_run(path: &Path) -> bool {
        path.join(CONFIG).is_file()
    }

    /// Reads a run. Only one without settings cannot be read at all.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        if !Self::is_run(path) {
            return Err(RunError::NoRun { path: path.into() });
        }
        let config = path.join(CONFIG);
        let settings = toml::from_str(&read_text_at_most(&config, LARGEST_SMALL_FILE)?)
            .map_err(|error| RunError::Damaged { path: config, reason: error.to_string() })?;
        let mut damage = Vec::new();
        let about: serde_json::Value =
            or_damage(small_json(&path.join(Provenance::FILE)), Provenance::FILE, &mut damage)
                .flatten()
                .unwrap_or_default();
        let status = status(path);
        let (steps, evaluations) = metrics(path, &mut damage);
        let outcome: Option<Outcome> =
            or_damage(small_json(&path.join(Outcome::FILE)), Outcome::FILE, &mut damage).flatten();
        let is_whole = match status {
            Status::Done => is_as_written(path, &mut damage),
            _ => is_without(METRICS, &damage),
        };
        let samples = all_lines(path, "samples.jsonl", &mut damage);
        let figures = figures(&path.join("diagnosis"), &mut damage);
        Ok(Self {
            path: path.into(),
            name: name(path),
            settings,
            provenance: Provenance::deserialize(&about).unwrap_or_default(),
            about,
            steps,
            evaluations,
            samples,
            outcome,
            figures,
            status,
            damage,
            is_whole,
        })
    }

    /// The kind of residual stream.
    pub fn residual(&self) -> &str {
        let residual = self.settings.get("residual").and_then(|table| table.get("kind"));
        residual.and_then(toml::Value::as_str).unwrap_or("unknown")
    }

    /// The seed.
    pub fn seed(&self) -> i64 {
        self.settings.get("seed").and_then(toml::Value::as_integer).unwrap_or(0)
    }

    /// Whether its numbers at the end can be compared with those of others.
    pub fn is_comparable(&self) -> bool {
        self.status == Status::Done && self.is_whole
    }

    /// What is damaged, in sentences.
    pub fn trouble(&self) -> Vec<String> {
        let of = |Damage { file, problem }: &Damage| format!("{file} of {}: {problem}.", self.name);
        let mut sentences: Vec<String> = self.damage.iter().map(of).collect();
        if self.status == Status::Done && !self.is_whole {
            sentences.push(format!("{} is left out of comparisons; make it again.", self.name));
        }
        sentences
    }
}

/// The last part of a run's path.
fn name(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| path.display().to_string())
}

/// The status of a run, without reading it.
pub fn status(path: &Path) -> Status {
    let busy = open(&path.join("lock"))
        .is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)));
    if busy {
        Status::Running
    } else if path.join("model").is_dir() {
        Status::Done
    } else if ended_in_failure(path) {
        Status::Failed
    } else {
        Status::Stopped
    }
}

/// Steps that a run has recorded, from the end of its metrics.
pub fn steps_done(path: &Path) -> u64 {
    lines::last_step(&path.join(METRICS))
}

/// Whether the newest failure, `failures/step-STEP-NUMBER`, was the end. A run that went on behind it has recorded more
/// steps than were done before it, or at least says that it would.
fn ended_in_failure(path: &Path) -> bool {
    #[derive(Deserialize)]
    struct Evidence {
        then: Option<String>,
    }
    let Ok(entries) = fs::read_dir(path.join("failures")) else { return false };
    let failures = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        let (step, number) = name.strip_prefix("step-")?.split_once('-')?;
        Some((number.parse::<u64>().ok()?, step.parse::<u64>().ok()?, entry.path()))
    });
    let Some((_, step, dump)) = failures.max() else { return false };
    let evidence: Option<Evidence> = small_json(&dump.join("failed-step.json")).ok().flatten();
    let then = evidence.and_then(|evidence| evidence.then);
    then.is_none_or(|then| then == "stop") && step == steps_done(path)
}

/// Steps and evaluations are in one file.
fn metrics(path: &Path, damage: &mut Vec<Damage>) -> (Vec<StepPoint>, Vec<EvaluationPoint>) {
    let (mut steps, mut evaluations) = (Vec::new(), Vec::new());
    for metric in all_lines(path, METRICS, damage) {
        match metric {
            Metric::Train(step) => steps.push(step),
            Metric::Eval(evaluation) => evaluations.push(evaluation),
            Metric::Other => {}
        }
    }
    (steps, evaluations)
}

/// Whether settings and metrics of a finished run are those that it left; other files are only named. Older runs have no hashes; there, every line of the
/// metrics must be readable.
fn is_as_written(path: &Path, damage: &mut Vec<Damage>) -> bool {
    let hashes = match read_manifest(path) {
        Ok(Some(hashes)) => hashes,
        Ok(None) => return is_without(METRICS, damage),
        Err(error) => {
            damage.push(Damage { file: MANIFEST.into(), problem: error.to_string() });
            return is_without(METRICS, damage);
        }
    };
    let mut is_whole = true;
    for (file, written) in hashes {
        if !hash(&path.join(&file)).is_ok_and(|(hash, _)| hash == written) {
            // The others say how a run was made and what it took, not how well it did.
            is_whole &= ![METRICS, CONFIG].contains(&file.as_str());
            let problem = "it is not what was written when the run ended".into();
            damage.push(Damage { file, problem });
        }
    }
    is_whole
}

fn is_without(file: &str, damage: &[Damage]) -> bool {
    damage.iter().all(|damage| damage.file != file)
}

fn all_lines<T: DeserializeOwned>(path: &Path, file: &str, damage: &mut Vec<Damage>) -> Vec<T> {
    let read = lines::read(&path.join(file)).map_err(RunError::from);
    let Some(Lines { values, unreadable }) = or_damage(read, file, damage) else {
        return Vec::new();
    };
    let problem = match unreadable {
        0 => return values,
        1 => "1 line cannot be read and is left out".into(),
        more => format!("{more} lines cannot be read and are left out"),
    };
    damage.push(Damage { file: file.into(), problem });
    values
}

fn figures(directory: &Path, damage: &mut Vec<Damage>) -> Vec<Figure> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut figures: Vec<Figure> = Vec::new();
    for path in paths {
        let file = format!("diagnosis/{}", name(&path));
        figures.extend(or_damage(json(&path, LARGEST_FIGURE), &file, damage).flatten());
    }
    figures.sort_by(|a, b| a.name.cmp(&b.name));
    figures
}

/// A value, or a note that there is none.
fn or_damage<T>(read: Result<T, RunError>, file: &str, damage: &mut Vec<Damage>) -> Option<T> {
    let problem = match read {
        Ok(value) => return Some(value),
        // The path is that of the run, which is named anyway.
        Err(RunError::File(error)) => format!("it cannot be read ({})", error.source),
        Err(RunError::Damaged { reason, .. }) => format!("it is damaged ({reason})"),
        Err(other) => other.to_string(),
    };
    damage.push(Damage { file: file.into(), problem });
    None
}

/// A small JSON file, if it exists.
pub(crate) fn small_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RunError> {
    json(path, LARGEST_SMALL_FILE)
}

/// A JSON file of at most this many bytes, if it exists.
pub(crate) fn json<T: DeserializeOwned>(path: &Path, most: u64) -> Result<Option<T>, RunError> {
    let bytes = match read_at_most(path, most) {
        Ok(bytes) => bytes,
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| RunError::Damaged { path: path.into(), reason: error.to_string() })
}

#[cfg(test)]
mod tests;
