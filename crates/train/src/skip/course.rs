//! What skipping aims at from step to step: a function of the step alone.

use super::config::{SkipConfig, SkipGate};

/// The course of a run of this many steps.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    config: SkipConfig,
    steps: u64,
}

impl Course {
    pub(super) fn new(config: &SkipConfig, steps: u64) -> Self {
        Self { config: config.clone(), steps }
    }

    /// The share to be skipped at a step.
    pub(super) fn target(&self, step: u64) -> f64 {
        self.config.rate * share(step, self.config.ramp * self.steps as f64)
    }

    /// The share of the threshold that is taken off the gates of running tokens. After the last step a gate that
    /// hardens loses nothing.
    pub(super) fn shrink(&self, step: u64) -> f64 {
        match (self.config.gate, self.config.harden) {
            (SkipGate::Hard, _) => 0.0,
            (SkipGate::Continuous, 0.0) => 1.0,
            (SkipGate::Continuous, harden) => {
                share(self.steps.saturating_sub(step), harden * self.steps as f64)
            }
        }
    }

    /// Whether the first and last sub-layers may not be skipped yet.
    pub(super) fn protects(&self, step: u64) -> bool {
        (step as f64) < self.config.protect * self.steps as f64
    }

    /// Means over the run of the target while the first and last sub-layers are protected, and afterwards;
    /// their sum is the mean of all steps. Steps are taken as infinitely short.
    pub(super) fn mean_targets(&self) -> [f64; 2] {
        let SkipConfig { rate, ramp, protect, .. } = self.config;
        let sum = |x: f64| if x < ramp { x * x / (2.0 * ramp) } else { x - ramp / 2.0 };
        [rate * sum(protect), rate * (sum(1.0) - sum(protect))]
    }
}

/// The share of this length that is done, at most 1.
fn share(done: u64, length: f64) -> f64 {
    if done as f64 >= length { 1.0 } else { done as f64 / length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::testing::config;

    #[test]
    fn the_target_rises_and_stays() {
        let course = Course::new(&config(0.4), 100);
        let targets = [0, 5, 10, 50, 99].map(|step| course.target(step));
        assert_eq!(targets, [0.0, 0.2, 0.4, 0.4, 0.4]);
        let at_once = Course::new(&SkipConfig { ramp: 0.0, ..config(0.4) }, 100);
        assert_eq!(at_once.target(0), 0.4);
    }

    #[test]
    fn a_continuous_gate_hardens_at_the_end_alone() {
        let course = Course::new(&SkipConfig { harden: 0.1, ..config(0.4) }, 100);
        let shrinks = [0, 90, 95, 99, 100].map(|step| course.shrink(step));
        assert_eq!(shrinks, [1.0, 1.0, 0.5, 0.1, 0.0]);
        let soft = Course::new(&config(0.4), 100);
        assert_eq!([0, 100].map(|step| soft.shrink(step)), [1.0, 1.0]);
        let hard = Course::new(&SkipConfig { gate: SkipGate::Hard, ..config(0.4) }, 100);
        assert_eq!([0, 100].map(|step| hard.shrink(step)), [0.0, 0.0]);
    }

    #[test]
    fn protection_ends_in_time() {
        let course = Course::new(&config(0.4), 100);
        assert_eq!([0, 9, 10].map(|step| course.protects(step)), [true, true, false]);
        let never = Course::new(&SkipConfig { protect: 0.0, ..config(0.4) }, 100);
        assert!(!never.protects(0));
        let always = Course::new(&SkipConfig { protect: 1.0, ..config(0.4) }, 100);
        assert!(
            always.protects(99) && !always.protects(100),
            "the finished model has no protection"
        );
    }

    #[test]
    fn means_are_those_of_many_steps() {
        for (ramp, protect) in [(0.1, 0.1), (0.2, 0.1), (0.1, 0.3), (0.0, 0.2), (1.0, 1.0)] {
            let course = Course::new(&SkipConfig { ramp, protect, ..config(0.4) }, 20_000);
            let mut sums = [0.0, 0.0];
            for step in 0..20_000 {
                sums[usize::from(!course.protects(step))] += course.target(step) / 20_000.0;
            }
            for (mean, sum) in course.mean_targets().into_iter().zip(sums) {
                assert!((mean - sum).abs() < 1e-4, "{ramp} {protect}: {mean} is not {sum}");
            }
        }
    }
}
