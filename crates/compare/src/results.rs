//! The results of a suite's runs, in numbers.

use super::earlier::Earlier;
use super::execute::End;
use super::folder::SuiteFolder;
use super::plan::PlannedRun;
use super::shape::Shape;
use super::suite::Suite;
use super::tune::Tuning;
use hadal_report::comparison::at_depth;
use hadal_report::page::Task;
use hadal_report::run::{Run, StepPoint};
use hadal_report::statistics::{
    Curve, Paired, Power, Sequential, SpeedUp, Summary, Taken, Verdict, equal_loss_speedup, judge,
    paired, summary,
};
use serde::Serialize;
use std::path::Path;

/// What is compared.
pub(crate) const METRIC: &str = "held-out loss";
/// Seed of the bootstrap: the same runs give the same p-values.
const RESAMPLING_SEED: u64 = 0;

/// All results of a suite.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// The variant that the others are compared with.
    pub baseline: String,
    /// What is compared.
    pub metric: &'static str,
    /// What the task is called in the answer.
    #[serde(skip)]
    pub task: String,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Comparisons that Holm's correction counts.
    pub comparisons: usize,
    /// Each variant at each depth, in the order of the suite.
    pub cells: Vec<Cell>,
    /// Each run.
    pub runs: Vec<RunResult>,
    /// What was there before.
    pub earlier: Earlier,
    /// The looks at these results, if seeds are added until all is decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looks: Option<Taken>,
    /// How each variant found its settings, if the suite has `[tune]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,
}

/// A variant at a depth, over all seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The variant.
    pub variant: String,
    /// Its policy with all settings.
    pub policy: String,
    /// Blocks, if the suite goes through several numbers of them.
    pub depth: Option<usize>,
    /// Parameters of its model.
    pub parameters: u64,
    /// The shape of its model, if the suite chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Optimiser steps of each run.
    pub steps: u64,
    /// Tokens of each run.
    pub tokens: u64,
    /// FLOPs of each run, as planned.
    pub flops: f64,
    /// FLOPs of the runs, as counted.
    pub spent_flops: Summary,
    /// Tokens that runs learnt from.
    pub spent_tokens: Summary,
    /// Share of the skippable FLOPs that were skipped over the last tenth of the steps, if there is skipping.
    pub skip_rate: Option<Summary>,
    /// Mean loss over the last tenth of the steps.
    pub train_loss: Summary,
    /// Validation loss at the end.
    pub validation_loss: Summary,
    /// Accuracy at the end, where there are answers.
    pub accuracy: Option<Summary>,
    /// Medians of the runs.
    pub tokens_per_second: Summary,
    /// Peak memory of the processes, in MB (10^6 bytes).
    pub peak_rss_mb: Summary,
    /// Runs that count, and all of them.
    pub done: (usize, usize),
    /// How it compares with the baseline at the same depth; `None` for the baseline itself.
    pub against: Option<Against>,
    /// What its settings were tuned to, if the suite has `[tune]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuned: Option<String>,
}

/// A variant against the baseline, seed by seed.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    /// Differences to the baseline over the same seeds.
    pub paired: Paired,
    /// The t test's p-value, corrected for all comparisons of the suite.
    pub p_holm: Option<f64>,
    /// In a word.
    pub verdict: Verdict,
    /// What these pairs could have seen.
    pub power: Option<Power>,
    /// The looks, if they were planned; the interval and the corrected p-value then hold at all of them together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential: Option<Sequential>,
    /// The difference of each seed.
    #[serde(skip)]
    pub differences: Vec<(u64, f64)>,
    /// How many times fewer tokens lead to the baseline's last validation loss.
    pub speed_up_tokens: SpeedUp,
    /// How many times less training time does.
    pub speed_up_seconds: SpeedUp,
    /// How many times fewer tokens, for each seed.
    #[serde(skip)]
    pub by_seed: Vec<SpeedUp>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "said", rename_all = "snake_case")]
pub enum RunState {
    /// It counts.
    Done,
    /// Its numbers stopped being numbers.
    Diverged(String),
    /// Its process failed.
    Failed(String),
    /// It is done, but its numbers cannot be read or are not those that were written.
    Damaged(String),
    /// It can be resumed.
    Stopped,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// Its folder under `runs`.
    pub name: String,
    /// The variant.
    pub variant: String,
    /// Blocks, if the suite goes through several numbers of them.
    pub depth: Option<usize>,
    /// The seed.
    pub seed: u64,
    /// How it ended.
    #[serde(flatten)]
    pub state: RunState,
    /// Mean loss over the last tenth of the steps.
    pub train_loss: Option<f64>,
    /// Validation loss at the end.
    pub validation_loss: Option<f64>,
    /// Accuracy at the end, where there are answers.
    pub accuracy: Option<f64>,
    /// Tokens learnt from.
    pub tokens: Option<u64>,
    /// FLOPs of training, as counted.
    pub flops: Option<f64>,
    /// Share of the skippable FLOPs that were skipped over the last tenth of the steps, if there is skipping.
    pub skip_rate: Option<f64>,
    /// Median over steps.
    pub tokens_per_second: Option<f64>,
    /// Time of training steps.
    pub seconds: Option<f64>,
    /// Peak memory of its process, in MB (10^6 bytes).
    pub peak_rss_mb: Option<f64>,
    /// What of its folder cannot be read, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<String>,
    /// Evaluations during training.
    #[serde(skip)]
    pub curve: Vec<Point>,
}

/// An evaluation during training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Tokens learnt from.
    pub tokens: f64,
    /// Time of training steps.
    pub seconds: f64,
    /// FLOPs spent so far.
    pub flops: f64,
    /// Loss on held-out data.
    pub loss: f64,
    /// Share of right answers, where there are answers.
    pub accuracy: Option<f64>,
}

impl Results {
    /// Reads the results of a plan's runs, after so many planned looks.
    pub fn read(
        suite: &Suite,
        folder: &SuiteFolder,
        plan: &[PlannedRun],
        ends: &[End],
        looks: usize,
    ) -> Self {
        let runs =
            plan.iter().zip(ends).map(|(planned, end)| RunResult::read(folder, planned, end));
        Self::of(suite, plan, runs.collect(), looks)
    }

    /// Compares runs, one for each of the plan.
    pub(super) fn of(
        suite: &Suite,
        plan: &[PlannedRun],
        runs: Vec<RunResult>,
        looks: usize,
    ) -> Self {
        let mut cells: Vec<Cell> = Vec::new();
        for depth in suite.each_depth() {
            for variant in &suite.variants {
                let is_mine = |run: &&PlannedRun| run.variant == variant.name && run.depth == depth;
                let Some(planned) = plan.iter().find(is_mine) else { continue };
                let mine = select(&runs, &variant.name, depth);
                let mut cell = Cell::of(planned, &mine);
                if variant.name != suite.baseline {
                    let baseline = select(&runs, &suite.baseline, depth);
                    cell.against = Some(Against::of(&mine, &baseline));
                }
                cells.push(cell);
            }
        }
        let mut against: Vec<&mut Against> =
            cells.iter_mut().filter_map(|cell| cell.against.as_mut()).collect();
        let looks = suite.rule.clone().map(|rule| Taken { rule, taken: looks });
        let all: Vec<_> =
            against.iter().map(|against| (&against.paired, &against.differences[..])).collect();
        let judged = judge(&all, looks.as_ref());
        let comparisons = judged.iter().filter(|judged| judged.p.is_some()).count();
        for (against, judged) in against.iter_mut().zip(judged) {
            (against.p_holm, against.verdict, against.power) =
                (judged.p, judged.verdict, judged.power);
            against.sequential = judged.sequential;
            against.paired.interval95 = judged.interval95;
        }
        let is_run = |seed: &u64| plan.iter().any(|run| run.seed == *seed);
        Self {
            baseline: suite.baseline.clone(),
            metric: METRIC,
            task: plan.first().map_or_else(String::new, task),
            seeds: suite.seeds.iter().copied().filter(is_run).collect(),
            comparisons,
            cells,
            runs,
            earlier: Earlier::default(),
            looks,
            tuning: None,
        }
    }

    /// Whether every run counts.
    pub fn is_complete(&self) -> bool {
        self.runs.iter().all(|run| run.state == RunState::Done)
    }

    /// Whether every run has come to an end of its own.
    pub(super) fn is_whole(&self) -> bool {
        let has_ended =
            |run: &RunResult| matches!(run.state, RunState::Done | RunState::Diverged(_));
        self.runs.iter().all(has_ended)
    }

    /// The runs of a variant at a depth, by seed.
    pub(super) fn of_cell(&self, cell: &Cell) -> Vec<&RunResult> {
        select(&self.runs, &cell.variant, cell.depth)
    }
}

fn select<'a>(runs: &'a [RunResult], variant: &str, depth: Option<usize>) -> Vec<&'a RunResult> {
    runs.iter().filter(|run| run.variant == variant && run.depth == depth).collect()
}

fn all(runs: &[&RunResult], value: impl Fn(&RunResult) -> Option<f64>) -> Vec<f64> {
    runs.iter().filter(|run| run.counts()).filter_map(|run| value(run)).collect()
}

impl Cell {
    fn of(planned: &PlannedRun, runs: &[&RunResult]) -> Self {
        let some = |values: Vec<f64>| (!values.is_empty()).then(|| summary(&values));
        Self {
            variant: planned.variant.clone(),
            policy: planned.config.residual.to_string(),
            depth: planned.depth,
            parameters: planned.parameters,
            shape: planned.shape.clone(),
            steps: planned.steps,
            tokens: planned.tokens(),
            flops: planned.flops(),
            spent_flops: summary(&all(runs, |run| run.flops)),
            spent_tokens: summary(&all(runs, |run| Some(run.tokens? as f64))),
            skip_rate: some(all(runs, |run| run.skip_rate)),
            train_loss: summary(&all(runs, |run| run.train_loss)),
            validation_loss: summary(&all(runs, |run| run.validation_loss)),
            accuracy: some(all(runs, |run| run.accuracy)),
            tokens_per_second: summary(&all(runs, |run| run.tokens_per_second)),
            peak_rss_mb: summary(&all(runs, |run| run.peak_rss_mb)),
            done: (runs.iter().filter(|run| run.counts()).count(), runs.len()),
            against: None,
            tuned: None,
        }
    }

    /// The name of the variant at its depth.
    pub fn name(&self) -> String {
        at_depth(&self.variant, self.depth)
    }
}

impl Against {
    /// Uses only seeds for which both runs count.
    fn of(mine: &[&RunResult], baseline: &[&RunResult]) -> Self {
        let pairs: Vec<(&RunResult, &RunResult)> = mine
            .iter()
            .filter_map(|run| Some((*run, *baseline.iter().find(|other| other.seed == run.seed)?)))
            .filter(|(run, other)| run.counts() && other.counts())
            .collect();
        let (mine, baseline): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        let differences = pairs.iter().filter_map(|(run, other)| {
            Some((run.seed, run.validation_loss? - other.validation_loss?))
        });
        let paired = paired(
            &all(&mine, |run| run.validation_loss),
            &all(&baseline, |run| run.validation_loss),
            RESAMPLING_SEED,
        );
        let by_seed = pairs.iter().map(|(mine, base)| speed_up(&[mine], &[base], |p| p.tokens));
        Self {
            paired,
            p_holm: None,
            verdict: Verdict::NothingToCompare,
            power: None,
            sequential: None,
            differences: differences.collect(),
            speed_up_tokens: speed_up(&mine, &baseline, |point| point.tokens),
            speed_up_seconds: speed_up(&mine, &baseline, |point| point.seconds),
            by_seed: by_seed.collect(),
        }
    }
}

fn speed_up(mine: &[&RunResult], baseline: &[&RunResult], x: fn(&Point) -> f64) -> SpeedUp {
    let split = |runs: &[&RunResult]| -> (Vec<f64>, Vec<f64>) {
        mean_curve(runs).iter().map(|point| (x(point), point.loss)).unzip()
    };
    let ((x, loss), (base_x, base_loss)) = (split(mine), split(baseline));
    let base = Curve { x: &base_x, loss: &base_loss };
    equal_loss_speedup(base, Curve { x: &x, loss: &loss }, 1)
}

/// What a run learns, in a word or two.
fn task(run: &PlannedRun) -> String {
    Task::of(&serde_json::to_value(&run.config.data).unwrap_or_default()).name
}

/// The mean of several curves, as far as all of them go.
pub(super) fn mean_curve(runs: &[&RunResult]) -> Vec<Point> {
    let length = runs.iter().map(|run| run.curve.len()).min().unwrap_or(0);
    let mean = |at: usize, value: fn(&Point) -> f64| {
        runs.iter().map(|run| value(&run.curve[at])).sum::<f64>() / runs.len() as f64
    };
    let accuracy = |at: usize| {
        let values: Option<Vec<f64>> = runs.iter().map(|run| run.curve[at].accuracy).collect();
        values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
    };
    let point = |at| Point {
        tokens: mean(at, |p| p.tokens),
        seconds: mean(at, |p| p.seconds),
        flops: mean(at, |p| p.flops),
        loss: mean(at, |p| p.loss),
        accuracy: accuracy(at),
    };
    (0..length).map(point).collect()
}

impl RunResult {
    /// Whether its numbers are part of the comparison.
    pub fn counts(&self) -> bool {
        self.state == RunState::Done
    }

    /// A run of which nothing is known yet.
    pub(super) fn unknown(planned: &PlannedRun) -> Self {
        Self {
            name: planned.name.clone(),
            variant: planned.variant.clone(),
            depth: planned.depth,
            seed: planned.seed,
            state: RunState::Stopped,
            train_loss: None,
            validation_loss: None,
            accuracy: None,
            tokens: None,
            flops: None,
            skip_rate: None,
            tokens_per_second: None,
            seconds: None,
            peak_rss_mb: None,
            damage: Vec::new(),
            curve: Vec::new(),
        }
    }

    pub(super) fn read(folder: &SuiteFolder, planned: &PlannedRun, end: &End) -> Self {
        Self::read_at(&folder.run(&planned.name), planned, end)
    }

    pub(super) fn read_at(path: &Path, planned: &PlannedRun, end: &End) -> Self {
        let state = match end {
            End::Done | End::DoneBefore | End::DoneElsewhere => RunState::Done,
            End::Stopped | End::Elsewhere(_) => RunState::Stopped,
            End::Diverged(said) => RunState::Diverged(said.clone()),
            End::Failed(said) => RunState::Failed(said.clone()),
        };
        let mut result = Self { state, ..Self::unknown(planned) };
        let run = match Run::read(path) {
            Ok(run) => run,
            Err(error) if result.counts() => {
                result.state = RunState::Damaged(error.to_string());
                return result;
            }
            Err(_) => return result,
        };
        result.damage = run.trouble();
        result.curve = curve(&run, planned);
        if !result.counts() {
            return result;
        }
        let last = run.evaluations.last().filter(|last| last.step == planned.steps);
        if last.is_none() || !run.is_comparable() {
            let said = "its numbers are not those that were written";
            result.state = RunState::Damaged(said.into());
            return result;
        }
        result.train_loss = last_mean(&run.steps, |step| step.loss);
        result.skip_rate = last_mean(&run.steps, |step| step.skip_rate);
        result.validation_loss = last.and_then(|last| last.loss);
        result.accuracy = last.and_then(|last| last.accuracy);
        if let Some(outcome) = run.outcome {
            result.tokens = Some(outcome.tokens);
            result.flops = outcome.training_flops;
            result.tokens_per_second = Some(outcome.tokens_per_second);
            result.seconds = Some(outcome.seconds);
            result.peak_rss_mb = Some(outcome.peak_rss_mb).filter(|&mb| mb > 0.0);
        }
        if !result.validation_loss.is_some_and(f64::is_finite) {
            result.state = RunState::Diverged("its last held-out loss is no number".into());
        }
        result
    }
}

/// The mean over the last tenth of the steps, if all of them have it.
fn last_mean(steps: &[StepPoint], value: fn(&StepPoint) -> Option<f64>) -> Option<f64> {
    let tenth = (steps.len() / 10).max(1);
    let last = &steps[steps.len().saturating_sub(tenth)..];
    let values: Option<Vec<f64>> = last.iter().map(value).collect();
    let values = values.filter(|values| !values.is_empty())?;
    Some(values.iter().sum::<f64>() / values.len() as f64)
}

fn curve(run: &Run, planned: &PlannedRun) -> Vec<Point> {
    let tokens = planned.tokens_per_step as f64;
    let (mut seconds, mut flops) = (0.0, 0.0);
    let mut steps = run.steps.iter().peekable();
    let points = run.evaluations.iter().filter_map(|evaluation| {
        while let Some(step) = steps.next_if(|step| step.step <= evaluation.step) {
            seconds += tokens / step.tokens_per_second.unwrap_or(f64::NAN);
            flops += step.flops.map_or(planned.flops_per_step, |flops| flops as f64);
        }
        Some(Point {
            tokens: tokens * evaluation.step as f64,
            seconds,
            flops,
            loss: evaluation.loss?,
            accuracy: evaluation.accuracy,
        })
    });
    points.collect()
}
