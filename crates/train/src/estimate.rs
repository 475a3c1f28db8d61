//! What a run will take, before it starts.

use super::config::RunConfig;
use super::error::TrainError;
use super::skip::saved_flops_per_token;
use super::trainer::model_config;
use burn::tensor::{Device, Tensor};
use hadal_model::{ConfigError, ModelConfig, ModelCost};
use std::time::{Duration, Instant};

/// The cost of a whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cost of the model.
    pub cost: ModelCost,
    /// Optimiser steps.
    pub steps: u64,
    /// Tokens of a step.
    pub tokens_per_step: u64,
    /// Tokens of the run.
    pub tokens: u64,
    /// FLOPs of the run, forward and backward.
    pub flops: f64,
    /// Bytes: parameters, gradients, optimiser state, and the activations of one pass with attention
    /// weights kept.
    pub memory: f64,
    /// FLOP/s of this machine's matrix product.
    pub peak: f64,
    /// A rough guess.
    pub time: Duration,
}

/// Assumed share of the matrix peak with the fused kernels; small models reach less, large ones more.
const UTILISATION: f64 = 0.5;

/// Estimates a run.
pub fn plan(config: &RunConfig) -> Result<Plan, TrainError> {
    let (model, seq_len) = match (config.model.vocab_size, config.train.seq_len) {
        // Settings that say everything can be planned before there is data.
        (Some(vocabulary), Some(seq_len)) => {
            let model = config.model.resolve(&config.residual, vocabulary, seq_len);
            model.check_fresh()?;
            (model, seq_len)
        }
        _ => {
            let feed = config.open_feed()?;
            (model_config(config, &feed)?, feed.seq_len())
        }
    };
    let cost = ModelCost::of(&model)?;
    let (steps, tokens_per_step) = (config.steps(seq_len), config.tokens_per_step(seq_len));
    let tokens = steps * tokens_per_step;
    let flops = flops_per_token(config, &model, seq_len)? * tokens as f64;
    let in_pass = (config.train.batch * seq_len) as f64;
    let weights = (model.n_layers * model.n_heads * seq_len * 4) as f64;
    let peak = matmul_flops_per_second();
    Ok(Plan {
        cost,
        steps,
        tokens_per_step,
        tokens,
        flops,
        // Values, gradients and two moments, each also once outside the model.
        memory: 24.0 * cost.parameters.total() as f64
            + in_pass * (3.0 * cost.activation_bytes_per_token as f64 + 2.0 * weights),
        peak,
        time: Duration::from_secs_f64(flops / (UTILISATION * peak)),
    })
}

/// FLOPs of learning from a token, forward and backward, as a mean over a run on sequences of this length; what tokens
/// skip costs nothing.
pub fn flops_per_token(
    config: &RunConfig,
    model: &ModelConfig,
    seq_len: usize,
) -> Result<f64, ConfigError> {
    // A model for longer texts would overstate what attention costs.
    let model = ModelConfig { max_seq_len: seq_len, ..model.clone() };
    let forward = ModelCost::of(&model)?.forward_flops_per_token as f64;
    Ok(3.0 * (forward - saved_flops_per_token(config, &model, seq_len)?))
}

/// The speed of this machine's matrix product, the best of a few.
pub fn matmul_flops_per_second() -> f64 {
    const SIZE: usize = 512;
    let x = Tensor::<2>::ones([SIZE, SIZE], &Device::flex());
    let best = (0..5)
        .map(|_| {
            let started = Instant::now();
            let product = x.clone().matmul(x.clone());
            // Reading one element makes sure that the work is done.
            let _ = product.narrow(0, 0, 1).into_data();
            started.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    2.0 * (SIZE as f64).powi(3) / best
}
