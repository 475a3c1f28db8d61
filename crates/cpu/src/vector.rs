//! Matrix times vector, for steps of one token: every weight is read once, in order.

use crate::parallel;
use crate::simd::dot;

/// Elements below which a second thread costs more than it brings.
const ALONE: usize = 1 << 15;

/// `y_i = W_i . x` for rows of `x.len()` elements.
pub fn matrix_times(matrix: &[f32], x: &[f32], y: &mut [f32]) {
    let inputs = x.len();
    if matrix.len() <= ALONE {
        return rows_times(matrix, x, y);
    }
    let rows = (ALONE / 2).div_ceil(inputs);
    let tasks = y.chunks_mut(rows).zip(matrix.chunks(rows * inputs));
    parallel::for_each(tasks, |(y, matrix)| rows_times(matrix, x, y));
}

simd! {
    fn rows_times(matrix: &[f32], x: &[f32], y: &mut [f32]) {
        for (y, row) in y.iter_mut().zip(matrix.chunks_exact(x.len())) {
            *y = dot(row, x);
        }
    }
}
