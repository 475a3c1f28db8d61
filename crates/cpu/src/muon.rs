//! Muon over one matrix: momentum, the orthogonal factor of it, and the step, without tensors in between.
//!
//! The factor is found by repeating `X = a X + (b A + c A^2) X`, `A = X X^T`, on the wide orientation. Its
//! products are the largest part of an optimiser's time, so they run on the kernels of the layers.

use crate::buffer::unwritten;
use crate::gemm::{Packed, Scratch, Store, View, multiply, row_tasks};
use crate::parallel;
use crate::precision::Precision;
use crate::rows::transpose;
use crate::update::{PART, scale, square_sum};

/// The rule with everything that does not depend on the element worked out: `m = mu m + (1 - mu) g`,
/// `u = (1 - mu) g + mu m`, `w = keep w - size orth(u)`.
#[derive(Clone, Copy, Debug)]
pub struct Muon<'a> {
    /// Decay of the running mean.
    pub momentum: f32,
    /// What weight decay leaves.
    pub keep: f32,
    /// How far a step goes.
    pub size: f32,
    /// How the factor is found.
    pub polynomials: Polynomials<'a>,
}

/// Polynomials that bring all singular values close to one.
#[derive(Clone, Copy, Debug)]
pub struct Polynomials<'a> {
    /// The matrix is first divided by its norm times this.
    pub margin: f64,
    /// `a, b, c` of each repetition.
    pub coefficients: &'a [[f32; 3]],
}

/// Keeps a matrix of zeros from being divided by zero.
const TINY: f64 = 1e-7;

impl Muon<'_> {
    /// One step of one matrix of this shape.
    pub fn step(&self, values: &mut [f32], first: &mut [f32], gradient: &[f32], shape: [usize; 2]) {
        let count = shape[0] * shape[1];
        assert_eq!([values.len(), first.len(), gradient.len()], [count; 3], "of one shape");
        // SAFETY: all parts are written, as there is a gradient for each element.
        let mut direction = unsafe { unwritten(first.len()) };
        let parts = direction.chunks_mut(PART).zip(first.chunks_mut(PART));
        parallel::for_each(parts.zip(gradient.chunks(PART)), |((out, first), gradient)| {
            advance(out, first, gradient, self.momentum);
        });
        let orthogonal = self.polynomials.orthogonalise(direction, shape);
        let parts = values.chunks_mut(PART).zip(orthogonal.chunks(PART));
        parallel::for_each(parts, |(values, direction)| {
            go(values, direction, self.keep, self.size)
        });
    }
}

simd! {
    fn advance(out: &mut [f32], first: &mut [f32], gradient: &[f32], mu: f32) {
        for ((out, m), g) in out.iter_mut().zip(first).zip(gradient) {
            *m = mu * *m + (1.0 - mu) * g;
            *out = (1.0 - mu) * g + mu * *m;
        }
    }
}

simd! {
    fn go(values: &mut [f32], direction: &[f32], keep: f32, size: f32) {
        for (value, direction) in values.iter_mut().zip(direction) {
            *value = keep * *value - size * direction;
        }
    }
}

impl Polynomials<'_> {
    /// The nearest matrix with singular values close to one. `matrix` is `[rows, columns]`.
    pub fn orthogonalise(self, matrix: Vec<f32>, [rows, columns]: [usize; 2]) -> Vec<f32> {
        assert_eq!(matrix.len(), rows * columns, "of that shape");
        let tall = rows > columns;
        let (m, n) = if tall { (columns, rows) } else { (rows, columns) };
        let mut x = if tall { transpose(&matrix, columns) } else { matrix };
        let norm = square_sum(&x).sqrt() * self.margin + TINY;
        scale(&mut x, (1.0 / norm) as f32);
        for &[a, b, c] in self.coefficients {
            let turned = Packed::new(View::transposed(&x, n), n, m, Precision::F32);
            let square = symmetric_sum(0.0, &[], 1.0, &x, &turned);
            let packed = Packed::new(View::rows(&square, m), m, m, Precision::F32);
            let polynomial = symmetric_sum(b, &square, c, &square, &packed);
            let packed = Packed::new(View::rows(&x, n), m, n, Precision::F32);
            x = sum(a, &x, 1.0, &polynomial, &packed, false);
        }
        if tall { transpose(&x, n) } else { x }
    }
}

/// [`sum`] where the result is known to be symmetric: half of it is computed.
fn symmetric_sum(share: f32, old: &[f32], scale: f32, left: &[f32], right: &Packed) -> Vec<f32> {
    let mut out = sum(share, old, scale, left, right, true);
    let size = right.columns();
    for i in 0..size {
        for j in i + 1..size {
            out[i * size + j] = out[j * size + i];
        }
    }
    out
}

/// `share old + scale left right`; without `old`, the product alone. If `lower`, what lies above the diagonal
/// is not to be read.
fn sum(share: f32, old: &[f32], scale: f32, left: &[f32], right: &Packed, lower: bool) -> Vec<f32> {
    let (depth, columns) = (right.depth(), right.columns());
    let height = left.len() / depth;
    // SAFETY: what is written of a row is all that the caller may read.
    let mut product = unsafe { unwritten(height * columns) };
    let (mut out, mut left, mut end) = (product.as_mut_slice(), left, height);
    // The longest rows first: what comes last should be short.
    let tasks = row_tasks(height, Precision::F32).map(|rows| {
        end -= rows;
        let out = out.split_off_mut(end * columns..).expect("rows of the result");
        (end, out, left.split_off(end * depth..).expect("rows of the factor"))
    });
    parallel::for_each_init(tasks, Scratch::of_thread, |scratch, (first, out, left)| {
        let add = !old.is_empty();
        if add {
            copy_scaled(out, &old[first * columns..], share);
        }
        let height = out.len() / columns;
        let width = if lower { first + height } else { columns };
        let left = View::rows(left, depth);
        let store = Store { scale, add };
        multiply([height, width, depth], left, right, out, columns, store, scratch);
    });
    product
}

simd! {
    fn copy_scaled(out: &mut [f32], from: &[f32], factor: f32) {
        for (out, x) in out.iter_mut().zip(from) {
            *out = factor * x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, noise};

    const COEFFICIENTS: [[f32; 3]; 3] = [[3.4, -4.7, 2.0], [3.0, -4.0, 1.9], [1.875, -1.25, 0.375]];

    /// The definition, in f64.
    fn reference(matrix: &[f32], [rows, columns]: [usize; 2], margin: f64) -> Vec<f32> {
        let at = |x: &[f64], i: usize, j: usize, width: usize| x[i * width + j];
        let (m, n) = (rows.min(columns), rows.max(columns));
        let wide =
            |i: usize, j: usize| if rows > columns { j * columns + i } else { i * columns + j };
        let mut x: Vec<f64> = (0..m * n).map(|k| f64::from(matrix[wide(k / n, k % n)])).collect();
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt() * margin + TINY;
        x.iter_mut().for_each(|x| *x /= norm);
        for [a, b, c] in COEFFICIENTS.map(|abc| abc.map(f64::from)) {
            let square: Vec<f64> = (0..m * m)
                .map(|k| (0..n).map(|p| at(&x, k / m, p, n) * at(&x, k % m, p, n)).sum())
                .collect();
            let polynomial: Vec<f64> = (0..m * m)
                .map(|k| {
                    let fourth: f64 =
                        (0..m).map(|p| at(&square, k / m, p, m) * at(&square, p, k % m, m)).sum();
                    b * square[k] + c * fourth
                })
                .collect();
            x = (0..m * n)
                .map(|k| {
                    let turned: f64 =
                        (0..m).map(|p| at(&polynomial, k / n, p, m) * at(&x, p, k % n, n)).sum();
                    a * x[k] + turned
                })
                .collect();
        }
        let mut out = vec![0.0; m * n];
        (0..m * n).for_each(|k| out[wide(k / n, k % n)] = x[k] as f32);
        out
    }

    #[test]
    fn the_factor_is_that_of_the_definition_for_wide_and_tall_matrices() {
        let polynomials = Polynomials { margin: 1.01, coefficients: &COEFFICIENTS };
        for shape in [[1, 1], [3, 5], [17, 4], [40, 40], [30, 100], [90, 70]] {
            let matrix = noise("matrix", shape[0] * shape[1]);
            let got = polynomials.orthogonalise(matrix.clone(), shape);
            assert_close(&got, &reference(&matrix, shape, 1.01), 2e-5);
        }
    }

    #[test]
    fn a_step_is_momentum_then_the_factor_then_decay() {
        let polynomials = Polynomials { margin: 1.0, coefficients: &COEFFICIENTS };
        let rule = Muon { momentum: 0.9, keep: 0.99, size: 0.1, polynomials };
        let shape = [6, 9];
        let (start, mean, gradient) = (noise("w", 54), noise("m", 54), noise("g", 54));
        let (mut values, mut first) = (start.clone(), mean.clone());
        rule.step(&mut values, &mut first, &gradient, shape);
        let new_mean: Vec<f32> =
            mean.iter().zip(&gradient).map(|(m, g)| 0.9 * m + 0.1 * g).collect();
        assert_close(&first, &new_mean, 1e-6);
        let direction: Vec<f32> =
            new_mean.iter().zip(&gradient).map(|(m, g)| 0.1 * g + 0.9 * m).collect();
        let orthogonal = reference(&direction, shape, 1.0);
        let want: Vec<f32> =
            start.iter().zip(orthogonal).map(|(w, o)| 0.99 * w - 0.1 * o).collect();
        assert_close(&values, &want, 1e-5);
    }

    #[test]
    fn zeros_stay_zeros_and_nan_is_not_hidden() {
        let polynomials = Polynomials { margin: 1.0, coefficients: &COEFFICIENTS };
        assert!(polynomials.orthogonalise(vec![0.0; 12], [3, 4]).iter().all(|&x| x == 0.0));
        let mut broken = vec![1.0; 12];
        broken[5] = f32::NAN;
        assert!(polynomials.orthogonalise(broken, [3, 4]).iter().any(|x| x.is_nan()));
    }
}
