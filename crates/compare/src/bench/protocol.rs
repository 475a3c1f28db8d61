//! What a worker and its parent say to each other, one line each.
//!
//! The worker starts with [`Ready`]. To every line [`STEP`] it answers [`StepTimes`], or
//! [`DecodeTimes`] if it was started to write text. To [`END`], or when its input is closed, it
//! answers [`Closing`] and ends. All answers are JSON.

use serde::{Deserialize, Serialize};

/// The request for one step.
pub const STEP: &str = "step";
/// The request to end.
pub const END: &str = "end";

/// The first line of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Parameters of its model.
    pub parameters: u64,
    /// The form of its kernels, or `plain`.
    pub simd: String,
    /// What the CPU calls itself; null where the system does not say.
    pub cpu: Option<String>,
    /// The machine before the first step.
    #[serde(flatten)]
    pub speeds: Speeds,
}

/// What the machine can do, in GFLOP/s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// A plain f32 matrix product on all threads of the job.
    pub gemm_gflops: f64,
    /// The same on one thread.
    pub gemm_gflops_thread: f64,
    /// Multiply-adds between registers in the form in use, on all threads at once.
    pub peak_gflops: f64,
    /// The same on one thread.
    pub peak_gflops_thread: f64,
}

impl Speeds {
    /// The better of two of each: other programs can only slow them down.
    pub fn better(self, other: Self) -> Self {
        Self {
            gemm_gflops: self.gemm_gflops.max(other.gemm_gflops),
            gemm_gflops_thread: self.gemm_gflops_thread.max(other.gemm_gflops_thread),
            peak_gflops: self.peak_gflops.max(other.peak_gflops),
            peak_gflops_thread: self.peak_gflops_thread.max(other.peak_gflops_thread),
        }
    }
}

/// One training step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The whole step.
    pub step_ms: f64,
    /// Time to the value of the loss.
    pub forward_ms: f64,
    /// Time from the loss to the gradient of every parameter.
    pub backward_ms: f64,
    /// Time from the gradient to a model that can make the next step.
    pub optimizer_ms: f64,
    /// The loss, to see that the model learns.
    pub loss: f64,
    /// The work of the step, where skip rates are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// The same tokens read without gradients, where skip rates are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<Reading>,
}

/// The work that is left when tokens skip.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// FLOPs, relative to those when no token skips.
    pub flop_ratio: f64,
    /// Share of the skippable FLOPs that were skipped.
    pub skipped_share: f64,
}

/// A pass to the last logits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Its time.
    pub ms: f64,
    /// Its work.
    pub work: Work,
}

/// One text: a prompt read and some tokens written, at several lengths of context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeTimes {
    /// Time to read the longest prompt.
    pub prefill_ms: f64,
    /// By length of context, shortest first.
    pub contexts: Vec<ContextTimes>,
    /// The work of reading the longest prompt, where skip rates are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<Work>,
    /// The work of writing after it, where skip rates are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writing: Option<Work>,
}

/// Tokens written after a context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextTimes {
    /// Tokens in the cache before the first of them.
    pub context: usize,
    /// Each token's time.
    pub ms: Vec<f64>,
}

/// The last line of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Closing {
    /// The most memory that the process ever held, in MiB; `None` where that is not known.
    pub peak_rss_mb: Option<f64>,
    /// The machine after the last step.
    #[serde(flatten)]
    pub speeds: Speeds,
}
