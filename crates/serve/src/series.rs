//! Curves as columns, thinned to what a screen can show.

use crate::tail::{Points, Tail, TailError};
use hadal_report::run::{EvaluationPoint, StepPoint};
use serde::Serialize;
use std::path::Path;

/// Points of a curve, unless another number is requested.
pub(crate) const POINTS: usize = 1200;

/// A run's curves.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Series {
    pub(crate) id: String,
    pub(crate) train: Train,
    pub(crate) held_out: HeldOut,
    /// How many steps there are; `train` may hold fewer.
    pub(crate) total: usize,
    /// Where the stream of events continues.
    pub(crate) cursor: String,
}

/// Training, one entry of each column for each step that is kept.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Train {
    pub(crate) step: Vec<u64>,
    pub(crate) tokens: Vec<u64>,
    /// Time spent in steps so far.
    pub(crate) seconds: Vec<f64>,
    pub(crate) loss: Vec<Option<f64>>,
    pub(crate) gradient_norm: Vec<Option<f64>>,
    pub(crate) rate: Vec<f64>,
    pub(crate) tokens_per_second: Vec<Option<f64>>,
}

/// Evaluations, all of them.
#[derive(Debug, Default, Serialize)]
pub(crate) struct HeldOut {
    pub(crate) step: Vec<u64>,
    pub(crate) tokens: Vec<u64>,
    pub(crate) seconds: Vec<f64>,
    pub(crate) loss: Vec<Option<f64>>,
    pub(crate) accuracy: Vec<Option<f64>>,
    pub(crate) bits_per_byte: Vec<Option<f64>>,
}

impl Series {
    /// Reads a run's curves and keeps about `limit` steps.
    pub(crate) fn read(id: &str, run: &Path, limit: usize) -> Result<Self, TailError> {
        let mut tail = Tail::new(run);
        let points = tail.rest()?;
        let cursor = tail.cursor().to_string();
        Ok(Self { id: id.into(), cursor, ..Self::from_points(&points, limit) })
    }

    fn from_points(points: &Points, limit: usize) -> Self {
        let steps = &points.steps;
        let seconds = seconds(steps);
        let places = thin(steps, limit);
        let mut train = Train::default();
        for place in places {
            let step = &steps[place];
            train.step.push(step.step);
            train.tokens.push(step.tokens);
            train.seconds.push(seconds[place]);
            train.loss.push(step.loss);
            train.gradient_norm.push(step.gradient_norm);
            train.rate.push(step.rate);
            train.tokens_per_second.push(step.tokens_per_second);
        }
        let held_out = held_out(&points.evaluations, steps, &seconds);
        Self { train, held_out, total: steps.len(), ..Self::default() }
    }
}

fn held_out(evaluations: &[EvaluationPoint], steps: &[StepPoint], seconds: &[f64]) -> HeldOut {
    let mut columns = HeldOut::default();
    for evaluation in evaluations {
        let after = steps.partition_point(|step| step.step <= evaluation.step);
        let last = after.checked_sub(1);
        columns.step.push(evaluation.step);
        columns.tokens.push(last.map_or(0, |last| steps[last].tokens));
        columns.seconds.push(last.map_or(0.0, |last| seconds[last]));
        columns.loss.push(evaluation.loss);
        columns.accuracy.push(evaluation.accuracy);
        columns.bits_per_byte.push(evaluation.bits_per_byte);
    }
    columns
}

/// Time after each step; a step of unknown speed counts as zero.
fn seconds(steps: &[StepPoint]) -> Vec<f64> {
    let (mut before, mut time) = (0, 0.0);
    let mut seconds = Vec::with_capacity(steps.len());
    for step in steps {
        let tokens = step.tokens.saturating_sub(before) as f64;
        time += step.tokens_per_second.filter(|speed| *speed > 0.0).map_or(0.0, |s| tokens / s);
        before = step.tokens;
        seconds.push(time);
    }
    seconds
}

/// Indices of at most about `limit` steps: the first, the last, and in each piece in between the smallest and the
/// largest loss, so that no spike is lost.
pub(crate) fn thin(steps: &[StepPoint], limit: usize) -> Vec<usize> {
    if steps.len() <= limit.max(4) {
        return (0..steps.len()).collect();
    }
    let pieces = (limit.max(4) - 2) / 2;
    let inner = steps.len() - 2;
    let mut places = vec![0];
    for piece in 0..pieces {
        let (start, end) = (1 + piece * inner / pieces, 1 + (piece + 1) * inner / pieces);
        // A loss that is not finite is the highest of all.
        let height = |place: &usize| steps[*place].loss.unwrap_or(f64::INFINITY);
        let low = (start..end).min_by(|a, b| height(a).total_cmp(&height(b)));
        let high = (start..end).max_by(|a, b| height(a).total_cmp(&height(b)));
        if let (Some(low), Some(high)) = (low, high) {
            places.push(low.min(high));
            if low != high {
                places.push(low.max(high));
            }
        }
    }
    places.push(steps.len() - 1);
    places
}

/// The median of the finite values.
pub(crate) fn finite_median(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let mut values: Vec<f64> = values.flatten().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f64) -> StepPoint {
        StepPoint {
            step,
            loss: Some(loss),
            gradient_norm: None,
            rate: 1.0,
            tokens: step * 100,
            tokens_per_second: Some(50.0),
            flops: None,
            skip_rate: None,
            skip_target: None,
            skip_threshold: None,
        }
    }

    #[test]
    fn thinning_keeps_the_ends_and_every_spike() {
        let mut steps: Vec<StepPoint> = (1..=10_000).map(|s| step(s, 3.0)).collect();
        steps[5_003].loss = Some(9.0);
        steps[7_777].loss = None;
        let places = thin(&steps, 100);
        assert!(places.len() <= 100, "{}", places.len());
        assert!(places.is_sorted_by(|a, b| a < b));
        for kept in [0, 5_003, 7_777, 9_999] {
            assert!(places.contains(&kept), "{kept} is lost");
        }
        assert_eq!(thin(&steps[..50], 100).len(), 50);
        assert!(thin(&[], 100).is_empty());
    }

    #[test]
    fn evaluations_stand_at_the_tokens_and_the_time_of_their_step() {
        let evaluation = EvaluationPoint {
            step: 2,
            loss: Some(1.0),
            perplexity: None,
            bits_per_byte: None,
            accuracy: None,
            exact_match: None,
        };
        let points = Points {
            steps: (1..=3).map(|s| step(s, 2.0)).collect(),
            evaluations: vec![evaluation],
        };
        let series = Series::from_points(&points, 100);
        assert_eq!(series.train.seconds, [2.0, 4.0, 6.0]);
        assert_eq!((series.held_out.tokens[0], series.held_out.seconds[0]), (200, 4.0));
    }
}
