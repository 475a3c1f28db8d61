//! Why nothing was measured.

use hadal_model::{ConfigError, PassError};
use hadal_study::skip::SkipError;
use std::io;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum BenchError {
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ConfigError),
    /// The model cannot be run.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// What a device holds cannot be read, or it cannot be waited for.
    #[error("{0}")]
    Device(String),
    /// There are no thresholds.
    #[error(transparent)]
    Skip(#[from] SkipError),
    /// Times of a model that computes no finite numbers mean nothing.
    #[error("the loss is {loss} after {steps} steps, so its times would mean nothing")]
    NotFinite { loss: f64, steps: u64 },
    /// There are no threads to run on.
    #[error("cannot start {threads} threads: {reason}")]
    Threads { threads: usize, reason: String },
    /// A worker cannot talk to its parent.
    #[error("cannot talk to the process that asked for the benchmark: {0}")]
    Parent(#[from] io::Error),
    /// A worker was asked for something that it does not know.
    #[error("`{request}` is no request; write step or end")]
    UnknownRequest { request: String },
    /// A worker cannot be started.
    #[error("cannot start the worker of {kind}: {reason}")]
    NotStarted { kind: String, reason: io::Error },
    /// A worker ended before it was done.
    #[error("the worker of {kind} died ({status}){said}")]
    Died { kind: String, status: String, said: String },
    /// A worker answered something else than was asked.
    #[error("the worker of {kind} answered `{answer}`: {reason}")]
    Nonsense { kind: String, answer: String, reason: serde_json::Error },
}

impl BenchError {
    /// Whether the requested model cannot be built, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Model(_) => true,
            Self::Skip(error) => error.is_usage(),
            _ => false,
        }
    }
}
