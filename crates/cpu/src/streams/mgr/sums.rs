//! Sums over a row that go with something else, in loops that stay eight lanes wide.

use crate::simd::total;
use std::array::from_fn;

/// What an AVX2 register holds.
pub(super) const REGISTER: usize = 8;

/// Partial sums that a dot product keeps, so that no addition waits for the one before.
const LANES: usize = 4 * REGISTER;

/// `sum_j a_j (b_j - c_j)`.
#[inline(always)]
pub(super) fn dot_difference(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let (c, c_rest) = c.as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for j in 0..LANES {
            sums[j] += a[j] * (b[j] - c[j]);
        }
    }
    let rest = a_rest.iter().zip(b_rest).zip(c_rest);
    total(sums) + rest.map(|((a, b), c)| a * (b - c)).sum::<f32>()
}

/// `s += beta (f - s)`, then `sum_j s_j s_j` and `sum_j s_j w_j`, in one pass.
#[inline(always)]
pub(super) fn lerp_square_and_dot(s: &mut [f32], beta: f32, f: &[f32], w: &[f32]) -> (f32, f32) {
    let ((f, f_rest), (w, w_rest)) = (f.as_chunks::<REGISTER>(), w.as_chunks::<REGISTER>());
    let (s, s_rest) = s.as_chunks_mut::<REGISTER>();
    let (mut squares, mut products) = ([0f32; REGISTER], [0f32; REGISTER]);
    for ((s, f), w) in s.iter_mut().zip(f).zip(w) {
        // All loads before all stores, or the compiler fears that they overlap.
        let moved: [f32; REGISTER] = from_fn(|j| s[j] + beta * (f[j] - s[j]));
        for j in 0..REGISTER {
            squares[j] += moved[j] * moved[j];
            products[j] += moved[j] * w[j];
        }
        *s = moved;
    }
    let (mut square, mut product) = (total(squares), total(products));
    for ((s, f), w) in s_rest.iter_mut().zip(f_rest).zip(w_rest) {
        *s += beta * (f - *s);
        square += *s * *s;
        product += *s * w;
    }
    (square, product)
}
