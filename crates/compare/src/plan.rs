//! The plan of a suite: every run with its settings, before anything is started.

use super::error::CompareError;
use super::shape::Shape;
use super::suite::{Budget, Suite, Variant};
use hadal_model::ModelCost;
use hadal_train::estimate::flops_per_token;
use hadal_train::{RunConfig, TrainError, model_config};
use serde::Serialize;
use std::collections::BTreeMap;

/// One run of a suite.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedRun {
    /// Its folder under `runs`.
    pub name: String,
    /// The variant.
    pub variant: String,
    /// Blocks, if the suite goes through several numbers of them.
    pub depth: Option<usize>,
    /// The seed.
    pub seed: u64,
    /// Optimiser steps.
    pub steps: u64,
    /// Tokens of a step.
    pub tokens_per_step: u64,
    /// FLOPs of a step, forward and backward, as a mean over the run; what is to be skipped costs nothing.
    pub flops_per_step: f64,
    /// Parameters of its model.
    pub parameters: u64,
    /// The shape of its model, if the suite chooses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Everything that decides it.
    #[serde(skip)]
    pub config: RunConfig,
}

impl PlannedRun {
    /// Tokens of the whole run.
    pub fn tokens(&self) -> u64 {
        self.steps * self.tokens_per_step
    }

    /// FLOPs of the whole run.
    pub fn flops(&self) -> f64 {
        self.flops_per_step * self.steps as f64
    }

    /// Changes the number of steps.
    pub(super) fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
        self.config.train.steps = Some(steps);
        self.config.train.tokens = None;
    }

    /// The name of the variant at its depth.
    pub fn cell(&self) -> String {
        cell(&self.variant, self.depth)
    }
}

/// Seconds of a step of each variant at each depth, by [`PlannedRun::cell`].
pub type Pace = BTreeMap<String, f64>;

pub(super) fn cell(variant: &str, depth: Option<usize>) -> String {
    depth.map_or_else(|| variant.to_owned(), |depth| format!("{variant}-d{depth}"))
}

impl Suite {
    /// The depths to go through; one of `None` if there is only the model's own.
    pub fn each_depth(&self) -> Vec<Option<usize>> {
        match self.depths.as_slice() {
            [] => vec![None],
            depths => depths.iter().copied().map(Some).collect(),
        }
    }

    /// Every run, all of a seed before the next and the baseline first, so that there is something to compare early.
    /// A budget of minutes needs the variants' pace.
    pub fn plan(&self, pace: &Pace) -> Result<Vec<PlannedRun>, CompareError> {
        let flops = self.budget_flops()?;
        let mut variants: Vec<&Variant> = self.variants.iter().collect();
        variants.sort_by_key(|variant| variant.name != self.baseline);
        let mut runs = Vec::new();
        for &seed in &self.seeds {
            for depth in self.each_depth() {
                for &variant in &variants {
                    runs.push(self.budgeted(variant, depth, seed, flops, pace)?);
                }
            }
        }
        Ok(runs)
    }

    /// The FLOPs that every run may spend, if the budget is one of FLOPs.
    pub(super) fn budget_flops(&self) -> Result<Option<f64>, CompareError> {
        match self.budget {
            Budget::Flops(flops) => Ok(Some(flops)),
            Budget::BaselineFlops => Ok(Some(self.baseline_flops()?)),
            Budget::Steps | Budget::Minutes(_) => Ok(None),
        }
    }

    /// One run with as many steps as the budget pays for.
    pub(super) fn budgeted(
        &self,
        variant: &Variant,
        depth: Option<usize>,
        seed: u64,
        flops: Option<f64>,
        pace: &Pace,
    ) -> Result<PlannedRun, CompareError> {
        let mut run = self.run(variant, depth, seed)?;
        if let Some(steps) = self.affordable(&run, flops, pace)? {
            run.set_steps(steps);
        }
        Ok(run)
    }

    /// One short run of each variant at each depth, to measure their pace.
    pub(super) fn pacers(&self, steps: u64) -> Result<Vec<PlannedRun>, CompareError> {
        let seed = self.seeds[0];
        let mut runs = Vec::new();
        for depth in self.each_depth() {
            for variant in &self.variants {
                let mut run = self.run(variant, depth, seed)?;
                run.name = run.cell();
                run.set_steps(steps);
                run.config.eval.every_steps = 0;
                run.config.eval.batches = 1;
                runs.push(run);
            }
        }
        Ok(runs)
    }

    /// Steps that a budget other than steps pays for.
    fn affordable(
        &self,
        run: &PlannedRun,
        flops: Option<f64>,
        pace: &Pace,
    ) -> Result<Option<u64>, CompareError> {
        let (steps, field) = match (self.budget, flops) {
            (Budget::Minutes(minutes), _) => {
                let Some(seconds) = pace.get(&run.cell()) else {
                    let reason = "it was not measured; remove pace.json from the suite's folder";
                    return Err(CompareError::NoPace { run: run.cell(), reason: reason.into() });
                };
                (60.0 * minutes / seconds, "budget.minutes")
            }
            (_, Some(flops)) => (flops / run.flops_per_step, "budget.flops"),
            (_, None) => return Ok(None),
        };
        // Rounded to the nearest, so that no variant always gets less; the baseline's own FLOPs are exactly its own
        // steps.
        let steps = steps.round();
        if !(1.0..=1e15).contains(&steps) {
            let problem = format!("would give {} {steps} steps; write another amount", run.cell());
            let (origin, field) = (self.origin().into(), field.into());
            return Err(CompareError::Refused { origin, field, problem });
        }
        Ok(Some(steps as u64))
    }

    fn baseline_flops(&self) -> Result<f64, CompareError> {
        // What is found for the baseline must not change what the others may spend.
        Ok(self.untuned().run(self.baseline_variant(), None, self.seeds[0])?.flops())
    }

    pub(super) fn baseline_variant(&self) -> &Variant {
        let is_baseline = |variant: &&Variant| variant.name == self.baseline;
        self.variants.iter().find(is_baseline).expect("parsing has looked for it")
    }

    fn run(
        &self,
        variant: &Variant,
        depth: Option<usize>,
        seed: u64,
    ) -> Result<PlannedRun, CompareError> {
        let config = self.config(variant, depth, seed)?;
        let name = format!("{}-s{seed}", cell(&variant.name, depth));
        let Cost { flops_per_token, parameters, seq_len } =
            cost(&config).map_err(|reason| CompareError::Unplanned {
                origin: self.origin().into(),
                run: name.clone(),
                reason: Box::new(reason),
            })?;
        let tokens_per_step = config.tokens_per_step(seq_len);
        Ok(PlannedRun {
            name,
            variant: variant.name.clone(),
            depth,
            seed,
            steps: config.steps(seq_len),
            tokens_per_step,
            flops_per_step: flops_per_token * tokens_per_step as f64,
            parameters,
            shape: self.shape(variant, depth)?,
            config,
        })
    }
}

struct Cost {
    flops_per_token: f64,
    parameters: u64,
    seq_len: usize,
}

fn cost(config: &RunConfig) -> Result<Cost, TrainError> {
    let feed = config.open_feed()?;
    let model = model_config(config, &feed)?;
    let seq_len = feed.seq_len();
    Ok(Cost {
        flops_per_token: flops_per_token(config, &model, seq_len)?,
        parameters: ModelCost::of(&model)?.parameters.total(),
        seq_len,
    })
}
