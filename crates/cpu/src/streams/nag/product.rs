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

/// [`add_product`] for an a that is stored as `[m, k]` and a b that is stored as `[n, k]`: the same sums in
/// the same order, thus to the bit, for when there are too few rows to transpose b.
#[inline(always)]
pub(super) fn add_product_by_columns(y: &mut [f32], a: &[f32], b: &[f32], n: usize) {
    const TOGETHER: usize = COLUMNS / 2;
    let k = b.len() / n;
    let whole = n / TOGETHER * TOGETHER;
    let (b, b_rest) = b.split_at(whole * k);
    for (y, a) in y.chunks_exact_mut(n).zip(a.chunks_exact(k)) {
        let (y, y_rest) = y.split_at_mut(whole);
        for (y, b) in y.chunks_exact_mut(TOGETHER).zip(b.chunks_exact(TOGETHER * k)) {
            let mut sums = [0f32; TOGETHER];
            for (i, a) in a.iter().enumerate() {
                for (column, sum) in sums.iter_mut().enumerate() {
                    *sum += a * b[column * k + i];
                }
            }
            add_scaled(y, 1.0, &sums);
        }
        for (y, b) in y_rest.iter_mut().zip(b_rest.chunks_exact(k)) {
            a.iter().zip(b).for_each(|(a, b)| *y += a * b);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::transpose;
    use crate::testing::noise;

    #[test]
    fn both_layouts_give_the_same_bits() {
        for (m, k, n) in [(1, 37, 1), (3, 64, 7), (7, 5, 8), (2, 37, 9), (5, 18, 32), (4, 20, 43)] {
            let (a, b) = (noise("a", m * k), noise("b", n * k));
            let mut rows = noise("y", m * n);
            let mut columns = rows.clone();
            add_product(&mut rows, View::rows(&a, k), &transpose(&b, k), n);
            add_product_by_columns(&mut columns, &a, &b, n);
            assert_eq!(rows, columns, "[{m}, {k}] times [{k}, {n}]");
        }
    }
}
