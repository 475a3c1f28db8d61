//! How much sooner a curve reaches the final loss of another.

use serde::Serialize;

/// A loss over tokens or seconds. Values that are not finite are left out.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// Tokens or seconds, rising.
    pub x: &'a [f64],
    /// Loss at each.
    pub loss: &'a [f64],
}

/// How much sooner a run reaches the baseline's final loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedUp {
    /// The baseline needs this many times as much; below 1 the baseline is quicker.
    Times(f64),
    /// It never gets there.
    NotReached,
    /// One of the curves has no points.
    NoCurve,
}

/// Compares where both curves, smoothed alike, first reach the baseline's final loss, so that equal curves give 1.
///
/// ```
/// use hadal_report::statistics::{Curve, SpeedUp, equal_loss_speedup};
///
/// let tokens = [100.0, 200.0, 300.0, 400.0];
/// let baseline = Curve { x: &tokens, loss: &[4.0, 3.0, 2.0, 1.0] };
/// let faster = Curve { x: &tokens, loss: &[3.0, 1.0, 0.5, 0.4] };
/// assert_eq!(equal_loss_speedup(baseline, faster, 1), SpeedUp::Times(2.0));
/// assert_eq!(equal_loss_speedup(faster, baseline, 1), SpeedUp::NotReached);
/// ```
pub fn equal_loss_speedup(baseline: Curve<'_>, other: Curve<'_>, window: usize) -> SpeedUp {
    let (baseline, other) = (prepared(baseline, window), prepared(other, window));
    let (Some(&(_, target)), Some(_)) = (baseline.last(), other.last()) else {
        return SpeedUp::NoCurve;
    };
    match (reaches(&baseline, target), reaches(&other, target)) {
        (Some(x), Some(sooner)) if sooner > 0.0 => SpeedUp::Times(x / sooner),
        (Some(_), Some(_)) => SpeedUp::NoCurve,
        _ => SpeedUp::NotReached,
    }
}

/// Mean over each value and the `window - 1` before it; values that are not finite are left out.
pub fn smoothed(values: &[f64], window: usize) -> Vec<f64> {
    let window = window.max(1);
    let mean = |end: usize| {
        let finite =
            values[(end + 1).saturating_sub(window)..=end].iter().filter(|v| v.is_finite());
        let (sum, count) = finite.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
        if count == 0 { f64::NAN } else { sum / f64::from(count) }
    };
    (0..values.len()).map(mean).collect()
}

fn prepared(curve: Curve<'_>, window: usize) -> Vec<(f64, f64)> {
    let points = curve.x.iter().copied().zip(curve.loss.iter().copied());
    let (x, loss): (Vec<f64>, Vec<f64>) =
        points.filter(|(x, loss)| x.is_finite() && loss.is_finite()).unzip();
    x.into_iter().zip(smoothed(&loss, window)).collect()
}

/// Where a curve first falls to `target`, on the straight line between its points.
fn reaches(points: &[(f64, f64)], target: f64) -> Option<f64> {
    let at = points.iter().position(|(_, loss)| *loss <= target)?;
    let (x, loss) = points[at];
    let Some(&(before, higher)) = at.checked_sub(1).and_then(|before| points.get(before)) else {
        return Some(x);
    };
    Some(before + (x - before) * (higher - target) / (higher - loss))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn falling(rate: f64, n: u32) -> (Vec<f64>, Vec<f64>) {
        let x: Vec<f64> = (1..=n).map(f64::from).collect();
        let loss = x.iter().map(|x| (-rate * x).exp()).collect();
        (x, loss)
    }

    #[test]
    fn equal_curves_give_one_even_when_noisy() {
        let (x, mut loss) = falling(0.02, 200);
        loss.iter_mut().enumerate().for_each(|(i, loss)| *loss += 0.1 * ((i * 7) as f64).sin());
        let curve = Curve { x: &x, loss: &loss };
        for window in [1, 5, 50] {
            assert_eq!(equal_loss_speedup(curve, curve, window), SpeedUp::Times(1.0));
        }
    }

    #[test]
    fn a_curve_that_falls_twice_as_fast_is_two_times_as_quick() {
        let ((x, slow), (_, fast)) = (falling(0.01, 400), falling(0.02, 400));
        let (slow, fast) = (Curve { x: &x, loss: &slow }, Curve { x: &x, loss: &fast });
        let SpeedUp::Times(times) = equal_loss_speedup(slow, fast, 1) else { panic!("reached") };
        assert!((times - 2.0).abs() < 1e-3, "{times}");
        assert_eq!(equal_loss_speedup(fast, slow, 1), SpeedUp::NotReached);
    }

    #[test]
    fn the_line_between_points_is_used() {
        let baseline = Curve { x: &[0.0, 10.0], loss: &[2.0, 1.0] };
        let other = Curve { x: &[0.0, 10.0], loss: &[2.0, 0.0] };
        assert_eq!(equal_loss_speedup(baseline, other, 1), SpeedUp::Times(2.0));
    }

    #[test]
    fn gaps_are_passed_over_and_empty_curves_are_said_so() {
        let baseline = Curve { x: &[1.0, 2.0, 3.0], loss: &[2.0, f64::NAN, 1.0] };
        assert_eq!(equal_loss_speedup(baseline, baseline, 3), SpeedUp::Times(1.0));
        let empty = Curve { x: &[1.0], loss: &[f64::NAN] };
        assert_eq!(equal_loss_speedup(baseline, empty, 1), SpeedUp::NoCurve);
        assert_eq!(equal_loss_speedup(empty, baseline, 1), SpeedUp::NoCurve);
    }

    #[test]
    fn smoothing_looks_back_only() {
        let values = [4.0, 2.0, f64::NAN, 6.0];
        assert_eq!(smoothed(&values, 2)[..2], [4.0, 3.0]);
        assert_eq!(smoothed(&values, 2)[2..], [2.0, 6.0]);
        assert_eq!(smoothed(&values, 0)[0], 4.0);
        assert!(smoothed(&values, 1)[2].is_nan());
    }
}
