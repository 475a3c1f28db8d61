//! Why nothing is compared.

use hadal_files::{Action, FileError};
use hadal_report::run::RunError;
use hadal_train::{RunConfigError, TrainError};
use std::io;
use std::path::PathBuf;

/// Why nothing is compared.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum CompareError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The suite is not TOML, or one of its keys has a wrong value.
    #[error("{origin}: {reason}")]
    Malformed { origin: String, reason: String },
    /// The suite describes no comparison, or no fair one.
    #[error("{origin}: {field} {problem}")]
    Refused { origin: String, field: String, problem: String },
    /// A setting makes no run.
    #[error("{origin}: {reason}")]
    Settings { origin: String, reason: RunConfigError },
    /// A run of the suite cannot be planned.
    #[error("{origin}: the run {run} cannot be planned: {reason}")]
    Unplanned { origin: String, run: String, reason: Box<TrainError> },
    /// The folder holds a run of something else.
    #[error(
        "{} was started with other settings than the suite's (in its config.toml {difference}); remove it, or choose another --out",
        path.display()
    )]
    OtherRun { path: PathBuf, difference: String },
    /// The folder holds a run of other data.
    #[error(
        "{} was trained on other data (its run.json says {there}, and this is {here}); choose another --out, or remove that run's folder",
        path.display()
    )]
    OtherData { path: PathBuf, there: String, here: String },
    /// The folder holds a run whose task another generator made.
    #[error(
        "{} was trained on a task of generator {there} (says its run.json), and this is generator {here}, which makes other data; choose another --out, or remove that run's folder",
        path.display()
    )]
    OtherGenerator { path: PathBuf, there: u32, here: u32 },
    /// The folder was filled with another number of threads.
    #[error(
        "the runs in {} have {there} threads each (says its suite.json), but the suite says {here}, which may change their bits; say threads = {there}, or choose another --out",
        path.display()
    )]
    OtherThreads { path: PathBuf, there: usize, here: usize },
    /// There is nothing to look at.
    #[error("{} holds no suite yet; start it with `hadal compare SUITE.toml --out {}`", path.display(), path.display())]
    NoSuite { path: PathBuf },
    /// A run is in the way of another one, and somebody is at work in it.
    #[error("another process is at work in {}; wait for it", path.display())]
    AtWork { path: PathBuf },
    /// A run of tuning was stopped by somebody else.
    #[error("the tuning run {run} was stopped before its end; start again to go on")]
    TuningStopped { run: String },
    /// A process cannot be started.
    #[error("cannot start the run {run}: {reason}")]
    NotStarted { run: String, reason: io::Error },
    /// A process cannot be waited for.
    #[error("cannot wait for the process of {}: {reason}", path.display())]
    Lost { path: PathBuf, reason: io::Error },
    /// There is no speed to turn minutes into steps by.
    #[error("the speed of {run} cannot be measured: {reason}")]
    NoPace { run: String, reason: String },
    /// A run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl CompareError {
    /// Whether the request makes no sense or cannot be started, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::NotStarted { .. }
            | Self::Lost { .. }
            | Self::NoPace { .. }
            | Self::TuningStopped { .. }
            | Self::Run(_) => false,
            Self::File(error) => error.action == Action::Read,
            _ => true,
        }
    }
}
