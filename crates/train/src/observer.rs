//! What a run reports to its observer.

use super::evaluate::Evaluation;
use super::skip::SkipReport;
use hadal_data::Feed;
use hadal_model::Decoder;
use hadal_residual::StepMode;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What happened in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Mean loss of the step's batches.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// The schedule's factor on every rate.
    pub rate: f64,
    /// Tokens of the step.
    pub tokens: u64,
    /// FLOPs of the step, forward and backward, for the tokens that ran.
    pub flops: u64,
    /// How skipping went, if there is any.
    pub skip: Option<SkipReport>,
    /// Time that was spent with other ranks, if there are any: sending, waiting, adding up.
    pub communication: Option<Duration>,
    /// Time it took.
    pub time: Duration,
}

/// A run between two steps.
#[derive(Clone, Copy, Debug)]
pub struct Midway<'a> {
    /// Steps done.
    pub step: u64,
    /// The model as it would be used now, with autodiff.
    pub decoder: &'a Decoder,
    /// How it would be used.
    pub mode: &'a StepMode,
    /// The data; only the held-out part may be looked at.
    pub feed: &'a Feed,
    /// The run's folder.
    pub folder: &'a Path,
    /// The run's name.
    pub name: &'a str,
    /// How many batches the settings grant.
    pub batches: usize,
}

/// Receives reports on how a run goes.
pub trait Observer {
    /// After every step.
    fn stepped(&mut self, _report: &StepReport) {}
    /// After every evaluation.
    fn evaluated(&mut self, _step: u64, _evaluation: &Evaluation) {}
    /// After every sample.
    fn sampled(&mut self, _step: u64, _text: &str) {}
    /// When the settings want the model to be looked into. Training is the same whatever this does.
    fn diagnose(&mut self, midway: &Midway<'_>) {
        self.recovered(&format!("step {}: no diagnosis: this program has none", midway.step));
    }
    /// After every checkpoint.
    fn saved(&mut self, _step: u64, _path: &Path) {}
    /// When a step was left out or taken back.
    fn recovered(&mut self, _message: &str) {}
}

/// Ignores every report.
pub(crate) struct Unobserved;

impl Observer for Unobserved {}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Finished {
    /// All steps are done and the model is saved.
    Done {
        /// The last evaluation.
        evaluation: Evaluation,
        /// Where the model is.
        model: PathBuf,
    },
    /// It was asked to stop; the state is saved.
    Interrupted {
        /// Steps done.
        step: u64,
    },
}
