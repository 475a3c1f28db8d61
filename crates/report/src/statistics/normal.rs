//! The normal distribution by the incomplete gamma function: `P(|Z| >= z) = Q(1/2, z^2/2)` (Abramowitz and Stegun
//! 26.4.19, 6.5.29 and 6.5.31).

/// Probability of a value at least as far from zero as `z`.
pub(super) fn two_sided(z: f64) -> f64 {
    /// Below this the series converges quickly, beyond it the continued fraction.
    const FAR: f64 = 2.0;
    let x = z * z / 2.0;
    if x.is_nan() {
        return f64::NAN;
    }
    // exp(-x) x^(1/2) / Gamma(1/2)
    let front = (-x).exp() * (x / std::f64::consts::PI).sqrt();
    if x < FAR {
        let (mut term, mut sum, mut a) = (2.0, 2.0, 0.5);
        while term > sum * f64::EPSILON / 4.0 {
            a += 1.0;
            term *= x / a;
            sum += term;
        }
        return 1.0 - front * sum;
    }
    // From the far end inwards, which needs no guard against zero.
    let terms = 40 + (400.0 / x) as u32;
    let rest = (1..=terms).rev().map(f64::from).fold(0.0, |rest, k| {
        let (upper, lower) = (k - 0.5, k);
        upper / (1.0 + lower / (x + rest))
    });
    front / (x + rest)
}

/// Probability of a value at most `z`.
pub(super) fn cdf(z: f64) -> f64 {
    let tail = two_sided(z) / 2.0;
    if z > 0.0 { 1.0 - tail } else { tail }
}

/// The distance from zero beyond which this much probability lies, on both sides together.
pub(super) fn distance(tail: f64) -> f64 {
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if two_sided(middle) > tail { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scipy.stats.norm.
    #[test]
    fn tails_are_scipys() {
        for (z, tail) in [
            (0.0, 1.0),
            (0.5, 0.617_075_077_451_973_8),
            (1.0, 0.317_310_507_862_914_15),
            (1.959_963_984_540_054, 0.05),
            (2.1, 0.035_728_841_125_633_085),
            (3.0, 0.002_699_796_063_260_207),
            (6.0, 1.973_175_290_075_396e-9),
        ] {
            assert!((two_sided(z) / tail - 1.0).abs() < 1e-12, "{z}: {}", two_sided(z));
            assert!((distance(tail) - z).abs() < 1e-9, "{tail}: {}", distance(tail));
        }
        assert!((cdf(-1.0) - 0.158_655_253_931_457_07).abs() < 1e-14);
        assert!((cdf(1.0) - 0.841_344_746_068_542_9).abs() < 1e-14);
    }
}
