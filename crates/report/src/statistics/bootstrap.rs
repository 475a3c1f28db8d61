//! The paired bootstrap of a mean: how far it moves when the pairs are drawn again.
//!
//! With few pairs it is too sure of itself (two pairs have three different resamples), so it accompanies the t interval
//! as a second opinion that needs no normal distribution, and verdicts follow the t test.

/// How often pairs are drawn again.
pub const RESAMPLES: usize = 10_000;

/// The interval that holds 95 % of the resampled means, and the two-sided p-value of a mean as far from zero as the
/// observed one, among resamples of values shifted to mean zero.
pub(super) fn bootstrap(values: &[f64], seed: u64) -> ((f64, f64), f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let mut draw = Draw { state: seed };
    // A resample's mean is as far from the observed mean as its centred twin is from zero.
    let mut shifts: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = values.iter().map(|_| values[draw.below(values.len())] - mean).sum();
            sum / values.len() as f64
        })
        .collect();
    // Sums of the same values in another order differ in their last bits; those are ties.
    let size = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let bound = mean.abs() - 8.0 * f64::EPSILON * size;
    let beyond = shifts.iter().filter(|shift| shift.abs() >= bound).count();
    shifts.sort_by(f64::total_cmp);
    let interval = (mean + share(&shifts, 0.025), mean + share(&shifts, 0.975));
    (interval, (beyond + 1) as f64 / (RESAMPLES + 1) as f64)
}

/// The quantile of sorted values at a share, interpolated between neighbours if need be.
fn share(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

/// SplitMix64 (Steele, Lea and Flood 2014): the same seed gives the same draws, on every machine and in every version.
pub(super) struct Draw {
    pub(super) state: u64,
}

impl Draw {
    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A whole number below `bound`; the bias of at most `bound / 2^64` is nothing here.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}
