//! The runs of tuning, before anything is started.

use super::grid::GridPoint;
use super::section::{Per, Tune};
use crate::error::CompareError;
use crate::plan::{Pace, PlannedRun};
use crate::suite::{Suite, Variant};
use serde::Serialize;

/// A variant, at one depth or for all, and what may be best for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Search {
    /// The variant's place in the suite.
    pub(crate) variant: usize,
    /// Where its runs are made.
    pub(crate) depth: Option<usize>,
    pub(crate) points: Vec<GridPoint>,
}

/// The runs of one round.
#[derive(Clone, Debug, Serialize)]
pub struct TuningRound {
    /// Counted from 1.
    pub round: usize,
    /// Whether these are its points. Else they are as many as will go on, and which ones is not known before.
    pub is_certain: bool,
    /// A run for each point and seed.
    pub runs: Vec<PlannedRun>,
}

impl Tune {
    /// Points that begin a round, of as many as there were at the start.
    pub(crate) fn at_round(&self, round: usize, points: usize) -> usize {
        (1..round).fold(points, |left, _| self.survivors(left))
    }

    /// Points that go on. A single one has nothing left to be compared with.
    pub(crate) fn survivors(&self, points: usize) -> usize {
        match (points as f64 * self.keep).ceil() as usize {
            _ if points <= 1 => 0,
            left => left.max(1),
        }
    }

    /// Steps of a round as a share of a final run's.
    pub(crate) fn share_of(&self, round: usize) -> f64 {
        self.share * self.keep.powi((self.rounds - round) as i32)
    }

    /// Where the choice that is made at a depth holds.
    pub(crate) fn holds_at(&self, depth: Option<usize>) -> Option<usize> {
        match self.per {
            Per::Variant => None,
            Per::Cell => depth,
        }
    }
}

impl Suite {
    /// Everything that is searched, the baseline first.
    pub(crate) fn searches(&self) -> Vec<Search> {
        let Some(tune) = &self.tune else { return Vec::new() };
        let depths = match tune.per {
            Per::Variant => vec![tune.depth],
            Per::Cell => self.each_depth(),
        };
        let mut order: Vec<usize> = (0..self.variants.len()).collect();
        order.sort_by_key(|&variant| self.variants[variant].name != self.baseline);
        let mut searches = Vec::new();
        for depth in depths {
            for &variant in &order {
                let points = tune.points(variant);
                if !points.is_empty() {
                    searches.push(Search { variant, depth, points });
                }
            }
        }
        searches
    }

    /// One run for each seed of tuning, at a point.
    pub(crate) fn tuning_runs(
        &self,
        (variant, depth): (&Variant, Option<usize>),
        point: &GridPoint,
        round: usize,
        flops: Option<f64>,
        pace: &Pace,
    ) -> Result<Vec<PlannedRun>, CompareError> {
        let Some(tune) = &self.tune else { return Ok(Vec::new()) };
        let suite = self.untuned().with_choice(&variant.name, depth, point.clone());
        let within = |error| match error {
            CompareError::Settings { origin, reason } => {
                CompareError::Settings { origin: format!("{origin}, [tune]"), reason }
            }
            other => other,
        };
        // Seeds change no cost.
        let whole = suite.budgeted(variant, depth, tune.seeds[0], flops, pace).map_err(within)?;
        let shortened = shortened(whole, tune.share_of(round));
        let with_seed = |&seed: &u64| {
            let mut run = shortened.clone();
            run.seed = seed;
            run.config.seed = seed;
            run.name = format!("{}-{}-n{}-s{seed}", run.cell(), point.slug(), run.steps);
            run
        };
        Ok(tune.seeds.iter().map(with_seed).collect())
    }

    /// Every round of tuning: what the runs are, as far as it is known, and what they cost. Nothing without `[tune]`.
    pub fn tuning(&self, pace: &Pace) -> Result<Vec<TuningRound>, CompareError> {
        let Some(tune) = &self.tune else { return Ok(Vec::new()) };
        let flops = self.budget_flops()?;
        let searches = self.searches();
        let mut rounds = Vec::new();
        for round in 1..=tune.rounds {
            let mut runs = Vec::new();
            for search in &searches {
                let cell = (&self.variants[search.variant], search.depth);
                let left = tune.at_round(round, search.points.len());
                for point in &search.points[..left] {
                    runs.extend(self.tuning_runs(cell, point, round, flops, pace)?);
                }
            }
            by_seed(&mut runs, tune);
            if !runs.is_empty() {
                rounds.push(TuningRound { round, is_certain: round == 1, runs });
            }
        }
        Ok(rounds)
    }
}

/// All runs of a seed before the next.
fn by_seed(runs: &mut [PlannedRun], tune: &Tune) {
    runs.sort_by_key(|run| tune.seeds.iter().position(|seed| *seed == run.seed));
}

/// The run in miniature: what is counted in steps shrinks with them.
fn shortened(mut run: PlannedRun, share: f64) -> PlannedRun {
    if share >= 1.0 {
        return run;
    }
    let of = |steps: u64| (steps as f64 * share).ceil() as u64;
    run.set_steps(of(run.steps).max(1));
    let config = &mut run.config;
    config.schedule.warmup_steps = of(config.schedule.warmup_steps);
    config.train.gain_warmup = of(config.train.gain_warmup);
    run
}
