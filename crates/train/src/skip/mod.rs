//! Training in which tokens skip sub-layers at a given rate.
//!
//! Thresholds follow the rate that the training passes themselves have (`controller.rs`), over a course that begins
//! densely and carefully and ends with the rule of the finished model (`course.rs`); sub-layers that no token would run
//! any more are kept alive (`guard.rs`). NAG's paper says that a threshold decides, but not how it is found: all of
//! this is our own definition.

mod config;
mod controller;
mod course;
mod guard;
mod scopes;
mod smallest;
#[cfg(test)]
mod testing;

pub use config::{SkipConfig, SkipGate, SkipPer};

use super::config::RunConfig;
use controller::Controller;
use course::Course;
use guard::Guard;
use hadal_cpu::splitmix::{STEP, finalise};
use hadal_data::Batch;
use hadal_model::{ConfigError, Decoder, ModelConfig, PassError, Tally};
use hadal_residual::{Forced, Skipping};
use scopes::Scopes;
use serde::{Deserialize, Serialize};
use smallest::smallest_gates;

/// What skipping remembers from step to step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipState {
    controller: Controller,
    guard: Guard,
}

/// How skipping went in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SkipReport {
    /// Share of the skippable FLOPs that were skipped.
    pub rate: f64,
    /// What it should have been.
    pub target: f64,
    /// The mean of all thresholds.
    pub threshold: f64,
}

/// Decides which tokens skip during a run.
#[derive(Clone, Debug)]
pub(crate) struct Skipper {
    config: SkipConfig,
    course: Course,
    scopes: Scopes,
    /// The model, with its final treatment of the keys of tokens that skip.
    model: ModelConfig,
    rates: [f64; 2],
    seed: u64,
}

impl Skipper {
    /// `None` if the run has no section `[skip]`. Refuses what the model cannot do.
    pub(crate) fn new(
        config: &RunConfig,
        model: &ModelConfig,
        seq_len: usize,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(skip) = &config.skip else { return Ok(None) };
        let mut model = model.clone();
        model.residual.set_skipping(Some(Skipping { keys: skip.kv, ..Skipping::below(0.0) }))?;
        model.check()?;
        let scopes = Scopes::new(skip.per, &model, seq_len);
        if skip.rate > 0.0 && skip.rate >= scopes.most() {
            let always = model.residual.always_run();
            return Err(ConfigError::Field {
                field: "skip.rate",
                value: skip.rate.to_string(),
                reason: format!(
                    "the first {always} sub-layers always run, so it must be less than {:.3}; use fewer streams or more blocks",
                    scopes.most()
                ),
            });
        }
        let steps = config.steps(seq_len);
        Ok(Some(Self {
            config: skip.clone(),
            course: Course::new(skip, steps),
            scopes,
            model,
            rates: [skip.eta(steps), skip.ema],
            seed: config.seed,
        }))
    }

    /// The state before the first step: thresholds are the smallest gates that a model without skipping has.
    pub(crate) fn start(&self, decoder: &Decoder, batch: &Batch) -> Result<SkipState, PassError> {
        let gates = smallest_gates(decoder, batch, self.scopes.sites())?;
        let smallest = |scope: usize, protected: bool| {
            let own =
                (0..gates.len()).filter(|&site| self.scopes.at(site, protected) == Some(scope));
            own.filter_map(|site| gates[site]).reduce(f32::min)
        };
        let protected = self.course.protects(0);
        let start = |scope| smallest(scope, protected).or_else(|| smallest(scope, false));
        let starts: Vec<_> = (0..self.scopes.count()).map(start).collect();
        let guard = Guard::new(self.scopes.sites());
        Ok(SkipState { controller: Controller::start(&starts), guard })
    }

    /// The rule after `step` steps, for gates at this share of their full size; `None` while no token may skip.
    pub(crate) fn skipping(&self, state: &SkipState, step: u64, warmth: f64) -> Option<Skipping> {
        if self.course.target(step) == 0.0 {
            return None;
        }
        let each = state.controller.thresholds();
        let each: Vec<f64> = each.into_iter().map(|threshold| warmth * threshold).collect();
        Some(Skipping {
            thresholds: self.scopes.thresholds(&each, self.course.protects(step)),
            shrink: self.course.shrink(step),
            keys: self.config.kv,
        })
    }

    /// The tokens that are made to run at a step.
    pub(crate) fn forced(&self, state: &SkipState, step: u64) -> Forced {
        let seed = finalise(self.seed.wrapping_add(finalise(step.wrapping_mul(STEP))));
        Forced { shares: state.guard.shares(self.config.guard_share), seed }
    }

    /// Learns from what happened in a step. Tokens that were made to run are counted like all others: they are too few
    /// to matter.
    pub(crate) fn learn(&self, state: &mut SkipState, step: u64, tally: &Tally) -> SkipReport {
        let (target, protected) = (self.course.target(step), self.course.protects(step));
        let SkipState { controller, guard } = state;
        let report = SkipReport {
            rate: tally.skipped_share(&self.model),
            target: self.scopes.overall(target, protected),
            threshold: if target == 0.0 { 0.0 } else { controller.mean_threshold() },
        };
        let measured = self.scopes.measured(tally, &self.model, protected);
        for (scope, measured) in measured.into_iter().enumerate() {
            controller.follow(scope, self.scopes.own_target(scope, target), measured, self.rates);
        }
        guard.count(tally, self.config.guard_share, self.config.guard_steps);
        report
    }

    /// The intended mean rate over the whole run.
    fn mean_rate(&self) -> f64 {
        let [careful, free] = self.course.mean_targets();
        self.scopes.overall(careful, true) + self.scopes.overall(free, false)
    }
}

/// Forward FLOPs per token that a run should save by skipping, as a mean over its steps.
pub(crate) fn saved_flops_per_token(
    config: &RunConfig,
    model: &ModelConfig,
    seq_len: usize,
) -> Result<f64, ConfigError> {
    let Some(skipper) = Skipper::new(config, model, seq_len)? else { return Ok(0.0) };
    let all = Tally::everybody(&skipper.model, 1, seq_len);
    Ok(skipper.mean_rate() * all.skippable(&skipper.model) as f64 / seq_len as f64)
}

#[cfg(test)]
mod tests;
