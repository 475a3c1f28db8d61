//! Run folders as data: the files of `hadal train`, read without locking or changing anything.
//!
//! A run that is being written can be read at any time: a last line that is not whole yet is left out.

use crate::figure::Figure;
use hadal_files::{FileError, read_text};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

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

/// One step of training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// Steps done.
    pub step: u64,
    /// Mean loss of the step's batches, in nats.
    pub loss: Option<f64>,
    /// Norm of the gradient before clipping.
    pub gradient_norm: Option<f64>,
    /// The schedule's factor on every rate.
    pub rate: f64,
    /// Tokens so far.
    pub tokens: u64,
    /// Speed of this step.
    pub tokens_per_second: Option<f64>,
    /// FLOPs of this step, forward and backward; older runs did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<u64>,
    /// Share of the skippable FLOPs that were skipped, if there is skipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_rate: Option<f64>,
    /// The target for that share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_target: Option<f64>,
    /// The mean of all thresholds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_threshold: Option<f64>,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationPoint {
    /// Steps done.
    pub step: u64,
    /// Mean cross-entropy in nats.
    pub loss: Option<f64>,
    /// `exp(loss)`.
    #[serde(default)]
    pub perplexity: Option<f64>,
    /// Bits per UTF-8 byte, where there is a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    /// Share of answers that are right, where there are answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Share of sequences whose answers are all right, where there are answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<f64>,
}

/// A line of `metrics.jsonl`. Numbers that are not finite are `null` there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Metric {
    /// A step of training.
    Train(StepPoint),
    /// An evaluation.
    Eval(EvaluationPoint),
    /// Something that a later version writes.
    #[serde(other)]
    Other,
}

/// A text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Steps done.
    pub step: u64,
    /// What was written.
    pub text: String,
}

/// The result of a finished run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Trainable numbers.
    pub parameters: u64,
    /// Tokens learnt from.
    pub tokens: u64,
    /// Time spent in steps of training, over all interruptions, in seconds.
    pub seconds: f64,
    /// Median over steps.
    pub tokens_per_second: f64,
    /// The process's largest resident set, in MB (10^6 bytes).
    pub peak_rss_mb: f64,
    /// FLOPs of all steps of training, forward and backward, as counted; older runs did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_flops: Option<f64>,
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
        path.join("config.toml").is_file()
    }

    /// Reads a run.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        if !Self::is_run(path) {
            return Err(RunError::NoRun { path: path.into() });
        }
        let config = path.join("config.toml");
        let settings = toml::from_str(&read_text(&config)?).map_err(damaged(&config))?;
        let about = optional(&path.join("run.json"))?.unwrap_or_default();
        let (steps, evaluations) = metrics(&path.join("metrics.jsonl"))?;
        let name = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let name = name.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self {
            path: path.into(),
            name: name.unwrap_or_else(|| path.display().to_string()),
            settings,
            about,
            steps,
            evaluations,
            samples: lines(&path.join("samples.jsonl"))?,
            outcome: optional(&path.join("outcome.json"))?,
            figures: figures(&path.join("diagnosis"))?,
            status: status(path),
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
}

/// The status of a run, without reading it.
pub fn status(path: &Path) -> Status {
    let busy = hadal_files::open(&path.join("lock"))
        .is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)));
    let has_failures = fs::read_dir(path.join("failures")).is_ok_and(|mut e| e.next().is_some());
    if busy {
        Status::Running
    } else if path.join("model").is_dir() {
        Status::Done
    } else if has_failures {
        Status::Failed
    } else {
        Status::Stopped
    }
}

/// Steps and evaluations are in one file.
fn metrics(path: &Path) -> Result<(Vec<StepPoint>, Vec<EvaluationPoint>), RunError> {
    let (mut steps, mut evaluations) = (Vec::new(), Vec::new());
    for metric in lines(path)? {
        match metric {
            Metric::Train(step) => steps.push(step),
            Metric::Eval(evaluation) => evaluations.push(evaluation),
            Metric::Other => {}
        }
    }
    Ok((steps, evaluations))
}

fn lines<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Vec<T>, RunError> {
    let text = if path.exists() { read_text(path)? } else { String::new() };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).map_err(damaged(path))).collect()
}

fn figures(directory: &Path) -> Result<Vec<Figure>, RunError> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(Vec::new()) };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = paths.iter().filter_map(|path| optional(path).transpose());
    let mut figures = read.collect::<Result<Vec<Figure>, _>>()?;
    figures.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(figures)
}

fn optional<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>, RunError> {
    if !path.exists() {
        return Ok(None);
    }
    serde_json::from_str(&read_text(path)?).map(Some).map_err(damaged(path))
}

fn damaged<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> RunError {
    let path = path.to_owned();
    move |error| RunError::Damaged { path, reason: error.to_string() }
}
