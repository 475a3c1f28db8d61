//! What kernels do with one row. RMSNorm, `y = a x gain` with `a = scale r` and `r = 1 / sqrt(mean(x^2) + eps)`, and the
//! way back:
//!
//! ```text
//! pull = r^2 / width  sum_j d_j gain_j x_j          d: the gradient of y
//! d_x += a (d gain - pull x)
//! d_gain += a d x
//! ```

use crate::pieces::{load, store};
use crate::simd::{dot, total};
use std::array::from_fn;

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    inverse_root(dot(x, x), x.len(), eps)
}

/// `1 / sqrt(mean + eps)` of a sum of so many squares. Of an infinite sum it is not a number: zero would make a row of zeros
/// of one that is too large, which nobody would notice.
#[inline(always)]
pub(crate) fn inverse_root(squares: f32, count: usize, eps: f32) -> f32 {
    1.0 / (squares / count as f32 + eps).sqrt() + seen(squares)
}

/// Zero, or not a number if the sum is infinite: adding it changes no bit of what is finite.
#[inline(always)]
pub(crate) fn seen(squares: f32) -> f32 {
    squares * 0.0
}

/// `y = a x gain`.
#[inline(always)]
pub(crate) fn scale_by_gain(y: &mut [f32], a: f32, x: &[f32], gain: &[f32]) {
    for ((y, x), gain) in y.iter_mut().zip(x).zip(gain) {
        *y = a * x * gain;
    }
}

/// `y *= a gain`.
#[inline(always)]
pub(crate) fn multiply_by_gain(y: &mut [f32], a: f32, gain: &[f32]) {
    for (y, gain) in y.iter_mut().zip(gain) {
        *y *= a * gain;
    }
}

/// `x = x / sqrt(mean(x^2) + eps) * gain`.
#[inline(always)]
pub(crate) fn normalise(x: &mut [f32], gain: &[f32], eps: f32) {
    let r = inverse_rms(x, eps);
    multiply_by_gain(x, r, gain);
}

/// A norm that one row went through.
#[derive(Clone, Copy)]
pub(crate) struct Normed<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) inverse_rms: f32,
    pub(crate) scale: f32,
    pub(crate) gain: &'a [f32],
}

impl Normed<'_> {
    /// `d_x = carry d_x + a (d gain - pull x)`, also written to `copy`, and `d_gain += a d x`.
    #[inline(always)]
    pub(crate) fn add_gradient(
        self,
        d_x: &mut [f32],
        copy: &mut [f32],
        carry: f32,
        d: &[f32],
        d_gain: &mut [f32],
    ) {
        let (a, pull) = (self.scale * self.inverse_rms, self.pull(d));
        pieces!(d.len(), |at| {
            let (d, x): ([f32; N], [f32; N]) = (load(d, at), load(self.x, at));
            let gain: [f32; N] = load(self.gain, at);
            let (mut new, mut sums): ([f32; N], [f32; N]) = (load(d_x, at), load(d_gain, at));
            for j in 0..N {
                new[j] = carry * new[j] + a * (d[j] * gain[j] - pull * x[j]);
                sums[j] += a * d[j] * x[j];
            }
            store(d_x, at, new);
            store(copy, at, new);
            store(d_gain, at, sums);
        });
    }

    /// `d = a (d gain - pull x)`, so that it is of `x`, and `d_gain += a d x`.
    #[inline(always)]
    pub(crate) fn take_gradient(self, d: &mut [f32], d_gain: &mut [f32]) {
        let (a, pull) = (self.scale * self.inverse_rms, self.pull(d));
        pieces!(d.len(), |at| {
            let (x, gain): ([f32; N], [f32; N]) = (load(self.x, at), load(self.gain, at));
            let (mut new, mut sums): ([f32; N], [f32; N]) = (load(d, at), load(d_gain, at));
            for j in 0..N {
                sums[j] += a * new[j] * x[j];
                new[j] = a * (new[j] * gain[j] - pull * x[j]);
            }
            store(d, at, new);
            store(d_gain, at, sums);
        });
    }

    /// How strongly the gradient `d` is pulled back along `x`: the norm makes the output blind to the
    /// length of `x`.
    #[inline(always)]
    fn pull(self, d: &[f32]) -> f32 {
        let sum = triple_dot(d, self.gain, self.x);
        sum * self.inverse_rms * self.inverse_rms / self.x.len() as f32
    }
}

/// `sum_j a_j b_j c_j`.
#[inline(always)]
pub(crate) fn triple_dot(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    const LANES: usize = 8;
    const STEP: usize = 4 * LANES;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<STEP>(), b.as_chunks::<STEP>());
    let (c, c_rest) = c.as_chunks::<STEP>();
    let rest: f32 = a_rest.iter().zip(b_rest).zip(c_rest).map(|((a, b), c)| a * b * c).sum();
    // An array of four of these would be left in memory.
    let [mut first, mut second, mut third, mut fourth] = [[0f32; LANES]; 4];
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        let product = |j: usize| a[j] * b[j] * c[j];
        for j in 0..LANES {
            first[j] += product(j);
            second[j] += product(LANES + j);
            third[j] += product(2 * LANES + j);
            fourth[j] += product(3 * LANES + j);
        }
    }
    let pairs = from_fn(|j| (first[j] + third[j]) + (second[j] + fourth[j]));
    total::<LANES>(pairs) + rest
}
