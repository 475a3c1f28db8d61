//! Why there are no thresholds.

use crate::diagnose::DiagnoseError;
use hadal_files::FileError;
use hadal_model::{CheckpointError, ConfigError, PassError};
use std::path::PathBuf;

/// Why there are no thresholds.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum SkipError {
    /// A rate is not a share.
    #[error(
        "the rate is {rate}, but it is the share of FLOPs that is skipped: at least 0, and less than 1"
    )]
    Rate { rate: f64 },
    /// There is not that much to skip.
    #[error(
        "the rate is {rate}, but at most {most:.3} of these FLOPs can be skipped: the first sub-layers fill streams \
         and run for every token; ask for less"
    )]
    TooMuch { rate: f64, most: f64 },
    /// No sub-layer has a gate.
    #[error(
        "no sub-layer of this model has a gate: it has as many streams as sub-layers to fill them"
    )]
    NoGates,
    /// There is nothing to measure on besides what is calibrated on.
    #[error(
        "the data holds one sequence, but a sweep calibrates on one part of the data and measures on another; name a \
         longer text with --data"
    )]
    OneSequence,
    /// The model does not compute numbers.
    #[error(
        "the loss is {loss}: the model's numbers overflow, and no threshold of it would mean anything"
    )]
    NotFinite { loss: f64 },
    /// A model would be written over something else.
    #[error("{} is not empty; name another directory with --out, or --write to change a model in place", path.display())]
    Occupied { path: PathBuf },
    /// There is no finished model to change.
    #[error("{} holds no model yet, only checkpoints; name a directory for the model with --out", path.display())]
    Unfinished { path: PathBuf },
    /// What was measured before is of something else.
    #[error(
        "{} holds what was measured of another model, or by another version of hadal; write elsewhere with -o other, \
         or over it with --force",
        path.display()
    )]
    OtherMeasurements { path: PathBuf },
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The model or the data cannot be used.
    #[error(transparent)]
    Diagnose(#[from] DiagnoseError),
    /// The policy or the config does not take it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model cannot be run.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The model cannot be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl SkipError {
    /// Whether the request makes no sense, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Diagnose(error) => error.is_usage(),
            Self::NotFinite { .. } | Self::File(_) | Self::Pass(_) | Self::Checkpoint(_) => false,
            _ => true,
        }
    }
}
