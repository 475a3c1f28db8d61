//! What tuning found, in numbers.

use super::choice::{Edge, edges, mean_loss, ranked};
use super::grid::{Axis, GridPoint};
use super::plan::Search;
use super::section::Per;
use crate::earlier::Earlier;
use crate::plan::PlannedRun;
use crate::results::{Results, RunResult};
use crate::suite::Suite;
use hadal_report::run::{Run, steps_done};
use serde::Serialize;
use serde::ser::Serializer;
use std::ops::AddAssign;
use std::path::Path;

/// All of tuning.
#[derive(Clone, Debug, Serialize)]
pub struct Tuning {
    /// Seeds of its runs.
    pub seeds: Vec<u64>,
    /// What one choice holds for.
    pub per: Per,
    /// The depth at which the choice for all depths was made.
    pub depth: Option<usize>,
    /// Steps of the last round as a share of a final run's.
    pub share: f64,
    /// Rounds.
    pub rounds: usize,
    /// Share of the points that went on to the next round.
    pub keep: f64,
    /// Its runs.
    pub runs: usize,
    /// FLOPs of all runs, as planned.
    pub planned_flops: f64,
    /// What the runs took.
    pub spent: Spent,
    /// Each variant that was tuned, at each depth if it was.
    pub variants: Vec<TunedVariant>,
    /// Variants without a grid.
    pub untuned: Vec<String>,
    /// What was there before.
    pub earlier: Earlier,
}

/// What runs took, those that came to nothing as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spent {
    /// FLOPs of training, as counted.
    pub flops: f64,
    /// Tokens learnt from.
    pub tokens: u64,
    /// Time of training steps, added up.
    pub seconds: f64,
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.flops += other.flops;
        self.tokens += other.tokens;
        self.seconds += other.seconds;
    }
}

/// A variant with everything that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct TunedVariant {
    /// The variant.
    pub variant: String,
    /// Its depth, if each was tuned.
    pub depth: Option<usize>,
    /// The keys with their values.
    #[serde(serialize_with = "as_map")]
    pub(crate) grid: Vec<Axis>,
    /// The best point; none if no point came to an end.
    pub chosen: Option<GridPoint>,
    /// Its mean held-out loss over seeds.
    pub loss: Option<f64>,
    /// The rates of AdamW and of Muon that it means.
    pub rates: Option<(f64, f64)>,
    /// Keys whose best value is an end of their grid.
    pub edges: Vec<Edge>,
    /// What its runs took.
    pub spent: Spent,
    /// Every point in every round that it was part of.
    pub points: Vec<TunedPoint>,
}

fn as_map<S: Serializer>(grid: &[Axis], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(grid.iter().map(|axis| (&axis.key, &axis.values)))
}

/// A point in one round.
#[derive(Clone, Debug, Serialize)]
pub struct TunedPoint {
    /// Its settings.
    pub values: GridPoint,
    /// The round, counted from 1.
    pub round: usize,
    /// Steps of each run.
    pub steps: u64,
    /// The rates of AdamW and of Muon.
    pub rates: (f64, f64),
    /// Mean held-out loss over seeds; none if a run failed, which is worse than any.
    pub loss: Option<f64>,
    /// What its runs took.
    pub spent: Spent,
    /// Its runs, by seed.
    pub runs: Vec<RunResult>,
}

impl TunedPoint {
    pub(crate) fn of(
        values: &GridPoint,
        round: usize,
        runs: Vec<(&PlannedRun, RunResult, Spent)>,
    ) -> Self {
        let first = runs.first().map(|(planned, ..)| *planned);
        let rates = first.map(|planned| &planned.config.optimizer);
        let mut spent = Spent::default();
        runs.iter().for_each(|(.., its)| spent += *its);
        let steps = first.map_or(0, |planned| planned.steps);
        let runs: Vec<RunResult> = runs.into_iter().map(|(_, result, _)| result).collect();
        Self {
            values: values.clone(),
            round,
            steps,
            rates: rates.map_or((f64::NAN, f64::NAN), |rates| (rates.adamw.lr, rates.muon.lr)),
            loss: mean_loss(&runs),
            spent,
            runs,
        }
    }
}

impl TunedVariant {
    /// The choice from all points that were tried: the best of the last round that any came through.
    pub(crate) fn of(suite: &Suite, search: &Search, points: Vec<TunedPoint>) -> Self {
        let tune = suite.tune.as_ref();
        let grid =
            tune.and_then(|tune| tune.grids.get(search.variant)).cloned().unwrap_or_default();
        let mut rounds: Vec<usize> = points.iter().map(|point| point.round).collect();
        rounds.sort_unstable();
        rounds.dedup();
        let best = rounds.iter().rev().find_map(|round| {
            let of: Vec<&TunedPoint> = points.iter().filter(|p| p.round == *round).collect();
            let losses: Vec<Option<f64>> = of.iter().map(|point| point.loss).collect();
            ranked(&losses).first().map(|&at| of[at])
        });
        let mut spent = Spent::default();
        points.iter().for_each(|point| spent += point.spent);
        Self {
            variant: suite.variants[search.variant].name.clone(),
            depth: tune.and_then(|tune| tune.holds_at(search.depth)),
            chosen: best.map(|best| best.values.clone()),
            loss: best.and_then(|best| best.loss),
            rates: best.map(|best| best.rates),
            edges: best.map_or_else(Vec::new, |best| edges(&grid, &best.values)),
            grid,
            spent,
            points,
        }
    }

    /// The name of the variant, at its depth if each was tuned.
    pub fn name(&self) -> String {
        hadal_report::comparison::at_depth(&self.variant, self.depth)
    }

    /// Its runs.
    pub fn runs(&self) -> impl Iterator<Item = &RunResult> {
        self.points.iter().flat_map(|point| &point.runs)
    }

    /// Points at the start.
    pub(crate) fn size(&self) -> usize {
        self.points.iter().filter(|point| point.round == 1).count()
    }
}

impl Tuning {
    /// Every run of tuning.
    pub fn all_runs(&self) -> impl Iterator<Item = &RunResult> {
        self.variants.iter().flat_map(TunedVariant::runs)
    }

    /// What was found for a variant at a depth.
    pub(crate) fn found(&self, variant: &str, depth: Option<usize>) -> Option<&TunedVariant> {
        self.variants.iter().find(|tuned| {
            tuned.variant == variant && (tuned.depth.is_none() || tuned.depth == depth)
        })
    }
}

impl Results {
    /// The results with how their settings were found.
    pub(crate) fn with_tuning(mut self, tuning: Option<Tuning>) -> Self {
        for cell in &mut self.cells {
            let found = tuning.as_ref().map(|tuning| tuning.found(&cell.variant, cell.depth));
            cell.tuned = found.map(|tuned| tuned.map_or("not tuned".into(), TunedVariant::text));
        }
        self.tuning = tuning;
        self
    }
}

/// What a run took; of one that did not end well, what its steps say.
pub(crate) fn spent(path: &Path, planned: &PlannedRun, result: &RunResult) -> Spent {
    if let (Some(flops), Some(tokens), Some(seconds)) =
        (result.flops, result.tokens, result.seconds)
    {
        return Spent { flops, tokens, seconds };
    }
    let steps = steps_done(path).min(planned.steps);
    let tokens = steps * planned.tokens_per_step;
    let timed = Run::read(path).map_or(0.0, |run| {
        let speeds = run.steps.iter().filter_map(|step| step.tokens_per_second);
        speeds.filter(|s| *s > 0.0).map(|s| planned.tokens_per_step as f64 / s).sum::<f64>()
    });
    Spent { flops: steps as f64 * planned.flops_per_step, tokens, seconds: timed }
}
