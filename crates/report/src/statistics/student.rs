//! Student's t distribution by the regularised incomplete beta function.
//!
//! `P(|T| >= t) = I_x(v/2, 1/2)` with `x = v / (v + t^2)` and `v` degrees of freedom
//! (Abramowitz and Stegun 26.5.27). The function itself is Lentz's continued fraction (26.5.8).

use std::f64::consts::PI;

/// Probability of a value at most `t`.
pub fn cdf(t: f64, degrees: f64) -> f64 {
    let tail = two_sided(t, degrees) / 2.0;
    if t > 0.0 { 1.0 - tail } else { tail }
}

/// Probability of a value at least as far from zero as `t`.
pub fn two_sided(t: f64, degrees: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    let square = t * t;
    let (x, rest) = (degrees / (degrees + square), square / (degrees + square));
    incomplete_beta(x, rest, degrees / 2.0, 0.5)
}

/// The value with this share of the distribution below it.
pub fn quantile(probability: f64, degrees: f64) -> f64 {
    if !(0.0..=1.0).contains(&probability) || degrees <= 0.0 || degrees.is_nan() {
        return f64::NAN;
    }
    let tail = 2.0 * probability.min(1.0 - probability);
    if tail == 0.0 {
        return if probability < 0.5 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let (mut low, mut high) = (0.0, 1.0);
    while two_sided(high, degrees) > tail {
        (low, high) = (high, 2.0 * high);
    }
    // The tail falls with every step outwards, so halving ends at two neighbouring numbers.
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return if probability < 0.5 { -middle } else { middle };
        }
        if two_sided(middle, degrees) > tail { low = middle } else { high = middle }
    }
}

/// `I_x(a, b)`; `rest = 1 - x` comes from the caller, which knows it without cancellation.
fn incomplete_beta(x: f64, rest: f64, a: f64, b: f64) -> f64 {
    if x.is_nan() || rest.is_nan() {
        return f64::NAN;
    }
    if x <= 0.0 || rest <= 0.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * rest.ln()).exp();
    // The fraction converges quickly only on this side of the mean.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(x, a, b) / a
    } else {
        1.0 - front * fraction(rest, b, a) / b
    }
}

/// Lentz's evaluation of the continued fraction of `I_x(a, b)`.
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    const TERMS: u32 = 10_000;
    let away_from_zero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut sum = d;
    for m in 1..=TERMS {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + term * d);
            c = away_from_zero(1.0 + term / c);
            change = c * d;
            sum *= change;
        }
        if (change - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    sum
}

/// Logarithm of the gamma function for positive numbers: Stirling's series after a shift.
pub(super) fn ln_gamma(x: f64) -> f64 {
    // Bernoulli numbers over 2k (2k - 1); from 12 on the first omitted term is below 1e-16.
    const SERIES: [f64; 7] = [
        1.0 / 12.0,
        -1.0 / 360.0,
        1.0 / 1260.0,
        -1.0 / 1680.0,
        1.0 / 1188.0,
        -691.0 / 360_360.0,
        1.0 / 156.0,
    ];
    let (mut x, mut shift) = (x, 1.0);
    while x < 12.0 {
        shift *= x;
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let tail = SERIES.iter().rev().fold(0.0, |sum, term| sum * inverse * inverse + term) * inverse;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * PI).ln() + tail - shift.ln()
}
