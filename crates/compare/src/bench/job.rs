//! What a worker does.

use hadal_model::{ConfigError, Device, ModelConfig, ModelCost, Precision};
use hadal_residual::Memory;

/// What is timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Training steps.
    #[default]
    Training,
    /// Reading a prompt and writing tokens after it.
    Decoding,
}

/// The part that a job has in a comparison of skip rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum SkipRate {
    /// None: nothing is compared.
    #[default]
    Unasked,
    /// The same model when no token skips.
    Dense,
    /// Tokens skip this share of every sub-layer's FLOPs.
    Rate(f64),
}

/// What a worker does.
#[derive(Clone, Debug)]
pub struct Job {
    /// The model; its weights are made up.
    pub model: ModelConfig,
    /// What is timed.
    pub activity: Activity,
    /// Sequences of a training step.
    pub batch: usize,
    /// Tokens of a sequence, or of the longest prompt.
    pub seq: usize,
    /// Threads to run on.
    pub threads: usize,
    /// Without fused operations.
    pub plain: bool,
    /// What matrix products round.
    pub precision: Precision,
    /// What the backward pass keeps.
    pub memory: Memory,
    /// Which tokens skip.
    pub skip: SkipRate,
    /// Where the model is.
    pub device: Device,
}

impl Job {
    /// Tokens of a training step.
    pub fn tokens(&self) -> usize {
        self.batch * self.seq
    }

    /// FLOPs of a training step that the model itself needs: three times the forward pass of attention, MLPs and head
    /// at sequences of `seq`. What a policy adds is overhead, not use.
    pub fn flops(&self) -> Result<f64, ConfigError> {
        let model = ModelConfig { max_seq_len: self.seq, ..self.model.clone() };
        let cost = ModelCost::of(&model)?;
        let branches = cost.forward_flops_per_token - cost.residual_flops_per_token;
        Ok(3.0 * branches as f64 * self.tokens() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Shape;

    #[test]
    fn flops_are_those_of_the_branches_at_the_length_of_a_sequence() {
        let flops = |policy: &str, longest: usize| {
            let model = Shape::standard().model(Some(&policy.parse().unwrap()), longest);
            let job = Job { batch: 8, seq: 256, model, ..crate::bench::testing::job(policy) };
            job.flops().unwrap()
        };
        let (d, ff, tokens) = (256.0, 1024.0, 2048.0);
        // Four projections, twice half the context, two MLP matrices, the head.
        let block = 8.0 * d * d + 2.0 * d * 257.0 + 4.0 * d * ff;
        let forward = 8.0 * block + 2.0 * d * 512.0;
        assert_eq!(flops("prenorm", 256), 3.0 * tokens * forward);
        assert_eq!(flops("mgr:streams=8", 256), flops("prenorm", 256));
        assert_eq!(flops("prenorm", 4096), flops("prenorm", 256));
    }
}
