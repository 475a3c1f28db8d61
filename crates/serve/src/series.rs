//! Curves as columns, thinned to what a screen can show.

use crate::tail::{Damage, Points, Tail, TailError};
use crate::thin::Thinner;
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
    /// What is left out because it cannot be read.
    pub(crate) damage: Option<String>,
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

/// Evaluations that are kept.
#[derive(Debug, Default, Serialize)]
pub(crate) struct HeldOut {
    pub(crate) step: Vec<u64>,
    pub(crate) tokens: Vec<u64>,
    pub(crate) seconds: Vec<f64>,
    pub(crate) loss: Vec<Option<f64>>,
    pub(crate) accuracy: Vec<Option<f64>>,
    pub(crate) bits_per_byte: Vec<Option<f64>>,
}

/// A run's metrics, thinned while they are read.
pub(crate) struct Curves {
    pub(crate) steps: Thinner<(StepPoint, f64)>,
    /// With the tokens and the time of the step that they follow.
    pub(crate) evaluations: Thinner<(EvaluationPoint, u64, f64)>,
    pub(crate) damage: Option<Damage>,
    seconds: f64,
}

impl Curves {
    /// Curves of about `limit` points. `each` sees every step as well.
    pub(crate) fn read(
        tail: &mut Tail,
        limit: usize,
        mut each: impl FnMut(&StepPoint),
    ) -> Result<Self, TailError> {
        let new = || Self {
            steps: Thinner::new(limit),
            evaluations: Thinner::new(limit),
            damage: None,
            seconds: 0.0,
        };
        tail.rest(new, |curves, points| {
            points.steps.iter().for_each(&mut each);
            curves.add(points);
        })
    }

    fn add(&mut self, points: Points) {
        // Evaluations follow the step that they belong to.
        let mut evaluations = points.evaluations.into_iter().peekable();
        for step in points.steps {
            while let Some(evaluation) = evaluations.next_if(|e| e.step < step.step) {
                self.evaluate(evaluation);
            }
            let before = self.steps.last().map_or(0, |(last, _)| last.tokens);
            let tokens = step.tokens.saturating_sub(before) as f64;
            // A step of unknown speed counts as no time.
            let speed = step.tokens_per_second.filter(|speed| *speed > 0.0);
            self.seconds += speed.map_or(0.0, |speed| tokens / speed);
            self.steps.push(step.loss, (step, self.seconds));
        }
        evaluations.for_each(|evaluation| self.evaluate(evaluation));
        match (&mut self.damage, points.damage) {
            (Some(first), Some(more)) => first.lines += more.lines,
            (None, found) => self.damage = found,
            _ => {}
        }
    }

    fn evaluate(&mut self, evaluation: EvaluationPoint) {
        let (tokens, seconds) = self.steps.last().map_or((0, 0.0), |(last, s)| (last.tokens, s));
        self.evaluations.push(evaluation.loss, (evaluation, tokens, seconds));
    }
}

impl Series {
    /// Reads a run's curves and keeps at most `limit` points of each.
    pub(crate) fn read(id: &str, run: &Path, limit: usize) -> Result<Self, TailError> {
        let mut tail = Tail::new(run);
        let curves = Curves::read(&mut tail, limit, |_| ())?;
        let cursor = tail.cursor().to_string();
        Ok(Self { id: id.into(), cursor, ..Self::of(&curves, limit) })
    }

    fn of(curves: &Curves, limit: usize) -> Self {
        let (mut train, mut held_out) = (Train::default(), HeldOut::default());
        for (step, seconds) in curves.steps.points(limit) {
            train.step.push(step.step);
            train.tokens.push(step.tokens);
            train.seconds.push(seconds);
            train.loss.push(step.loss);
            train.gradient_norm.push(step.gradient_norm);
            train.rate.push(step.rate);
            train.tokens_per_second.push(step.tokens_per_second);
        }
        for (evaluation, tokens, seconds) in curves.evaluations.points(limit) {
            held_out.step.push(evaluation.step);
            held_out.tokens.push(tokens);
            held_out.seconds.push(seconds);
            held_out.loss.push(evaluation.loss);
            held_out.accuracy.push(evaluation.accuracy);
            held_out.bits_per_byte.push(evaluation.bits_per_byte);
        }
        let damage = curves.damage.as_ref().map(ToString::to_string);
        Self { train, held_out, total: curves.steps.total(), damage, ..Self::default() }
    }
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
    use std::fs;

    #[test]
    fn evaluations_stand_at_the_tokens_and_the_time_of_their_step() {
        let run = tempfile::tempdir().unwrap();
        let step = |step: u64| {
            format!(
                "{{\"kind\":\"train\",\"step\":{step},\"loss\":2.0,\"gradient_norm\":null,\"rate\":1.0,\
                 \"tokens\":{},\"tokens_per_second\":50.0}}\n",
                step * 100
            )
        };
        let evaluation = "{\"kind\":\"eval\",\"step\":2,\"loss\":1.0}\n";
        let text = [step(1), step(2), evaluation.into(), step(3)].concat();
        fs::write(run.path().join("metrics.jsonl"), text).unwrap();
        let series = Series::read("mine", run.path(), 100).unwrap();
        assert_eq!(series.train.seconds, [2.0, 4.0, 6.0]);
        assert_eq!((series.held_out.tokens[0], series.held_out.seconds[0]), (200, 4.0));
        assert_eq!(series.damage, None);
    }
}
