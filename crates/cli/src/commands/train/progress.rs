//! What is seen of a run while it goes on.

use super::summary::describe;
use crate::output::{line, scaled};
use crate::standard::stderr;
use hadal_study::diagnose::diagnose_midway;
use hadal_train::{Evaluation, Midway, Observer, StepReport, Trainer, estimate};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar on a terminal, lines in a log.
pub(super) struct Progress {
    bar: ProgressBar,
    peak: Option<Peak>,
}

impl Progress {
    pub(super) fn new(trainer: &Trainer) -> Self {
        let watched = stderr().is_terminal();
        let bar = if watched { ProgressBar::new(trainer.steps()) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template(
            "{bar:24} {pos}/{len} steps, {msg}, {elapsed} elapsed, {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(trainer.step());
        bar.reset_eta();
        Self { bar, peak: watched.then(|| Peak(estimate::matmul_flops_per_second())) }
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn line(&self, text: String) {
        line(&self.bar, &text);
    }
}

impl Observer for Progress {
    fn stepped(&mut self, report: &StepReport) {
        let seconds = report.time.as_secs_f64();
        let rate = report.tokens as f64 / seconds;
        let used = self.peak.as_mut().map(|peak| peak.used(report.flops as f64 / seconds));
        let utilisation = used.map_or(String::new(), |used| format!(", MFU {:.0} %", 100.0 * used));
        let skipped = report
            .skip
            .map_or(String::new(), |skip| format!(", {:.0} % skipped", 100.0 * skip.rate));
        let with_others = report.communication.map_or(String::new(), |time| {
            format!(", {:.0} % with other ranks", 100.0 * time.as_secs_f64() / seconds)
        });
        self.bar.set_position(report.step);
        self.bar.set_message(format!(
            "loss {:.4}{skipped}, {} tokens/s{utilisation}{with_others}",
            report.loss,
            scaled(rate.round())
        ));
    }

    fn evaluated(&mut self, step: u64, evaluation: &Evaluation) {
        self.line(format!("step {step}: {}", describe(evaluation)));
    }

    fn diagnose(&mut self, midway: &Midway<'_>) {
        let step = midway.step;
        let (summary, path) = match diagnose_midway(midway) {
            Ok(found) => found,
            Err(error) => return self.recovered(&format!("step {step}: no diagnosis: {error}")),
        };
        let useless = summary.useless().len();
        let growth = summary.norm_growth.map_or(String::new(), |g| format!("norm growth {g:.2}, "));
        self.line(format!(
            "step {step}: {growth}{useless} of {} blocks nearly free; figures in {}",
            summary.blocks,
            path.display()
        ));
    }

    fn sampled(&mut self, step: u64, text: &str) {
        self.line(format!("step {step} writes: {text}"));
    }

    fn recovered(&mut self, message: &str) {
        self.line(format!("warning: {message}"));
    }
}

/// FLOP/s of this machine at its best, as far as it is known. It was measured in a moment when others may have been at
/// work, so a step that is faster knows better.
struct Peak(f64);

impl Peak {
    /// The share of it that a speed uses.
    fn used(&mut self, speed: f64) -> f64 {
        if speed > self.0 {
            self.0 = speed;
        }
        if self.0 > 0.0 { speed / self.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_uses_more_than_there_is() {
        let mut peak = Peak(100.0);
        assert_eq!(peak.used(50.0), 0.5);
        assert_eq!(peak.used(200.0), 1.0);
        assert_eq!(peak.used(50.0), 0.25);
        assert_eq!(Peak(0.0).used(0.0), 0.0);
    }
}
