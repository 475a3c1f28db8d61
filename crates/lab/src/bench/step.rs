//! One training step, timed.

use super::error::BenchError;
use super::job::Job;
use super::protocol::StepTimes;
use super::tokens::batch;
use super::weights::made_up;
use crate::optim::{AdamWConfig, HiddenRule, Optimizer, OptimizerConfig, project};
use crate::train::Batch;
use crate::train::gradient::{gradients, loss, scalar};
use hadal_model::{Decoder, Device};
use std::time::Instant;

/// Slow enough that no policy diverges on noise without a warm-up of the rate.
const LEARNING_RATE: f64 = 3e-4;

/// A model in training.
pub(super) struct Training {
    decoder: Decoder,
    optimizer: Optimizer,
    job: Job,
    steps: u64,
}

impl Training {
    pub(super) fn new(job: &Job) -> Result<Self, BenchError> {
        let mut decoder = made_up(&job.model, &Device::flex().autodiff())?;
        decoder.remember(job.memory);
        let config = OptimizerConfig {
            hidden: HiddenRule::Adamw,
            adamw: AdamWConfig { lr: LEARNING_RATE, ..AdamWConfig::default() },
            ..OptimizerConfig::default()
        };
        project(&mut decoder);
        let optimizer = Optimizer::new(&config, &decoder);
        Ok(Self { decoder, optimizer, job: job.clone(), steps: 0 })
    }

    /// Makes the next step. Its data is ready before the clock starts.
    pub(super) fn step(&mut self) -> Result<StepTimes, BenchError> {
        let Job { batch: rows, seq, model, .. } = &self.job;
        let data = batch(self.steps, *rows, *seq, model.vocab_size);
        let times = self.learn(&data)?;
        if !times.loss.is_finite() {
            return Err(BenchError::NotFinite { loss: times.loss, steps: self.steps });
        }
        self.steps += 1;
        Ok(times)
    }

    /// Everything that is timed: loss, gradient, update.
    fn learn(&mut self, data: &Batch) -> Result<StepTimes, BenchError> {
        let started = Instant::now();
        let loss = loss(&self.decoder, data)?;
        let value = scalar(&loss);
        let forward = started.elapsed();

        let gradients = gradients(&self.decoder, loss);
        let backward = started.elapsed();

        self.optimizer.step(&mut self.decoder, &gradients, self.steps, 1.0);
        let all = started.elapsed();

        let ms = |time: std::time::Duration| 1e3 * time.as_secs_f64();
        Ok(StepTimes {
            step_ms: ms(all),
            forward_ms: ms(forward),
            backward_ms: ms(backward - forward),
            optimizer_ms: ms(all - backward),
            loss: value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::job;

    #[test]
    fn the_parts_add_up_to_the_step_and_the_loss_is_that_of_noise() {
        let mut training = Training::new(&job("mgr:streams=2")).unwrap();
        for _ in 0..2 {
            let times = training.step().unwrap();
            let sum = times.forward_ms + times.backward_ms + times.optimizer_ms;
            assert!((sum - times.step_ms).abs() < 1e-6);
            assert!(times.optimizer_ms > 0.0);
            assert!((times.loss - 19f64.ln()).abs() < 0.5, "{}", times.loss);
        }
    }

    #[test]
    fn every_step_moves_the_model() {
        let mut training = Training::new(&job("prenorm")).unwrap();
        let before = training.decoder.parameters();
        training.step().unwrap();
        assert_ne!(before, training.decoder.parameters());
    }
}
