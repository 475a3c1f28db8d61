//! What the files of a run say: steps, evaluations, texts, and the result.

use serde::{Deserialize, Deserializer, Serialize};

/// One step of training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// Steps done.
    pub step: u64,
    /// Mean loss of the step's batches, in nats.
    #[serde(deserialize_with = "present")]
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
    /// Share of the step's time that was spent with other ranks, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<f64>,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationPoint {
    /// Steps done.
    pub step: u64,
    /// Mean cross-entropy in nats.
    #[serde(deserialize_with = "present")]
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
    /// Share of the time that was spent with other ranks, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<f64>,
}

impl Outcome {
    /// Its name in a run's folder.
    pub const FILE: &str = "outcome.json";
}

/// A number that is not finite is `null`; no number at all is damage.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Option::deserialize(deserializer)
}
