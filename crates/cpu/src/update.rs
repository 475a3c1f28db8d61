//! Steps of an optimiser over whole tensors, and norms of gradients.

use crate::parallel;

/// Elements of one task: their values, gradients and means fit into the L2 cache.
pub(crate) const PART: usize = 1 << 14;

/// AdamW with everything that does not depend on the element worked out:
/// `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`, `w = keep w - size m / (root sqrt(v) + eps)`.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Decay of the two means.
    pub betas: [f32; 2],
    /// Learning rate over the first mean's correction.
    pub size: f32,
    /// One over the root of the second mean's correction.
    pub root: f32,
    /// What weight decay leaves.
    pub keep: f32,
    /// Added to the root.
    pub eps: f32,
}

impl AdamW {
    /// One step of one tensor.
    pub fn step(self, values: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32]) {
        let parts = values.chunks_mut(PART).zip(first.chunks_mut(PART));
        let more = second.chunks_mut(PART).zip(gradient.chunks(PART));
        parallel::for_each(parts.zip(more), |((values, first), (second, gradient))| {
            adamw(self, values, first, second, gradient);
        });
    }
}

simd! {
    fn adamw(
        rule: AdamW, values: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32],
    ) {
        let AdamW { betas: [b1, b2], size, root, keep, eps } = rule;
        let means = first.iter_mut().zip(second.iter_mut());
        for ((value, (m, v)), g) in values.iter_mut().zip(means).zip(gradient) {
            *m = b1 * *m + (1.0 - b1) * g;
            *v = b2 * *v + (1.0 - b2) * g * g;
            *value = keep * *value - size * *m / (v.sqrt() * root + eps);
        }
    }
}

/// The sum of squares, added in f64 and in the same order on any number of threads.
pub fn square_sum(values: &[f32]) -> f64 {
    let parts = parallel::map(values.chunks(PART), square_sum_part);
    parts.into_iter().sum()
}

simd! {
    fn square_sum_part(values: &[f32]) -> f64 {
        let mut sums = [0f64; 16];
        let chunks = values.chunks_exact(16);
        let rest: f64 = chunks.remainder().iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        for chunk in chunks {
            for j in 0..16 {
                let value = f64::from(chunk[j]);
                sums[j] += value * value;
            }
        }
        sums.iter().sum::<f64>() + rest
    }
}

/// Multiplies every element.
pub fn scale(values: &mut [f32], factor: f32) {
    parallel::for_each(values.chunks_mut(PART), |part| scale_part(part, factor));
}

simd! {
    fn scale_part(values: &mut [f32], factor: f32) {
        values.iter_mut().for_each(|value| *value *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    #[test]
    fn a_step_over_several_parts_is_the_rule_of_each_element() {
        let rule = AdamW { betas: [0.9, 0.95], size: 0.1, root: 2.0, keep: 0.99, eps: 1e-3 };
        let count = PART + 37;
        let (mut w, mut m) = (noise("w", count), noise("m", count));
        let mut v: Vec<f32> = noise("v", count).iter().map(|v| v * v).collect();
        let g = noise("g", count);
        let (w0, m0, v0) = (w.clone(), m.clone(), v.clone());
        rule.step(&mut w, &mut m, &mut v, &g);
        for i in [0, 1, PART - 1, PART, count - 1] {
            let (mean, square) = (0.9 * m0[i] + 0.1 * g[i], 0.95 * v0[i] + 0.05 * g[i] * g[i]);
            let want = 0.99 * w0[i] - 0.1 * mean / (2.0 * square.sqrt() + 1e-3);
            assert!((w[i] - want).abs() < 1e-5, "{} is not {want}", w[i]);
            assert!((m[i] - mean).abs() < 1e-6 && (v[i] - square).abs() < 1e-6);
        }
    }

    #[test]
    fn norms_and_scales_take_in_every_element() {
        let mut values = vec![2.0; PART + 5];
        assert_eq!(square_sum(&values), 4.0 * (PART + 5) as f64);
        scale(&mut values, 0.5);
        assert!(values.iter().all(|&value| value == 1.0));
        assert!(square_sum(&[f32::NAN]).is_nan());
    }
}
