//! Sinkhorn-Knopp for several tokens at once: `iterations` times columns to sum one and rows to sum
//! one, from `exp(logits)`.
//!
//! Columns are normalised first, so a shift of a column's logits cancels out, and each column's largest
//! is taken away to begin with. Logits that lie more than [`LOWEST`] below it are raised to that: then
//! no row is so small that it vanishes, and after the first round no sum is below `1 / n^2`.
//!
//! DeepSeek's form has an epsilon: it is added to all elements once the columns sum to one for the first time, and to
//! every sum after that. Rows then end at `S / (S + epsilon)`.

use super::lanes::{LANES, Lane};
use crate::simd::exp;

/// `exp` of this is a normal number, and so is the inverse of that.
const LOWEST: f32 = -80.0;

/// Along what a sum is taken: where its elements start, and how far they are apart.
#[derive(Clone, Copy)]
enum Along {
    Columns,
    Rows,
}

impl Along {
    /// From one sum to the next, and from one element of a sum to the next.
    #[inline(always)]
    fn steps(self, n: usize) -> (usize, usize) {
        match self {
            Self::Columns => (1, n),
            Self::Rows => (n, 1),
        }
    }
}

/// Turns logits `[n, n]` into the mixing matrix, in place.
#[inline(always)]
pub(super) fn sinkhorn(
    matrix: &mut [Lane],
    n: usize,
    iterations: usize,
    epsilon: f32,
    inverses: &mut [Lane],
) {
    exponentials(matrix, n);
    for round in 0..iterations {
        normalise(matrix, n, Along::Columns, if round == 0 { 0.0 } else { epsilon }, inverses);
        if round == 0 {
            add_everywhere(matrix, epsilon);
        }
        normalise(matrix, n, Along::Rows, epsilon, inverses);
    }
}

#[inline(always)]
fn add_everywhere(matrix: &mut [Lane], epsilon: f32) {
    for x in matrix.iter_mut().flatten() {
        *x += epsilon;
    }
}

/// How many lanes [`sinkhorn_backward`] records.
pub(super) fn record_length(n: usize, iterations: usize) -> usize {
    n * n + 2 * iterations * (n * n + n)
}

/// From the gradient of the mixing matrix to that of the logits, in place; `record` is scratch.
#[inline(always)]
pub(super) fn sinkhorn_backward(
    gradient: &mut [Lane],
    logits: &[Lane],
    n: usize,
    iterations: usize,
    epsilon: f32,
    record: &mut [Lane],
) {
    let (start, steps) = record.split_at_mut(n * n);
    start.copy_from_slice(logits);
    exponentials(start, n);
    let mut before: &[Lane] = start;
    let mut along = Along::Columns;
    for (number, step) in steps.chunks_exact_mut(n * n + n).take(2 * iterations).enumerate() {
        let (after, inverses) = step.split_at_mut(n * n);
        after.copy_from_slice(before);
        // What is recorded of the first step is before the epsilon: the way back needs no more of it.
        if number == 1 {
            add_everywhere(after, epsilon);
        }
        normalise(after, n, along, if number == 0 { 0.0 } else { epsilon }, inverses);
        before = after;
        along = along.other();
    }
    for step in steps.chunks_exact(n * n + n).take(2 * iterations).rev() {
        along = along.other();
        let (after, inverses) = step.split_at(n * n);
        normalise_backward(gradient, after, inverses, n, along);
    }
    // What was raised to the lowest logit is treated as if it had been there: where all of a row was,
    // its elements still compete with each other.
    for (gradient, start) in gradient.iter_mut().zip(start) {
        for l in 0..LANES {
            gradient[l] *= start[l];
        }
    }
}

impl Along {
    #[inline(always)]
    fn other(self) -> Self {
        match self {
            Self::Columns => Self::Rows,
            Self::Rows => Self::Columns,
        }
    }
}

#[inline(always)]
fn exponentials(matrix: &mut [Lane], n: usize) {
    for column in 0..n {
        let mut largest = [f32::NEG_INFINITY; LANES];
        for logits in matrix.iter().skip(column).step_by(n) {
            for l in 0..LANES {
                largest[l] = largest[l].max(logits[l]);
            }
        }
        for logits in matrix.iter_mut().skip(column).step_by(n) {
            for l in 0..LANES {
                let below = logits[l] - largest[l];
                // Not `max`, which would turn NaN into a number.
                logits[l] = exp(if below < LOWEST { LOWEST } else { below });
            }
        }
    }
}

/// Divides by the sums and what is added to them, and leaves the inverses.
#[inline(always)]
fn normalise(matrix: &mut [Lane], n: usize, along: Along, added: f32, inverses: &mut [Lane]) {
    let (outer, inner) = along.steps(n);
    for (group, inverse) in inverses[..n].iter_mut().enumerate() {
        let mut sum = [0f32; LANES];
        for i in 0..n {
            let x = &matrix[group * outer + i * inner];
            for l in 0..LANES {
                sum[l] += x[l];
            }
        }
        for l in 0..LANES {
            inverse[l] = 1.0 / (sum[l] + added);
        }
        for i in 0..n {
            let x = &mut matrix[group * outer + i * inner];
            for l in 0..LANES {
                x[l] *= inverse[l];
            }
        }
    }
}

/// `y = x / s`, `s = sum(x) + added`: `d_x = (d_y - d_y . y) / s`.
#[inline(always)]
fn normalise_backward(
    gradient: &mut [Lane],
    after: &[Lane],
    inverses: &[Lane],
    n: usize,
    along: Along,
) {
    let (outer, inner) = along.steps(n);
    for (group, inverse) in inverses.iter().enumerate() {
        let mut along_y = [0f32; LANES];
        for i in 0..n {
            let at = group * outer + i * inner;
            for l in 0..LANES {
                along_y[l] += gradient[at][l] * after[at][l];
            }
        }
        for i in 0..n {
            let d = &mut gradient[group * outer + i * inner];
            for l in 0..LANES {
                d[l] = (d[l] - along_y[l]) * inverse[l];
            }
        }
    }
}
