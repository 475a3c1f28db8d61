//! How restless a training was: sudden rises of its loss, and the size of its gradients.
//!
//! A step spikes if its loss is above the median of the 201 steps around it by more than 0.1 nats. Towards the ends of a
//! run the window shrinks on both sides alike, or else the fall at the beginning would be a row of spikes. The counts of Qwen3.8's report (2608.30320), there at the best learning rate and at
//! two and four times that.

use crate::run::StepPoint;
use serde::{Deserialize, Serialize};

/// Steps of the running median.
pub const WINDOW: usize = 201;
/// Nats above it that make a spike.
pub const RISE: f64 = 0.1;
/// The share of steps whose gradient is smaller than what is reported.
const MOST: f64 = 0.999;

/// The restlessness of one training, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spikes {
    /// Steps of training.
    pub steps: u64,
    /// Steps that spike; a loss that is no number is one.
    pub spikes: u64,
    /// Norm of the gradient before clipping that all but a thousandth of the steps stay below; the largest of fewer than
    /// a thousand.
    pub gradient: Option<f64>,
    /// Steps whose gradient was clipped.
    pub clipped: u64,
    /// The norm that gradients are clipped to; none if they are not.
    pub clip: Option<f64>,
}

impl Spikes {
    /// Of these steps, whose gradients are clipped to a norm, or not if that is zero.
    pub fn of(steps: &[StepPoint], clip: f64) -> Option<Self> {
        Self::together([steps], clip)
    }

    /// Of several runs as if they were one; none without steps.
    pub fn together<'a>(
        runs: impl IntoIterator<Item = &'a [StepPoint]>,
        clip: f64,
    ) -> Option<Self> {
        let clip = (clip > 0.0).then_some(clip);
        let mut found = Self { clip, ..Self::default() };
        let mut norms: Vec<f64> = Vec::new();
        for steps in runs {
            found.steps += steps.len() as u64;
            found.spikes += spiking(steps).into_iter().filter(|spikes| *spikes).count() as u64;
            // A norm that is no number was not small.
            norms.extend(steps.iter().map(|step| step.gradient_norm.unwrap_or(f64::INFINITY)));
        }
        found.clipped =
            clip.map_or(0, |clip| norms.iter().filter(|norm| **norm > clip).count() as u64);
        norms.sort_by(f64::total_cmp);
        let rank = (MOST * norms.len() as f64).ceil() as usize;
        found.gradient = norms.get(rank.saturating_sub(1)).copied().filter(|g| g.is_finite());
        (found.steps > 0).then_some(found)
    }

    /// Spikes in ten thousand steps.
    pub fn in_ten_thousand(&self) -> f64 {
        1e4 * self.spikes as f64 / self.steps.max(1) as f64
    }

    /// In a sentence without its full stop.
    pub fn sentence(&self) -> String {
        let Self { steps, spikes, clipped, .. } = self;
        let often = match spikes {
            0 => format!("Training never spiked in {steps} steps"),
            1 => format!("Training spiked once in {steps} steps"),
            _ => format!("Training spiked {spikes} times in {steps} steps"),
        };
        let norm = self.gradient.map_or(String::new(), |norm| {
            format!("; all but a thousandth of the gradients were below {norm:.2}")
        });
        let clip = self.clip.map_or(String::new(), |clip| {
            format!(", and {:.1} % were clipped to {clip}", 100.0 * *clipped as f64 / *steps as f64)
        });
        format!("{often}{norm}{clip}")
    }
}

/// The running median of the losses.
pub fn running_median(steps: &[StepPoint]) -> Vec<f64> {
    let losses: Vec<f64> = steps.iter().map(loss).collect();
    let last = losses.len().saturating_sub(1);
    let mut sorted: Vec<f64> = Vec::with_capacity(WINDOW);
    let mut medians = Vec::with_capacity(losses.len());
    let place =
        |sorted: &[f64], value: f64| sorted.partition_point(|x| x.total_cmp(&value).is_lt());
    let (mut from, mut to) = (0, 0);
    for i in 0..losses.len() {
        let half = (WINDOW / 2).min(i).min(last - i);
        while to <= i + half {
            sorted.insert(place(&sorted, losses[to]), losses[to]);
            to += 1;
        }
        while from < i - half {
            sorted.remove(place(&sorted, losses[from]));
            from += 1;
        }
        let middle = sorted.len() / 2;
        // As many on either side, so there is a middle one.
        medians.push(sorted[middle]);
    }
    medians
}

/// Which steps spike.
pub fn spiking(steps: &[StepPoint]) -> Vec<bool> {
    let medians = running_median(steps);
    steps.iter().zip(medians).map(|(step, median)| loss(step) > median + RISE).collect()
}

/// What is no number is above everything.
fn loss(step: &StepPoint) -> f64 {
    step.loss.filter(|loss| loss.is_finite()).unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::median;

    fn step(index: usize, loss: Option<f64>, norm: f64) -> StepPoint {
        StepPoint {
            step: index as u64 + 1,
            loss,
            gradient_norm: Some(norm),
            rate: 1.0,
            tokens: 0,
            tokens_per_second: None,
            flops: None,
            skip_rate: None,
            skip_target: None,
            skip_threshold: None,
            communication: None,
        }
    }

    fn steps(losses: &[f64]) -> Vec<StepPoint> {
        losses.iter().enumerate().map(|(i, loss)| step(i, Some(*loss), 0.5)).collect()
    }

    #[test]
    fn the_running_median_is_that_of_the_steps_around() {
        for count in [1, 2, 100, 101, 102, 350] {
            let losses: Vec<f64> = (0..count).map(|i| ((i * i * 7 + 3) % 101) as f64).collect();
            let found = running_median(&steps(&losses));
            for (i, found) in found.iter().enumerate() {
                let half = i.min(count - 1 - i).min(100);
                let around = &losses[i - half..=i + half];
                assert_eq!(*found, median(around.iter().copied()), "{i} of {count}");
            }
        }
    }

    #[test]
    fn a_spike_stands_out_of_a_falling_curve() {
        // Steeply at first: a fall is no row of spikes.
        let mut losses: Vec<f64> =
            (0..300).map(|i| 2.0 + 3.0 * (-0.05 * f64::from(i)).exp()).collect();
        losses[150] += 0.11;
        losses[220] += 0.09;
        losses[290] += 0.5;
        let mut points = steps(&losses);
        points[10].loss = None;
        let found = Spikes::of(&points, 1.0).unwrap();
        assert_eq!((found.steps, found.spikes), (300, 3));
        assert!((found.in_ten_thousand() - 3.0 / 300.0 * 1e4).abs() < 1e-9);
        assert!(spiking(&points)[150] && spiking(&points)[10] && !spiking(&points)[220]);
        assert!(found.sentence().starts_with("Training spiked 3 times in 300 steps"));
    }

    #[test]
    fn gradients_are_those_before_clipping() {
        let mut points: Vec<StepPoint> =
            (0..2000).map(|i| step(i, Some(1.0), (i + 1) as f64 / 1000.0)).collect();
        let found = Spikes::of(&points, 1.5).unwrap();
        assert_eq!((found.gradient, found.clipped, found.clip), (Some(1.998), 500, Some(1.5)));
        assert_eq!(Spikes::of(&points, 0.0).unwrap().clipped, 0);
        // Of a few steps the largest counts.
        points.truncate(10);
        assert_eq!(Spikes::of(&points, 1.0).unwrap().gradient, Some(0.01));
        assert_eq!(Spikes::of(&[], 1.0), None);
        let both = Spikes::together([&points[..4], &points[4..]], 0.0085).unwrap();
        assert_eq!((both.steps, both.clipped), (10, 2));
    }
}
