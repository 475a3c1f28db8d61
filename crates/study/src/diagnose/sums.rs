//! What is kept of a stream of numbers that is too long to keep.

use hadal_cpu::splitmix::{STEP, finalise};
use hadal_report::figure::Quartiles;

/// A mean in f64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    pub(crate) fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    pub(crate) fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// The root of the mean, for a mean of squares.
    pub(crate) fn root(&self) -> Option<f64> {
        self.get().map(f64::sqrt)
    }
}

/// The entry at `index`, made if need be.
pub(crate) fn slot<T: Default + Clone>(entries: &mut Vec<T>, index: usize) -> &mut T {
    if entries.len() <= index {
        entries.resize(index + 1, T::default());
    }
    &mut entries[index]
}

/// How many numbers a [`Spread`] keeps: a quartile of this many is right to about one in a hundred.
const KEPT: usize = 8192;

/// Extremes and mean of all numbers, and an even sample of them for quartiles and histograms.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread {
    mean: Mean,
    extremes: Option<(f64, f64)>,
    sample: Vec<f32>,
    seen: u64,
}

impl Spread {
    pub(crate) fn add(&mut self, value: f32) {
        let wide = f64::from(value);
        self.mean.add(wide);
        let (least, most) = self.extremes.unwrap_or((wide, wide));
        self.extremes = Some((least.min(wide), most.max(wide)));
        self.seen += 1;
        if self.sample.len() < KEPT {
            self.sample.push(value);
            return;
        }
        // Every number is kept with the same probability (Vitter's algorithm R). The dice are a function of
        // the count alone, so that the same data gives the same figure.
        let place = (finalise(self.seen.wrapping_mul(STEP)) % self.seen) as usize;
        if place < KEPT {
            self.sample[place] = value;
        }
    }

    /// All numbers of several spreads of equal size.
    pub(crate) fn joined(parts: &[Self]) -> Self {
        let mut all = Self::default();
        for part in parts {
            part.sample.iter().for_each(|&value| all.add(value));
        }
        // Extremes are known for all numbers, not only for those that were kept.
        let least = parts.iter().filter_map(Self::least).reduce(f64::min);
        let most = parts.iter().filter_map(Self::most).reduce(f64::max);
        Self { extremes: least.zip(most), ..all }
    }

    pub(crate) fn mean(&self) -> Option<f64> {
        self.mean.get()
    }

    pub(crate) fn least(&self) -> Option<f64> {
        self.extremes.map(|(least, _)| least)
    }

    pub(crate) fn most(&self) -> Option<f64> {
        self.extremes.map(|(_, most)| most)
    }

    pub(crate) fn quartiles(&self) -> Option<Quartiles> {
        let (min, max) = self.extremes?;
        let mut sorted = self.sample.clone();
        sorted.sort_unstable_by(f32::total_cmp);
        let at = |share: f64| quantile(&sorted, share);
        Some(Quartiles { min, q1: at(0.25), median: at(0.5), q3: at(0.75), max })
    }

    /// The share of numbers in each of `bins` equal parts of `[from, to]`.
    pub(crate) fn histogram(&self, from: f64, to: f64, bins: usize) -> Vec<f64> {
        let mut counts = vec![0.0; bins];
        for &value in &self.sample {
            let place = (f64::from(value) - from) / (to - from) * bins as f64;
            counts[(place.max(0.0) as usize).min(bins - 1)] += 1.0 / self.sample.len() as f64;
        }
        counts
    }
}

/// Between the two nearest of sorted numbers.
fn quantile(sorted: &[f32], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let above = (below + 1).min(sorted.len() - 1);
    f64::from(sorted[below]) * (1.0 - part) + f64::from(sorted[above]) * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_spread_is_exact() {
        let mut spread = Spread::default();
        (0..=100).for_each(|i| spread.add(i as f32));
        let found = spread.quartiles().unwrap();
        assert_eq!(found, Quartiles { min: 0.0, q1: 25.0, median: 50.0, q3: 75.0, max: 100.0 });
        assert_eq!(spread.mean(), Some(50.0));
        let shares = spread.histogram(0.0, 101.0, 2);
        assert!((shares[0] - 51.0 / 101.0).abs() < 1e-12, "{shares:?}");
    }

    #[test]
    fn a_long_spread_keeps_its_extremes_and_estimates_the_rest() {
        let mut spread = Spread::default();
        (0..1_000_000).for_each(|i| spread.add(i as f32));
        let Quartiles { min, q1, median, q3, max } = spread.quartiles().unwrap();
        assert_eq!((min, max), (0.0, 999_999.0));
        for (found, expected) in [(q1, 0.25e6), (median, 0.5e6), (q3, 0.75e6)] {
            assert!((found - expected).abs() < 0.03e6, "{found} is not about {expected}");
        }
        assert_eq!(spread.sample.len(), KEPT);
    }

    #[test]
    fn nothing_has_no_quartiles() {
        assert_eq!(Spread::default().quartiles(), None);
        assert_eq!(Mean::default().get(), None);
    }
}
