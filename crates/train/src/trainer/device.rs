//! A step on another device than the CPU: gradients and what the optimiser remembers stay there.

use super::Trainer;
use crate::error::TrainError;
use crate::gradient::tensor_gradients;
use crate::observer::{Observer, StepReport};
use crate::optim::{DeviceOptimizer, TensorGradients, accumulate_tensors};
use hadal_kernels::ReadBackError;
use hadal_model::{Pass, Tally};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

impl Trainer {
    /// [`Trainer::one_step`] in tensors. Loss and norm are read together, once in a step.
    pub(super) fn device_step(
        &mut self,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Option<StepReport>, TrainError> {
        let started = Instant::now();
        let step = self.state.step;
        let mode = self.prepare()?;
        let (memory, precision) = (self.config.memory.memory(), self.config.train.precision);
        let parts = self.config.train.accumulate;
        let mut gradients = TensorGradients::new();
        let mut losses = Vec::new();
        let mut tally = Tally::default();
        for part in 0..parts {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let batch = self.batch(step, part)?;
            let tally = Some(&mut tally);
            let pass = Pass { mode: &mode, memory, precision, tally, ..Pass::default() };
            let loss = self.decoder.loss(&batch.input, &batch.target, &batch.scored, pass)?;
            losses.push(loss.clone().inner());
            let more = tensor_gradients(&self.decoder, loss);
            accumulate_tensors(&mut gradients, more, parts);
        }
        let Some(optimizer) = &mut self.on_device else { return Ok(None) };
        let (norm, losses) = optimizer.norm(&gradients, losses)?;
        let loss = losses.iter().sum::<f64>() / parts as f64;
        if !(loss.is_finite() && norm.is_finite()) {
            let problem = format!("loss is {loss} and the gradient's norm {norm}");
            self.recover(&problem, observer)?;
            return Ok(None);
        }
        let clip = self.config.optimizer.clip;
        let scale = (clip > 0.0 && norm > clip).then_some((clip / norm) as f32);
        let rate = self.schedule.rate(step);
        optimizer.step(&mut self.decoder, &mut gradients, scale, step, rate);
        let skip = self.skipper.as_ref().zip(self.state.skip.as_mut());
        let skip = skip.map(|(skipper, state)| skipper.learn(state, step, &tally));
        self.state.step += 1;
        Ok(Some(StepReport {
            step: self.state.step,
            steps: self.steps(),
            loss,
            gradient_norm: norm,
            rate,
            tokens: self.tokens_per_step(),
            // The backward pass costs twice the forward pass.
            flops: 3 * tally.cost(self.decoder.config()),
            skip,
            communication: None,
            time: started.elapsed(),
        }))
    }

    /// Makes the host's optimiser remember what the device's does, to be saved.
    pub(super) fn bring_to_host(&mut self) -> Result<(), ReadBackError> {
        match &self.on_device {
            Some(own) => own.store(&mut self.optimizer),
            None => Ok(()),
        }
    }

    /// The other way, after a state was restored.
    pub(super) fn bring_to_device(&mut self) {
        if self.on_device.is_some() {
            let device = self.decoder.device();
            self.on_device = Some(DeviceOptimizer::of(&self.optimizer, &device));
        }
    }
}

#[cfg(test)]
mod tests;
