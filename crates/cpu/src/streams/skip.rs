//! When a token skips a sub-layer: where the policy's gate, which is known before the sub-layer runs, is below
//! a threshold.

use crate::splitmix::{STEP, finalise};

/// The rule for each site that a stream goes past, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Skip {
    /// A token whose gate is smaller in magnitude than this skips the site. At zero, no token does.
    pub thresholds: Vec<f32>,
    /// What share of the threshold is taken off the gates of the tokens that run: 1 lets a gate vanish where it
    /// meets the threshold, so that nothing jumps there; 0 leaves gates as they are.
    pub shrink: f32,
    /// Share of tokens that run each site in any case, with their full gate; empty if there are none.
    pub forced: Vec<f32>,
    /// Decides which tokens these are.
    pub seed: u64,
}

impl Skip {
    /// Thresholds alone: nothing is taken off, no token is forced.
    pub fn hard(thresholds: Vec<f32>) -> Self {
        Self { thresholds, shrink: 0.0, forced: Vec::new(), seed: 0 }
    }

    /// Whether a token can skip anything.
    pub fn skips(&self) -> bool {
        self.thresholds.iter().any(|&threshold| threshold > 0.0)
    }

    /// Whether a token with this gate runs; a NaN does, so that it is seen.
    #[inline(always)]
    pub fn runs(&self, site: usize, token: usize, gate: f32) -> bool {
        !self.below(site, gate) || self.forces(site, token)
    }

    /// What is taken off the magnitude of a gate that runs.
    #[inline(always)]
    pub fn taken_off(&self, site: usize, gate: f32) -> f32 {
        // A token that runs in spite of a small gate keeps all of it.
        if self.below(site, gate) { 0.0 } else { self.shrink * self.thresholds[site] }
    }

    #[inline(always)]
    fn below(&self, site: usize, gate: f32) -> bool {
        gate.abs() < self.thresholds[site]
    }

    fn forces(&self, site: usize, token: usize) -> bool {
        let Some(&share) = self.forced.get(site) else { return false };
        share > 0.0 && draw(self.seed, site, token) < share
    }
}

/// A number in [0, 1) that depends on all three.
fn draw(seed: u64, site: usize, token: usize) -> f32 {
    let place = (site as u64) << 40 | token as u64;
    let scramble = |z: u64| finalise(z.wrapping_add(STEP));
    let z = scramble(scramble(seed) ^ place);
    (z >> 40) as f32 / (1u64 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_of_zero_skips_nobody() {
        let skip = Skip::hard(vec![0.0]);
        assert!([0.0, -0.0, 1.0, f32::NAN].iter().all(|&gate| skip.runs(0, 0, gate)));
    }

    #[test]
    fn magnitudes_below_the_threshold_skip_and_numbers_that_are_none_run() {
        let skip = Skip::hard(vec![9.0, 0.5]);
        let runs = [0.5, -0.5, 0.49, -0.49, f32::NAN].map(|gate| skip.runs(1, 7, gate));
        assert_eq!(runs, [true, true, false, false, true]);
    }

    #[test]
    fn the_forced_keep_their_gate_and_are_as_many_as_asked_for() {
        let skip = Skip { thresholds: vec![0.5; 2], shrink: 1.0, forced: vec![0.0, 0.01], seed: 3 };
        assert_eq!(skip.taken_off(1, 0.4), 0.0);
        assert_eq!(skip.taken_off(1, -0.6), 0.5);
        let count = |site| (0..100_000).filter(|&token| skip.runs(site, token, 0.1)).count();
        assert_eq!(count(0), 0);
        assert!((900..1100).contains(&count(1)), "{}", count(1));
    }
}
