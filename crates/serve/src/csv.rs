//! A run's metrics as CSV: a line for each step, with the evaluation that follows it.

use crate::tail::{Look, Points, Tail};
use hadal_report::run::{EvaluationPoint, StepPoint};
use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::path::Path;

/// The head line. Columns that a run does not have are empty.
pub(crate) const HEAD: &str = "step,tokens,seconds,train_loss,gradient_norm,rate,tokens_per_second,flops,\
    skip_rate,skip_target,skip_threshold,held_out_loss,perplexity,bits_per_byte,accuracy,exact_match\n";
/// Columns of a step and of an evaluation, the first of both being the step.
const STEP: usize = 11;
const EVALUATION: usize = 5;

/// Makes lines from points as they are read.
#[derive(Default)]
pub(crate) struct Lines {
    /// The last step, which an evaluation may follow.
    held: Option<StepPoint>,
    tokens: u64,
    seconds: f64,
}

impl Lines {
    /// Lines of more points. The last step is held back.
    pub(crate) fn more(&mut self, points: Points) -> String {
        let mut text = String::new();
        let mut evaluations = points.evaluations.into_iter().peekable();
        for step in points.steps {
            while let Some(evaluation) = evaluations.next_if(|one| one.step < step.step) {
                self.evaluation(&mut text, &evaluation);
            }
            text.push_str(&self.rest());
            self.held = Some(step);
        }
        evaluations.for_each(|evaluation| self.evaluation(&mut text, &evaluation));
        text
    }

    /// The line that was held back.
    pub(crate) fn rest(&mut self) -> String {
        let mut text = String::new();
        if let Some(step) = self.held.take() {
            self.step(&mut text, &step);
            text.push_str(&",".repeat(EVALUATION));
            text.push('\n');
        }
        text
    }

    fn step(&mut self, text: &mut String, step: &StepPoint) {
        let tokens = step.tokens.saturating_sub(self.tokens) as f64;
        self.tokens = step.tokens;
        // A step of unknown speed counts as no time.
        self.seconds +=
            step.tokens_per_second.filter(|speed| *speed > 0.0).map_or(0.0, |s| tokens / s);
        let _ = write!(text, "{},{},{:.3}", step.step, step.tokens, self.seconds);
        cells(text, [step.loss, step.gradient_norm, Some(step.rate), step.tokens_per_second]);
        cells(text, [step.flops]);
        cells(text, [step.skip_rate, step.skip_target, step.skip_threshold]);
    }

    fn evaluation(&mut self, text: &mut String, evaluation: &EvaluationPoint) {
        match self.held.take_if(|step| step.step == evaluation.step) {
            Some(step) => self.step(text, &step),
            None => {
                text.push_str(&self.rest());
                let _ = write!(text, "{}{}", evaluation.step, ",".repeat(STEP - 1));
            }
        }
        cells(text, [evaluation.loss, evaluation.perplexity, evaluation.bits_per_byte]);
        cells(text, [evaluation.accuracy, evaluation.exact_match]);
        text.push('\n');
    }
}

fn cells<T: Display>(text: &mut String, values: impl IntoIterator<Item = Option<T>>) {
    for value in values {
        text.push(',');
        if let Some(value) = value {
            let _ = write!(text, "{value}");
        }
    }
}

/// Writes a run's metrics as CSV and returns the number of lines. What cannot be read of them is left out.
///
/// Columns are the same for every run: `step`, `tokens`, `seconds` (spent in steps), `train_loss`, `gradient_norm`,
/// `rate`, .., `held_out_loss`, .., `accuracy`; those that a run does not have are empty.
pub fn write_csv(run: &Path, out: &mut impl Write) -> io::Result<usize> {
    let mut tail = Tail::new(run);
    let (mut lines, mut count) = (Lines::default(), 0);
    let mut send = |text: String| {
        count += text.matches('\n').count();
        out.write_all(text.as_bytes())
    };
    send(HEAD.into())?;
    loop {
        match tail.look().map_err(io::Error::other)? {
            Look::More(points) => send(lines.more(points))?,
            Look::Same => break,
            Look::Reset => {
                let reason = "metrics.jsonl was cut back while it was read: try again";
                return Err(io::Error::other(reason));
            }
        }
    }
    send(lines.rest())?;
    Ok(count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_evaluation_stands_in_the_line_of_its_step() {
        let run = tempfile::tempdir().unwrap();
        let step = |step: u64| {
            format!(
                "{{\"kind\":\"train\",\"step\":{step},\"loss\":2.5,\"gradient_norm\":null,\"rate\":0.5,\
                 \"tokens\":{},\"tokens_per_second\":10.0}}\n",
                step * 100
            )
        };
        let evaluation = |step: u64| {
            format!("{{\"kind\":\"eval\",\"step\":{step},\"loss\":2.25,\"accuracy\":0.5}}\n")
        };
        let text =
            [evaluation(0), step(1), step(2), evaluation(2), evaluation(3), step(4)].concat();
        fs::write(run.path().join("metrics.jsonl"), text).unwrap();
        let mut out = Vec::new();
        assert_eq!(write_csv(run.path(), &mut out).unwrap(), 5);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..],
            [
                "0,,,,,,,,,,,2.25,,,0.5,",
                "1,100,10.000,2.5,,0.5,10,,,,,,,,,",
                "2,200,20.000,2.5,,0.5,10,,,,,2.25,,,0.5,",
                "3,,,,,,,,,,,2.25,,,0.5,",
                "4,400,40.000,2.5,,0.5,10,,,,,,,,,",
            ]
        );
        let columns = HEAD.matches(',').count();
        assert!(lines.iter().all(|line| line.matches(',').count() == columns));
        assert_eq!(columns + 1, STEP + EVALUATION);
    }

    #[test]
    fn a_run_without_metrics_has_a_head_line() {
        let run = tempfile::tempdir().unwrap();
        let mut out = Vec::new();
        assert_eq!(write_csv(run.path(), &mut out).unwrap(), 0);
        assert_eq!(out, HEAD.as_bytes());
    }
}
