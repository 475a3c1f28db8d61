//! Why a run cannot start or continue.

use super::evaluate::EvaluateError;
use super::folder::RunFolderError;
use super::state::StateError;
use hadal_data::FeedError;
use hadal_model::{
    CheckpointError, ConfigError, GenerateError, PassError, SamplingError, TokenizerError,
};
use std::io;
use std::path::PathBuf;

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
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    /// The state cannot be saved or restored.
    #[error(transparent)]
    State(#[from] StateError),
    /// The model cannot be saved.
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
    #[error("cannot write the logs in {}: {reason}; the last checkpoint is intact", path.display())]
    Logs { path: PathBuf, reason: io::Error },
    /// The settings cannot be written down, so that no later change could be noticed.
    #[error("the settings cannot be written as TOML: {0}")]
    Settings(#[from] toml::ser::Error),
    /// The run was started with something else.
    #[error("{} cannot go on: its {what} changed since it was started; {remedy}", path.display())]
    Changed { path: PathBuf, what: &'static str, remedy: &'static str },
    /// The settings are not those of the model to continue from.
    #[error("{} has {found}, but the settings say {wanted}; leave [model] and the policy out, they come from the model", path.display())]
    OtherModel { path: PathBuf, found: String, wanted: String },
    /// The loss or the gradient is not finite.
    #[error("step {step}: the {problem}; parameters are untouched, and {} repeats it; lower the learning rate, or set failure.on_failure to \"skip\" or \"rollback\"", dump.display())]
    NotFinite { step: u64, problem: String, dump: PathBuf },
}

impl TrainError {
    /// Whether the request was wrong from the start, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Model(_) | Self::Feed(_) | Self::Folder(_) | Self::OtherModel { .. })
    }

    /// Whether the run's numbers are no longer finite: a finding about its settings, and nothing that broke.
    pub fn is_divergence(&self) -> bool {
        matches!(self, Self::NotFinite { .. })
    }
}
