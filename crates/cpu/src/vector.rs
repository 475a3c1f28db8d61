//! Matrix times vector, for steps of one token: every weight is read once, in order.

use crate::simd::dot;
use rayon::prelude::*;

/// Elements below which a second thread costs more than it brings.
const ALONE: usize = 1 << 15;

/// `y_i = W_i . x` for rows of `x.len()` elements.
pub fn matrix_times(matrix: &[f32], x: &[f32], y: &mut [f32]) {
    let inputs = x.len();
    if matrix.len() <= ALONE {
        return rows_times(matrix, x, y);
    }
    let rows = (ALONE / 2).div_ceil(inputs);
    y.par_chunks_mut(rows)
        .zip(matrix.par_chunks(rows * inputs))
        .for_each(|(y, matrix)| rows_times(matrix, x, y));
}

simd! {
    fn rows_times(matrix: &[f32], x: &[f32], y: &mut [f32]) {
        for (y, row) in y.iter_mut().zip(matrix.chunks_exact(x.len())) {
            *y = dot(row, x);
        }
    }
}
