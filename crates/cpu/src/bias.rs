//! Biases: one row that is added to every row.

use crate::parallel;
use crate::simd::add_scaled;

/// Elements that one task takes.
const PIECE: usize = 1 << 15;

/// Adds `bias` to each row of `rows`.
pub fn add(rows: &mut [f32], bias: &[f32]) {
    let piece = (PIECE / bias.len().max(1)).max(1) * bias.len();
    parallel::for_each(rows.chunks_mut(piece.max(1)), |rows| add_to_each(rows, bias));
}

simd! {
    fn add_to_each(rows: &mut [f32], bias: &[f32]) {
        for row in rows.chunks_exact_mut(bias.len()) {
            add_scaled(row, 1.0, bias);
        }
    }
}

/// The gradient of a bias of `width` elements: the sum of the rows of `d`.
pub fn gradient(d: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0; width];
    sum_rows(&mut sum, d);
    sum
}

simd! {
    fn sum_rows(sum: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(sum.len()) {
            add_scaled(sum, 1.0, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_gets_the_bias_and_gives_its_gradient() {
        let mut rows = vec![0.0; 3 * 40_000];
        add(&mut rows, &[1.0, 2.0, 3.0]);
        assert!(rows.chunks_exact(3).all(|row| row == [1.0, 2.0, 3.0]));
        assert_eq!(gradient(&rows[..12], 3), [4.0, 8.0, 12.0]);
    }
}
