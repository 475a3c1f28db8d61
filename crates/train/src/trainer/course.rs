//! How a run went from its first step on, in whichever process that was.

use super::Trainer;
use crate::metrics::points;
use crate::outcome::communication;
use hadal_report::run::{EvaluationPoint, Metric};

/// How a run went so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Course {
    /// Training loss of the first and of the last step.
    pub losses: Option<(f64, f64)>,
    /// The model as it was before the first step, if that was measured: where a run goes on from a model.
    pub before: Option<EvaluationPoint>,
    /// The evaluation with the lowest loss.
    pub best: Option<EvaluationPoint>,
    /// Share of the time that was spent with other ranks, over the steps that several ranks made.
    pub communication: Option<f64>,
}

impl Trainer {
    /// How the run went so far, as its metrics say. What cannot be read is left out.
    pub fn course(&self) -> Course {
        let mut course = Course::default();
        let mut divided = Vec::new();
        for point in points(self.folder.path()).unwrap_or_default() {
            match point {
                Metric::Train(step) => {
                    let Some(loss) = step.loss else { continue };
                    divided.push(step);
                    let first = course.losses.map_or(loss, |(first, _)| first);
                    course.losses = Some((first, loss));
                }
                Metric::Eval(evaluation) => {
                    if evaluation.step == 0 {
                        course.before = Some(evaluation);
                    }
                    let lower = |best: EvaluationPoint| evaluation.loss < best.loss;
                    if evaluation.loss.is_some() && course.best.is_none_or(lower) {
                        course.best = Some(evaluation);
                    }
                }
                Metric::Other => {}
            }
        }
        course.communication = communication(&divided, self.tokens_per_step());
        course
    }

    /// Tokens that there are to learn from; `None` for a task, which makes any number.
    pub fn data_tokens(&self) -> Option<u64> {
        self.feed.tokens()
    }

    /// Length of a sequence.
    pub fn seq_len(&self) -> usize {
        self.feed.seq_len()
    }
}
