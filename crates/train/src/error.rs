//! Why a run cannot start or continue.

use super::config::{OnFailure, RunConfigError};
use super::evaluate::EvaluateError;
use super::folder::RunFolderError;
use super::state::StateError;
use super::team::Elsewhere;
use hadal_data::FeedError;
use hadal_files::FileError;
use hadal_kernels::ReadBackError;
use hadal_model::{
    CheckpointError, ConfigError, DeviceError, GenerateError, PassError, SamplingError,
    TokenizerError,
};
use hadal_ranks::{Member, RankError};
use std::path::{Path, PathBuf};

/// Why a run cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum TrainError {
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ConfigError),
    /// There is no data.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The data that a run's settings name cannot be used.
    #[error("{reason} ({} names it)", config.display())]
    FeedOf { config: PathBuf, reason: Box<FeedError> },
    /// The settings make no run on this device.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// There is no such device here.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What a device holds cannot be read.
    #[error(transparent)]
    ReadBack(#[from] ReadBackError),
    /// The data cannot be read any more.
    #[error(transparent)]
    Batch(FeedError),
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    /// The state cannot be saved or restored.
    #[error(transparent)]
    State(#[from] StateError),
    /// A model cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model cannot be run.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Progress cannot be measured.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// No sample can be written.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The sampling settings are impossible.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The tokenizer fails.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A log cannot be written.
    #[error("{0}; the last checkpoint is whole: mend this, then go on with `hadal train --resume`")]
    Logs(FileError),
    /// The settings cannot be written down, so that no later change could be noticed.
    #[error("the settings cannot be written as TOML: {0}")]
    Settings(String),
    /// The model cannot be saved.
    #[error("{reason}; the last step is saved: mend this, then go on with `hadal train --resume {}`", run.display())]
    Unsaved { run: PathBuf, reason: Box<CheckpointError> },
    /// The model is saved, but not measured.
    #[error("the model is in {}, but its last evaluation failed: {reason}; `hadal train --resume` measures it again", model.display())]
    Unmeasured { model: PathBuf, reason: Box<TrainError> },
    /// No checkpoint of a run can be used.
    #[error(
        "{} cannot go on: no checkpoint can be used; {}; restore one of them from a copy, or remove them to begin again at step 0",
        path.display(),
        problems.join("; ")
    )]
    NoState { path: PathBuf, problems: Vec<String> },
    /// The run was started with something else.
    #[error("{} cannot go on: its {what} changed since it was started; {remedy}", path.display())]
    Changed { path: PathBuf, what: &'static str, remedy: &'static str },
    /// The settings are not those of the model to continue from.
    #[error("{} has {found}, but the settings say {wanted}; leave [model] and the policy out, they come from the model", path.display())]
    OtherModel { path: PathBuf, found: String, wanted: String },
    /// Another rank ended the run.
    #[error(transparent)]
    Elsewhere(Elsewhere),
    /// A rank is lost.
    #[error(
        "{0}; the last checkpoint is whole: go on with `hadal train --resume`, on any number of ranks"
    )]
    Ranks(#[from] RankError),
    /// A rank sent what another program would send.
    #[error("{0} sent what cannot be read; start the same program on all ranks")]
    Garbled(Member),
    /// Ranks do not work with the same settings, data, program or form of the kernels.
    #[error("{}, unlike {first}; start all ranks with the same settings, data and program", strangers.join("; "))]
    Strangers { first: Member, strangers: Vec<String> },
    /// Ranks would have nothing to do.
    #[error("{ranks} ranks share the passes of a step, but train.accumulate is {passes}; {}", more_passes(*ranks, *passes, *batch))]
    TooManyRanks { ranks: usize, passes: usize, batch: usize },
    /// Ranks add gradients on the CPU.
    #[error(
        "train.device is {device}, but several ranks add gradients on the CPU; leave --device out, or start one process"
    )]
    RanksOnDevice { device: String },
    /// A run whose course depends on the number of ranks would go on with another number.
    #[error(
        "the run was made by {then} ranks that make steps by themselves (ranks.local_steps), and there are {now}; start {then}"
    )]
    OtherRanks { then: usize, now: usize },
    /// The loss or the gradient is not finite.
    #[error("step {step}: the {problem}; parameters are untouched{}; {}", evidence(dump.as_deref()), advice(*on_failure))]
    NotFinite { step: u64, problem: String, dump: Option<PathBuf>, on_failure: OnFailure },
}

fn more_passes(ranks: usize, passes: usize, batch: usize) -> String {
    let sequences = passes * batch;
    match sequences.is_multiple_of(ranks) {
        true => format!(
            "start at most {passes}, or set train.accumulate={ranks} and train.batch={}, which is as many sequences",
            sequences / ranks
        ),
        false => format!("start at most {passes}, or set train.accumulate={ranks}"),
    }
}

fn evidence(dump: Option<&Path>) -> String {
    dump.map(|dump| format!(", and {} repeats it", dump.display())).unwrap_or_default()
}

/// The settings of a run that has begun cannot be changed.
fn advice(on_failure: OnFailure) -> &'static str {
    match on_failure {
        OnFailure::Stop => {
            "in a new run, lower the learning rate, or set failure.on_failure to \"skip\" or \"rollback\""
        }
        OnFailure::Skip => {
            "it has left out as many steps as failure.limit allows; lower the learning rate in a new run"
        }
        OnFailure::Rollback => {
            "it has gone back as often as failure.limit allows; lower the learning rate in a new run"
        }
    }
}

impl TrainError {
    /// Whether the request was wrong from the start, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Model(_)
                | Self::Feed(_)
                | Self::FeedOf { .. }
                | Self::Folder(_)
                | Self::OtherModel { .. }
                | Self::Config(_)
                | Self::Device(_)
                | Self::RanksOnDevice { .. }
                | Self::Strangers { .. }
                | Self::TooManyRanks { .. }
                | Self::OtherRanks { .. }
        ) || matches!(self, Self::Elsewhere(other) if other.usage)
    }

    /// Whether this rank says it, where several ranks end with it: rank 0 speaks for all, as long as it is there.
    pub fn is_said_by(&self, rank: usize) -> bool {
        let leader_is_lost = match self {
            Self::Ranks(RankError::Lost { member, .. }) | Self::Garbled(member) => member.rank == 0,
            _ => false,
        };
        rank == 0 || leader_is_lost
    }

    /// Whether the run's numbers are no longer finite: a finding about its settings, and nothing that broke.
    pub fn is_divergence(&self) -> bool {
        matches!(self, Self::NotFinite { .. })
            || matches!(self, Self::Elsewhere(other) if other.divergence)
    }
}
