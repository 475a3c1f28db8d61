//! What a comparison could have seen: the power of the paired t test.
//!
//! With `n` pairs whose differences have the mean `d` and the standard deviation `s`, the t statistic has the noncentral
//! t distribution with `n - 1` degrees of freedom and noncentrality `sqrt(n) d / s`. It is integrated over the
//! distribution of the standard deviation: `P(T > t) = E[1 - F(t u - sqrt(n) d / s)]`, `u = sqrt(chi^2 / (n-1))`.
//!
//! `s` is the one that was observed, which is itself uncertain: with 5 pairs by a factor of 0.6 to 2.9 (95 %). Several
//! looks can only see more than the last of them alone, whose level is used.

use super::student::ln_gamma;
use super::{Paired, normal, student};
use serde::Serialize;

/// The chance of seeing a difference that is there, as is usual.
pub const POWER: f64 = 0.8;
/// Nobody would train more.
const MOST: usize = 10_000;

/// What pairs like these can see.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Power {
    /// With this chance.
    pub power: f64,
    /// At this level: that of the test, divided by the number of comparisons.
    pub level: f64,
    /// The smallest difference that would have been seen.
    pub difference: f64,
    /// How many seeds a difference of the observed size would need; `None` if more than 10,000.
    pub seeds: Option<usize>,
}

impl Power {
    /// Of pairs that are tested at a level; `None` for one pair, or if all differences are equal.
    pub fn of(paired: &Paired, level: f64) -> Option<Self> {
        let sd = paired.sd.filter(|sd| *sd > 0.0)?;
        let difference = sd * detectable(paired.n, level, POWER)?;
        let seeds = seeds(paired.mean_difference.abs() / sd, level, POWER);
        Some(Self { power: POWER, level, difference, seeds })
    }
}

/// The chance that the two-sided paired t test of `n` pairs sees a mean difference of `effect` standard deviations.
///
/// ```
/// // G*Power and R's power.t.test: 34 pairs for an effect of a half.
/// let power = hadal_report::statistics::power(34, 0.5, 0.05);
/// assert!((power - 0.8078).abs() < 1e-4);
/// ```
pub fn power(n: usize, effect: f64, level: f64) -> f64 {
    if n < 2 {
        return 0.0;
    }
    let degrees = (n - 1) as f64;
    let bound = student::quantile(1.0 - level / 2.0, degrees);
    let shift = effect * (n as f64).sqrt();
    // The density of u, with its logarithm's constant.
    let half = degrees / 2.0;
    let constant = half * half.ln() + std::f64::consts::LN_2 - ln_gamma(half);
    let density = |u: f64| match u {
        0.0 if n == 2 => constant.exp(),
        0.0 => 0.0,
        u => (constant + (degrees - 1.0) * u.ln() - half * u * u).exp(),
    };
    let reach = 9.0 / (2.0 * degrees).sqrt();
    let (low, high) = ((1.0 - reach).max(0.0), 1.0 + reach);
    // Simpson's rule; what is integrated is smooth, and nothing at the ends.
    const PARTS: u32 = 600;
    let step = (high - low) / f64::from(PARTS);
    let value = |i: u32| {
        let u = low + step * f64::from(i);
        let seen = normal::cdf(shift - bound * u) + normal::cdf(-shift - bound * u);
        let weight = match i {
            0 | PARTS => 1.0,
            i if i % 2 == 1 => 4.0,
            _ => 2.0,
        };
        weight * density(u) * seen
    };
    ((0..=PARTS).map(value).sum::<f64>() * step / 3.0).clamp(0.0, 1.0)
}

/// The effect, in standard deviations, that `n` pairs see with this chance.
fn detectable(n: usize, level: f64, chance: f64) -> Option<f64> {
    let (mut low, mut high) = (0.0, 1.0);
    while power(n, high, level) < chance {
        (low, high) = (high, 2.0 * high);
        if high > 1e12 {
            return None;
        }
    }
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if power(n, middle, level) < chance { low = middle } else { high = middle }
    }
    Some(high)
}

/// How many pairs see such an effect with this chance.
fn seeds(effect: f64, level: f64, chance: f64) -> Option<usize> {
    let sees = |n: usize| power(n, effect, level) >= chance;
    if effect.is_nan() || !sees(MOST) {
        return None;
    }
    let (mut low, mut high) = (1, MOST);
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        if sees(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::paired;

    /// `nct.sf(t, n-1, d sqrt(n)) + nct.cdf(-t, ..)` of scipy.
    const NCT: [f64; 4] = [0.179_255_394, 0.606_279_979, 0.732_819_590, 0.803_666_661];

    /// Cohen (1988), G*Power's manual and R's `power.t.test(type = "one.sample")`; the rest from scipy's `nct`.
    #[test]
    fn powers_are_those_of_published_tables() {
        for (n, effect, level, expected) in [
            (34, 0.5, 0.05, 0.807_777_5),
            (20, 1.0, 0.05, 0.988_591_3),
            (3, 1.0, 0.05, NCT[0]),
            (5, 2.0, 0.05 / 4.0, NCT[1]),
            (2, 10.0, 0.05, NCT[2]),
            (8, 0.0, 0.01, 0.01),
            (200, 0.2, 0.05, NCT[3]),
        ] {
            let ours = power(n, effect, level);
            assert!((ours - expected).abs() < 2e-6, "{n} {effect} {level}: {ours} {expected}");
        }
        // R: power.t.test(delta = .5, power = .8, type = "one.sample") says n = 33.37, so 34 are needed.
        assert_eq!(seeds(0.5, 0.05, 0.8), Some(34));
        assert_eq!((seeds(0.0, 0.05, 0.8), seeds(1e-3, 0.05, 0.8)), (None, None));
        let d = detectable(34, 0.05, 0.807_778).unwrap();
        assert!((d - 0.5).abs() < 1e-5, "{d}");
    }

    #[test]
    fn a_difference_at_the_limit_is_seen_in_four_of_five_experiments() {
        use crate::statistics::tests::Normal;
        let (n, level) = (6, 0.05);
        let effect = detectable(n, level, POWER).unwrap();
        let mut normal = Normal::new(5);
        let seen = (0..4000).filter(|_| {
            let values: Vec<f64> = (0..n).map(|_| effect + normal.next()).collect();
            paired(&values, &vec![0.0; n], 0).p_t.unwrap() < level
        });
        let share = seen.count() as f64 / 4000.0;
        // Three standard errors.
        assert!((share - POWER).abs() < 3.0 * (0.8 * 0.2 / 4000.0_f64).sqrt(), "{share}");
    }

    #[test]
    fn one_pair_and_equal_differences_have_no_power() {
        assert_eq!(Power::of(&paired(&[1.0], &[2.0], 0), 0.05), None);
        assert_eq!(Power::of(&paired(&[1.0, 2.0], &[1.0, 2.0], 0), 0.05), None);
        let told = Power::of(&paired(&[1.0, 2.1, 2.9], &[1.1, 2.0, 3.1], 0), 0.05).unwrap();
        assert!(told.difference > 0.0 && told.seeds.unwrap() > 3, "{told:?}");
    }
}
