//! Whether a difference is more than luck: means with intervals, paired tests, corrections, and verdicts.

mod bootstrap;
mod boundary;
mod judge;
mod median;
mod normal;
mod power;
mod sequential;
mod speedup;
mod spikes;
pub mod student;
#[cfg(test)]
mod tests;

pub use bootstrap::RESAMPLES;
pub use boundary::Spending;
pub use judge::{Judged, Taken, judge};
pub use median::{best, median, median_ratio};
pub use power::{POWER, Power, power};
pub use sequential::{Look, Looks, Rule, Sequential};
pub use speedup::{Curve, SpeedUp, equal_loss_speedup, smoothed};
pub use spikes::{RISE, Spikes, WINDOW, running_median, spiking};

use serde::Serialize;
use std::fmt;

/// A difference with a smaller p-value is called significant.
pub const LEVEL: f64 = 0.05;

/// Summary statistics of several values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Finite values.
    pub n: usize,
    /// Values that are not finite and are left out.
    pub left_out: usize,
    /// Their mean; NaN if there are none.
    pub mean: f64,
    /// Their standard deviation, for two values or more.
    pub sd: Option<f64>,
    /// 95 % confidence interval of the mean, by Student's t, for two values or more.
    pub interval95: Option<(f64, f64)>,
}

/// Summarises the finite values.
///
/// ```
/// let losses = hadal_report::statistics::summary(&[1.0, 2.0, 3.0, f64::NAN]);
/// assert_eq!((losses.n, losses.left_out, losses.mean), (3, 1, 2.0));
/// assert_eq!(losses.sd, Some(1.0));
/// ```
pub fn summary(values: &[f64]) -> Summary {
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let n = finite.len();
    let mean = finite.iter().sum::<f64>() / n as f64;
    let squares: f64 = finite.iter().map(|value| (value - mean).powi(2)).sum();
    let sd = (n >= 2).then(|| (squares / (n - 1) as f64).sqrt());
    let interval95 = sd.map(|sd| {
        let half = student::quantile(0.975, (n - 1) as f64) * sd / (n as f64).sqrt();
        (mean - half, mean + half)
    });
    Summary { n, left_out: values.len() - n, mean, sd, interval95 }
}

/// How much two policies differ when each seed of one is compared with the same seed of the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Paired {
    /// Pairs of finite values.
    pub n: usize,
    /// Pairs in which a value is missing or not finite.
    pub left_out: usize,
    /// Mean of `a - b`; NaN if there are no pairs.
    pub mean_difference: f64,
    /// Standard deviation of `a - b` over pairs, for two pairs or more.
    pub sd: Option<f64>,
    /// 95 % confidence interval of that mean, by Student's t, for two pairs or more.
    pub interval95: Option<(f64, f64)>,
    /// Two-sided p-value of the paired t test, for two pairs or more.
    pub p_t: Option<f64>,
    /// The interval that holds 95 % of the resampled means, for two pairs or more.
    pub bootstrap_interval95: Option<(f64, f64)>,
    /// Two-sided p-value among resamples that were shifted to mean zero, for two pairs or more.
    pub p_bootstrap: Option<f64>,
}

/// Compares `a` with `b` pair by pair; `b` is the baseline. The same seed gives the same resamples.
///
/// ```
/// use hadal_report::statistics::{Better, Verdict, holm, paired, verdict};
///
/// let baseline = [0.71, 0.84, 0.66, 0.79, 0.73]; // one loss for each seed
/// let better = [0.60, 0.75, 0.57, 0.70, 0.61];
/// let other = [0.72, 0.81, 0.69, 0.75, 0.76];
/// let differences = [better, other].map(|losses| paired(&losses, &baseline, 0));
/// let p = holm(&differences.map(|difference| difference.p_t)); // two comparisons
///
/// assert!(differences[0].mean_difference < 0.0);
/// assert_eq!(verdict(&differences[0], p[0], Better::Lower), Verdict::Better);
/// assert_eq!(verdict(&differences[1], p[1], Better::Lower), Verdict::NotDistinguishable);
/// ```
pub fn paired(a: &[f64], b: &[f64], seed: u64) -> Paired {
    let differences: Vec<f64> =
        a.iter().zip(b).map(|(a, b)| a - b).filter(|difference| difference.is_finite()).collect();
    let one = paired_without_bootstrap(&differences);
    let bootstrap = (one.n >= 2).then(|| bootstrap::bootstrap(&differences, seed));
    Paired {
        left_out: a.len().max(b.len()) - one.n,
        bootstrap_interval95: bootstrap.map(|(interval, _)| interval),
        p_bootstrap: bootstrap.map(|(_, p)| p),
        ..one
    }
}

/// The same of differences, by Student's t alone.
fn paired_without_bootstrap(differences: &[f64]) -> Paired {
    let Summary { n, left_out, mean, sd, interval95 } = summary(differences);
    let p_t = sd.map(|sd| match mean.abs() / (sd / (n as f64).sqrt()) {
        // There is no difference in any pair.
        t if t.is_nan() => 1.0,
        t => student::two_sided(t, (n - 1) as f64),
    });
    Paired {
        n,
        left_out,
        mean_difference: mean,
        sd,
        interval95,
        p_t,
        bootstrap_interval95: None,
        p_bootstrap: None,
    }
}

/// Holm's correction: p-values of several comparisons, such that the chance of even one false alarm is that of a single
/// comparison. Entries without a p-value are not counted as comparisons.
pub fn holm(p: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut order: Vec<(usize, f64)> =
        p.iter().enumerate().filter_map(|(i, p)| Some((i, p.filter(|p| !p.is_nan())?))).collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut corrected = vec![None; p.len()];
    let mut largest = 0.0_f64;
    for (rank, &(place, p)) in order.iter().enumerate() {
        largest = largest.max((p * (order.len() - rank) as f64).min(1.0));
        corrected[place] = Some(largest);
    }
    corrected
}

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Losses, seconds, memory.
    Lower,
    /// Accuracies, tokens per second.
    Higher,
}

/// The verdict on a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better than the baseline, and hardly by luck.
    Better,
    /// Worse than the baseline, and hardly by luck.
    Worse,
    /// The seeds differ as much as the policies do.
    NotDistinguishable,
    /// No planned look has told them apart, and there may be more looks or not.
    Undecided,
    /// One pair says nothing about luck.
    OneSeed,
    /// There is no pair.
    NothingToCompare,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NotDistinguishable => "no difference seen",
            Self::Undecided => "undecided",
            Self::OneSeed => "one seed: no interval",
            Self::NothingToCompare => "nothing to compare",
        })
    }
}

impl Verdict {
    /// Whether the pairs do not tell the policies apart.
    pub fn is_level(self) -> bool {
        matches!(self, Self::NotDistinguishable | Self::Undecided)
    }
}

/// Judges a difference by a p-value: `paired.p_t`, or its [`holm`] correction if there are several.
pub fn verdict(paired: &Paired, p: Option<f64>, better: Better) -> Verdict {
    match (paired.n, p) {
        (0, _) => Verdict::NothingToCompare,
        (1, _) | (_, None) => Verdict::OneSeed,
        (_, Some(p)) => judged(paired, p, better, LEVEL).unwrap_or(Verdict::NotDistinguishable),
    }
}

fn judged(paired: &Paired, p: f64, better: Better, level: f64) -> Option<Verdict> {
    let good = match better {
        Better::Lower => paired.mean_difference < 0.0,
        Better::Higher => paired.mean_difference > 0.0,
    };
    (p < level).then_some(if good { Verdict::Better } else { Verdict::Worse })
}
