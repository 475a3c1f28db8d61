//! Sums over a row, in loops that stay eight lanes wide.

use std::hint::black_box;

/// What an AVX2 register holds.
const REGISTER: usize = 8;

/// Partial sums, one for each lane.
type Lanes = [f32; REGISTER];

/// The sum of partial sums.
///
/// If the compiler sees how the last eight become one, it shapes the whole loop before by the last
/// pair, and computes two lanes at a time: three times slower. Hence the black box.
#[inline(always)]
fn total(sums: Lanes) -> f32 {
    let [a, b, c, d, e, f, g, h] = black_box(sums);
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

/// The sums of four accumulators that take turns, so that no addition waits for the one before.
#[inline(always)]
fn total_of_four([a, b, c, d]: [Lanes; 4]) -> f32 {
    total(std::array::from_fn(|j| (a[j] + b[j]) + (c[j] + d[j])))
}

/// `sum_j a_j b_j`.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 4 * REGISTER;
    let mut sums = [[0f32; REGISTER]; 4];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for j in 0..LANES {
            sums[j / REGISTER][j % REGISTER] += a[j] * b[j];
        }
    }
    total_of_four(sums) + rest
}

/// `sum_j a_j (b_j - c_j)`.
#[inline(always)]
pub(super) fn dot_difference(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    const LANES: usize = 4 * REGISTER;
    let mut sums = [[0f32; REGISTER]; 4];
    let (a_chunks, b_chunks, c_chunks) =
        (a.chunks_exact(LANES), b.chunks_exact(LANES), c.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder()).zip(c_chunks.remainder());
    let rest: f32 = rest.map(|((a, b), c)| a * (b - c)).sum();
    for ((a, b), c) in a_chunks.zip(b_chunks).zip(c_chunks) {
        for j in 0..LANES {
            sums[j / REGISTER][j % REGISTER] += a[j] * (b[j] - c[j]);
        }
    }
    total_of_four(sums) + rest
}

/// `s += beta (f - s)`, then `sum_j s_j s_j` and `sum_j s_j w_j`, in one pass.
#[inline(always)]
pub(super) fn lerp_square_and_dot(s: &mut [f32], beta: f32, f: &[f32], w: &[f32]) -> (f32, f32) {
    let (mut squares, mut products) = ([0f32; REGISTER], [0f32; REGISTER]);
    let (f_chunks, w_chunks) = (f.chunks_exact(REGISTER), w.chunks_exact(REGISTER));
    let (f_rest, w_rest) = (f_chunks.remainder(), w_chunks.remainder());
    let mut s_chunks = s.chunks_exact_mut(REGISTER);
    for ((s, f), w) in (&mut s_chunks).zip(f_chunks).zip(w_chunks) {
        for j in 0..REGISTER {
            s[j] += beta * (f[j] - s[j]);
            squares[j] += s[j] * s[j];
            products[j] += s[j] * w[j];
        }
    }
    let (mut square, mut product) = (total(squares), total(products));
    for ((s, f), w) in s_chunks.into_remainder().iter_mut().zip(f_rest).zip(w_rest) {
        *s += beta * (f - *s);
        square += *s * *s;
        product += *s * w;
    }
    (square, product)
}
