//! Counts that are made equal by the hidden width of the MLP.
//!
//! The count of a model is linear in `d_ff`: each unit is a row and a column (or two) of every block's MLP. So two counts
//! give the slope, and a third one says what is left.

/// How far a count may be off, as a share.
pub(super) const TOLERANCE: f64 = 0.01;
/// The widest MLP that a model may have.
const WIDEST: i128 = 1 << 24;

/// The `d_ff` at which a count is nearest to a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    /// It may be no width at all.
    pub(super) d_ff: i128,
    /// The count there; `None` if it is no width.
    pub(super) parameters: Option<u64>,
}

impl Fit {
    /// The width and its count, if that is near enough.
    pub(super) fn within(self, target: u64) -> Option<(usize, u64)> {
        let parameters = self.parameters?;
        let is_near = off(parameters, target).abs() <= TOLERANCE;
        is_near.then_some((usize::try_from(self.d_ff).ok()?, parameters))
    }
}

/// How far a count is off, as a share of the target.
pub(super) fn off(parameters: u64, target: u64) -> f64 {
    parameters as f64 / target.max(1) as f64 - 1.0
}

/// Looks for it from some width on.
pub(super) fn fit<E>(
    count: impl Fn(usize) -> Result<u64, E>,
    from: usize,
    target: u64,
) -> Result<Fit, E> {
    let from = from.min(WIDEST as usize - 1);
    let here = i128::from(count(from)?);
    let slope = i128::from(count(from + 1)?) - here;
    let missing = i128::from(target) - here;
    // Rounded to the nearest, away from zero where both are equally near.
    let steps = match slope {
        ..=0 => 0,
        slope => (2 * missing.abs() + slope) / (2 * slope) * missing.signum(),
    };
    let d_ff = from as i128 + steps;
    let parameters = match (1..=WIDEST).contains(&d_ff) {
        true => Some(count(d_ff as usize)?),
        false => None,
    };
    Ok(Fit { d_ff, parameters })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn at(slope: u64, rest: u64, from: usize, target: u64) -> Fit {
        let count = |d_ff: usize| Ok::<_, Infallible>(rest + slope * d_ff as u64);
        match fit(count, from, target) {
            Ok(fit) => fit,
            Err(never) => match never {},
        }
    }

    #[test]
    fn the_nearest_width_is_found_from_anywhere() {
        for from in [1, 40, 64, 1000] {
            for (target, d_ff) in [(7000, 60), (7049, 60), (7051, 61), (1100, 1), (1049, 0)] {
                let fit = at(100, 1000, from, target);
                assert_eq!(fit.d_ff, d_ff, "{from} {target}");
                assert_eq!(fit.parameters, (d_ff > 0).then_some(1000 + 100 * d_ff as u64));
            }
        }
    }

    #[test]
    fn what_is_no_width_or_too_far_off_fits_nothing() {
        assert_eq!(at(100, 9000, 10, 5000), Fit { d_ff: -40, parameters: None });
        assert_eq!(at(100, 9000, 10, 5000).within(5000), None);
        assert_eq!(at(1, 0, 10, u64::MAX).parameters, None);
        // Half a unit of 100 is more than a hundredth of 4,000.
        assert_eq!(at(100, 1000, 10, 4050).within(4050), None);
        assert_eq!(at(100, 1000, 10, 4030).within(4030), Some((30, 4000)));
        assert_eq!(at(0, 1000, 10, 1005).within(1005), Some((10, 1000)));
    }
}
