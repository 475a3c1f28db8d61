//! `gelu(x) = x Phi(x)`, with the distribution function of the normal distribution, and its slope
//! `Phi(x) + x phi(x)`.

use crate::simd::exp;
use std::f32::consts::FRAC_1_SQRT_2;

/// `1 / sqrt(2 pi)`.
const DENSITY: f32 = 0.398_942_3;

/// `gelu(x)` and its slope. `Phi` is off by at most 8e-8 (Abramowitz and Stegun, 7.1.26); what is far below zero keeps its
/// digits.
#[inline(always)]
pub(super) fn gelu(x: f32) -> (f32, f32) {
    let z = x.abs() * FRAC_1_SQRT_2;
    let bell = exp(-z * z);
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let series =
        0.254_829_6 + t * (-0.284_496_73 + t * (1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4)));
    let beyond = 0.5 * t * series * bell;
    let share = if x < 0.0 { beyond } else { 1.0 - beyond };
    (x * share, share + x * DENSITY * bell)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simpson's rule over the density, from far below.
    fn share(x: f64) -> f64 {
        let (from, steps) = (-9.0, 4000);
        let h = (x - from) / f64::from(steps);
        let density = |i: i32| {
            let y = from + h * f64::from(i);
            (-0.5 * y * y).exp() / (2.0 * std::f64::consts::PI).sqrt()
        };
        let weight = |i: i32| match i {
            0 => 1.0,
            i if i == steps => 1.0,
            i if i % 2 == 1 => 4.0,
            _ => 2.0,
        };
        (0..=steps).map(|i| weight(i) * density(i)).sum::<f64>() * h / 3.0
    }

    #[test]
    fn values_and_slopes_are_those_of_the_exact_function() {
        for i in -60..=60 {
            let x = f64::from(i) * 0.1;
            let (value, slope) = gelu(x as f32);
            let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let (expected, expected_slope) = (x * share(x), share(x) + x * density);
            assert!((f64::from(value) - expected).abs() < 5e-7, "gelu({x}) is {value}");
            assert!((f64::from(slope) - expected_slope).abs() < 5e-7, "slope at {x} is {slope}");
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        assert!(gelu(f32::NAN).0.is_nan());
        assert_eq!(gelu(-40.0).0.abs(), 0.0);
        assert_eq!(gelu(40.0), (40.0, 1.0));
    }
}
