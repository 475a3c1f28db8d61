//! What a run will take, before it starts.

use super::config::RunConfig;
use super::error::TrainError;
use super::plan::{Counted, Job};
use super::skip::saved_flops_per_token;
use super::start::check_model;
use super::trainer::model_config;
use burn::tensor::{Device, Tensor};
use hadal_data::FeedError;
use hadal_kernels::linear;
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
    /// Tokens of the data; `None` where it makes any number or is not there yet.
    pub data: Option<u64>,
    /// The model.
    pub model: ModelConfig,
    /// FLOPs of the run, forward and backward.
    pub flops: f64,
    /// Bytes at the fullest moment, with the program ([`crate::plan`]).
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
    let (model, seq_len, data) = match (config.model.vocab_size, config.train.seq_len, &config.from)
    {
        // Settings that say everything can be planned before there is data.
        (Some(vocabulary), Some(seq_len), None) => {
            let model = config.model.resolve(&config.residual, vocabulary, seq_len);
            model.check_fresh()?;
            (model, seq_len, planned_data(config)?)
        }
        _ => {
            let feed = config.open_feed()?;
            let model = model_config(config, &feed)?;
            check_model(config, &model, &feed)?;
            (model, feed.seq_len(), feed.tokens())
        }
    };
    let cost = ModelCost::of(&model)?;
    let (steps, tokens_per_step) = (config.steps(seq_len), config.tokens_per_step(seq_len));
    let tokens = steps * tokens_per_step;
    let flops = flops_per_token(config, &model, seq_len)? * tokens as f64;
    let job = Job::of(config, model.clone(), seq_len);
    let memory = Counted::new(job)?.memory_alone();
    let peak = matmul_flops_per_second();
    Ok(Plan {
        cost,
        data,
        steps,
        tokens_per_step,
        tokens,
        flops,
        memory: memory as f64,
        peak,
        model,
        time: Duration::from_secs_f64(flops / (UTILISATION * peak)),
    })
}

/// Tokens of the data, where it is there already. A text that is not prepared will not be of use later either.
fn planned_data(config: &RunConfig) -> Result<Option<u64>, TrainError> {
    match config.open_feed() {
        Ok(feed) => Ok(feed.tokens()),
        Err(error @ FeedError::Unprepared { .. }) => Err(error.into()),
        Err(_) => Ok(None),
    }
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

/// The speed of this machine's matrix product: the best of a few, with the kernel that models spend their time in.
pub fn matmul_flops_per_second() -> f64 {
    const SIZE: usize = 512;
    const TIMES: usize = 12;
    let x = Tensor::<3>::ones([1, SIZE, SIZE], &Device::flex());
    let weight = Tensor::<2>::ones([SIZE, SIZE], &Device::flex());
    let best = (0..TIMES)
        .map(|_| {
            let started = Instant::now();
            let product = linear(x.clone(), weight.clone());
            // Reading one element makes sure that the work is done.
            let _ = product.narrow(1, 0, 1).into_data();
            started.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    2.0 * (SIZE as f64).powi(3) / best
}
