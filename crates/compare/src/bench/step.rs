//! One training step, timed.

use super::error::BenchError;
use super::job::{Job, SkipRate};
use super::protocol::{Reading, StepTimes, Work};
use super::skip::let_skip;
use super::tokens::batch;
use super::weights::made_up;
use burn::module::Module;
use hadal_data::Batch;
use hadal_kernels::read_back;
use hadal_model::{Decoder, Device, Pass, PassError, Tally};
use hadal_train::gradient::{gradients, tensor_gradients};
use hadal_train::optim::{
    AdamWConfig, DeviceOptimizer, HiddenRule, Optimizer, OptimizerConfig, project,
};
use hadal_train::quality::scalar;
use std::time::Instant;

/// Slow enough that no policy diverges on noise without a warm-up of the rate.
const LEARNING_RATE: f64 = 3e-4;

/// Steps whose tokens are used to find thresholds.
const CALIBRATION: u64 = 2;

/// A model in training.
pub(super) struct Training {
    decoder: Decoder,
    optimizer: Optimizer,
    /// What moves the parameters on another device than the CPU.
    on_device: Option<DeviceOptimizer>,
    job: Job,
    steps: u64,
}

impl Training {
    pub(super) fn new(job: &Job) -> Result<Self, BenchError> {
        let mut decoder = made_up(job, &job.device.clone().autodiff())?;
        let config = OptimizerConfig {
            hidden: HiddenRule::Adamw,
            adamw: AdamWConfig { lr: LEARNING_RATE, ..AdamWConfig::default() },
            ..OptimizerConfig::default()
        };
        project(&mut decoder);
        if let SkipRate::Rate(_) = job.skip {
            let Job { batch: rows, seq, model, .. } = job;
            let own = (0..CALIBRATION).map(|step| batch(step, *rows, *seq, model.vocab_size));
            let mut plain = decoder.valid();
            let_skip(&mut plain, job, &own.collect::<Vec<_>>())?;
            decoder.set_skipping(plain.config().residual.skipping())?;
        }
        let optimizer = Optimizer::new(&config, &decoder);
        let on_device =
            (job.device != Device::flex()).then(|| DeviceOptimizer::of(&optimizer, &job.device));
        Ok(Self { decoder, optimizer, on_device, job: job.clone(), steps: 0 })
    }

    /// Makes the next step. Its data is ready before the clock starts.
    pub(super) fn step(&mut self) -> Result<StepTimes, BenchError> {
        let Job { batch: rows, seq, model, .. } = &self.job;
        let data = batch(self.steps, *rows, *seq, model.vocab_size);
        let mut times = self.learn(&data)?;
        if self.job.skip != SkipRate::Unasked {
            times.reading = Some(self.read(&data)?);
        }
        if !times.loss.is_finite() {
            return Err(BenchError::NotFinite { loss: times.loss, steps: self.steps });
        }
        self.steps += 1;
        Ok(times)
    }

    /// Everything that is timed: loss, gradient, update.
    fn learn(&mut self, data: &Batch) -> Result<StepTimes, BenchError> {
        let mut tally = (self.job.skip != SkipRate::Unasked).then(Tally::default);
        let started = Instant::now();
        let Job { memory, precision, .. } = self.job;
        let pass = Pass { memory, precision, tally: tally.as_mut(), ..Pass::default() };
        let loss = self.decoder.loss(&data.input, &data.target, &data.scored, pass)?;
        let value = scalar(&loss).map_err(PassError::from)?;
        let forward = started.elapsed();

        let (backward, all) = match &mut self.on_device {
            None => {
                let gradients = gradients(&self.decoder, loss);
                let backward = started.elapsed();
                self.optimizer.step(&mut self.decoder, &gradients, self.steps, 1.0);
                (backward, started.elapsed())
            }
            Some(optimizer) => {
                let device = &self.job.device;
                let wait = || device.sync().map_err(|error| BenchError::Device(error.to_string()));
                let mut gradients = tensor_gradients(&self.decoder, loss);
                wait()?;
                let backward = started.elapsed();
                optimizer.step(&mut self.decoder, &mut gradients, None, self.steps, 1.0);
                wait()?;
                (backward, started.elapsed())
            }
        };

        let ms = |time: std::time::Duration| 1e3 * time.as_secs_f64();
        Ok(StepTimes {
            step_ms: ms(all),
            forward_ms: ms(forward),
            backward_ms: ms(backward - forward),
            optimizer_ms: ms(all - backward),
            loss: value,
            work: tally.map(|tally| Work::whole(&tally, self.decoder.config())),
            reading: None,
        })
    }

    /// The same tokens without gradients, to the logits after each row.
    fn read(&self, data: &Batch) -> Result<Reading, BenchError> {
        let decoder = self.decoder.valid();
        let mut tally = Tally::default();
        let started = Instant::now();
        let (precision, tally_of) = (self.job.precision, Some(&mut tally));
        let pass = Pass { precision, only_last: true, tally: tally_of, ..Pass::default() };
        let logits = decoder.logits(&data.input, pass)?;
        std::hint::black_box(read_back(logits).map_err(PassError::from)?);
        let ms = 1e3 * started.elapsed().as_secs_f64();
        Ok(Reading { ms, work: Work::depth(&tally, decoder.config()) })
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
    fn every_sub_layer_skips_about_the_share_that_was_asked_for() {
        for (policy, share) in [("nag", 0.5), ("mgr:streams=2", 0.25), ("nag", 0.0)] {
            let mut job = job(policy);
            (job.batch, job.skip) = (8, SkipRate::Rate(share));
            let times = Training::new(&job).unwrap().step().unwrap();
            let (work, reading) = (times.work.unwrap(), times.reading.unwrap());
            for found in [work.skipped_share, reading.work.skipped_share] {
                assert!((found - share).abs() < 0.12, "{policy} {share}: {found}");
            }
            assert!(work.flop_ratio < 1.0 - 0.4 * share || share == 0.0, "{work:?}");
            assert!(reading.ms > 0.0);
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
