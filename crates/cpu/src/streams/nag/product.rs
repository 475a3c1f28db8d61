//! A small matrix product whose running sums stay in registers.

use crate::gemm::View;
use crate::simd::add_scaled;

/// Rows and columns that are summed side by side: eight AVX2 registers of sums, so that a loaded
/// element is used several times and no addition has to wait for the one before.
const ROWS: usize = 4;
const COLUMNS: usize = 16;

/// `y += a b`: y is `[m, n]`, a is `[m, k]`, b is `[k, n]`.
#[inline(always)]
pub(super) fn add_product(y: &mut [f32], a: View, b: &[f32], n: usize) {
    let mut done = 0;
    // Columns outside, so that the same few cache lines of b serve all rows.
    while done + COLUMNS <= n {
        add_to_columns::<COLUMNS>(y, a, b, n, done);
        done += COLUMNS;
    }
    if done + COLUMNS / 2 <= n {
        add_to_columns::<{ COLUMNS / 2 }>(y, a, b, n, done);
        done += COLUMNS / 2;
    }
    if done < n {
        for (i, y) in y.chunks_exact_mut(n).enumerate() {
            for (k, b) in b.chunks_exact(n).enumerate() {
                let factor = a.data[i * a.row + k * a.column];
                add_scaled(&mut y[done..], factor, &b[done..]);
            }
        }
    }
}

/// Does `C` columns from column `j`.
#[inline(always)]
fn add_to_columns<const C: usize>(y: &mut [f32], a: View, b: &[f32], n: usize, j: usize) {
    let m = y.len() / n;
    let mut i = 0;
    while i + ROWS <= m {
        add_to_block::<ROWS, C>(y, a, b, n, i, j);
        i += ROWS;
    }
    while i < m {
        add_to_block::<1, C>(y, a, b, n, i, j);
        i += 1;
    }
}

/// Does `R` rows from row `i` and `C` columns from column `j`.
#[inline(always)]
fn add_to_block<const R: usize, const C: usize>(
    y: &mut [f32],
    a: View,
    b: &[f32],
    n: usize,
    i: usize,
    j: usize,
) {
    let mut sums = [[0f32; C]; R];
    for (k, b) in b.chunks_exact(n).enumerate() {
        // A copy: from a reference it would be loaded once more for every row.
        let b: [f32; C] = b[j..j + C].try_into().expect("C elements");
        for (r, sums) in sums.iter_mut().enumerate() {
            let factor = a.data[(i + r) * a.row + k * a.column];
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += factor * b;
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        add_scaled(&mut y[(i + r) * n + j..][..C], 1.0, sums);
    }
}
