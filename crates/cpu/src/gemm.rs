//! Matrix products in blocks: `C = A B`, with B packed once and shared by all tasks.
//!
//! The micro-kernel keeps a tile of `MR x NR` sums in registers and runs along k. B is packed into
//! panels of [`NR`] columns so that it is read in order; A is packed too, unless its rows are read too
//! few times for that to pay. The depth is cut into blocks of [`KC`], for which a panel of B fits into
//! the L1 cache. Products run on one thread: callers split the rows of C.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod pack;
mod tile;

pub(crate) use pack::Packed;

use crate::lent::Lent;
use pack::{pack_rows, pack_transposed, panel_stride};
use std::cell::Cell;
use tile::{A, multiply_panel};

/// Rows of a register tile.
pub(crate) const MR: usize = 6;
/// Columns of a register tile: two AVX2 registers.
pub(crate) const NR: usize = 16;
/// Depth of a block.
pub(crate) const KC: usize = 256;
/// Columns of C from which on it pays to pack rows of A.
const WORTH_PACKING: usize = 128;

/// How many of the rows of C one task should compute, so that all threads end at about the same time. Rows
/// are independent of each other, so the answer changes no bit.
pub(crate) fn rows_per_task(rows: usize) -> usize {
    let threads = rayon::current_num_threads();
    let cost = |&size: &usize| {
        let (tasks, rest) = (rows / size, rows % size);
        let last = if tasks.is_multiple_of(threads) { rest } else { size };
        // A task reads all of B, which costs about as much as half a row.
        2 * (tasks / threads * size + last.next_multiple_of(MR)) + tasks / threads
    };
    (4..=12).rev().map(|tiles| tiles * MR).min_by_key(cost).unwrap_or(MR)
}

/// A matrix somewhere in memory.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) data: &'a [f32],
    /// From one row to the next.
    pub(crate) row: usize,
    /// From one column to the next.
    pub(crate) column: usize,
}

impl<'a> View<'a> {
    /// Rows of `stride` elements.
    pub(crate) fn rows(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: stride, column: 1 }
    }

    /// The transpose of rows of `stride` elements.
    pub(crate) fn transposed(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: 1, column: stride }
    }
}

/// Memory that a task needs for its products, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    a: Vec<f32>,
}

impl Scratch {
    /// The one that this thread keeps.
    pub(crate) fn of_thread() -> Lent<Self> {
        thread_local!(static HOME: Cell<Scratch> = const { Cell::new(Scratch { a: Vec::new() }) });
        Lent::from(&HOME)
    }
}

/// What happens to C.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Store {
    /// Multiplies the product.
    pub(crate) scale: f32,
    /// Adds to what is there instead of replacing it.
    pub(crate) add: bool,
}

impl Store {
    /// `C = A B`.
    pub(crate) const SET: Self = Self { scale: 1.0, add: false };
    /// `C += A B`.
    pub(crate) const ADD: Self = Self { scale: 1.0, add: true };
}

/// `C[m, n] = A[m, k] B` for rows of C with stride `ldc`; the first `k` rows of B are used.
pub(crate) fn multiply(
    [m, n, k]: [usize; 3],
    a: View,
    b: &Packed,
    c: &mut [f32],
    ldc: usize,
    store: Store,
    scratch: &mut Scratch,
) {
    assert!(k <= b.depth() && n <= b.columns());
    assert!(m == 0 || n == 0 || c.len() >= (m - 1) * ldc + n);
    // A stream of its own is read faster than six rows side by side, above all where rows are a large
    // power of two apart and fall into the same cache sets; but it must be read often enough.
    let transposed = a.column != 1;
    let in_place = !transposed && n < WORTH_PACKING && !a.row.is_multiple_of(512);
    for start in (0..k).step_by(KC) {
        let depth = KC.min(k - start);
        let store = Store { add: store.add || start > 0, ..store };
        let from = &a.data[start * a.column..];
        let a = if in_place {
            A { data: from, row: a.row, step: 1, tile: MR * a.row }
        } else {
            let stride = panel_stride(depth);
            scratch.a.resize(m.div_ceil(MR) * stride, 0.0);
            match transposed {
                true => pack_transposed(&mut scratch.a, stride, from, a.column, m, depth),
                false => pack_rows(&mut scratch.a, stride, from, a.row, m, depth),
            }
            A { data: &scratch.a, row: 1, step: MR, tile: stride }
        };
        for panel in 0..n.div_ceil(NR) {
            let b = &b.panel(start, panel)[..depth * NR];
            let columns = NR.min(n - panel * NR);
            multiply_panel([m, columns, depth], a, b, &mut c[panel * NR..], ldc, store);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, noise};

    /// `[m, k] x [k, n]` in f64.
    fn reference(a: impl Fn(usize, usize) -> f32, b: &[f32], [m, n, k]: [usize; 3]) -> Vec<f32> {
        let element = |i: usize, j: usize| -> f64 {
            (0..k).map(|p| f64::from(a(i, p)) * f64::from(b[p * n + j])).sum()
        };
        (0..m * n).map(|at| element(at / n, at % n) as f32).collect()
    }

    #[test]
    fn products_of_all_shapes_are_those_of_the_definition() {
        let sizes = [1, 5, 6, 7, 16, 17, 250, 256, 300];
        let mut scratch = Scratch::default();
        for m in [1, 5, 6, 13] {
            for n in [1, 15, 16, 33] {
                for k in sizes {
                    let (a, b) = (noise("a", m * k), noise("b", k * n));
                    let want = reference(|i, p| a[i * k + p], &b, [m, n, k]);
                    let packed = Packed::new(View::rows(&b, n), k, n);
                    let mut c = vec![f32::NAN; m * n];
                    multiply(
                        [m, n, k],
                        View::rows(&a, k),
                        &packed,
                        &mut c,
                        n,
                        Store::SET,
                        &mut scratch,
                    );
                    assert_close(&c, &want, 1e-5);

                    let transposed: Vec<f32> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
                    let mut c = vec![1.0; m * n];
                    let store = Store { scale: 2.0, add: true };
                    let mut again = Packed::default();
                    let columns: Vec<f32> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
                    again.refill(View::transposed(&columns, k), k, n);
                    let sizes = [m, n, k];
                    multiply(
                        sizes,
                        View::transposed(&transposed, m),
                        &again,
                        &mut c,
                        n,
                        store,
                        &mut scratch,
                    );
                    let want: Vec<f32> = want.iter().map(|w| 2.0 * w + 1.0).collect();
                    assert_close(&c, &want, 1e-5);
                }
            }
        }
    }

    #[test]
    fn tasks_end_together() {
        let in_pool = |threads: usize, rows: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| rows_per_task(rows))
        };
        for threads in [1, 2, 3, 8] {
            for rows in [1, 5, 256, 1024, 2048, 10_000] {
                let size = in_pool(threads, rows);
                assert!(size.is_multiple_of(MR) && (24..=72).contains(&size));
                let rounds = rows.div_ceil(size).div_ceil(threads);
                assert!(rounds * size <= rows.div_ceil(threads) + 72, "{threads} {rows} {size}");
            }
        }
        // 18 tasks on each of two threads, one more, and the rest: 1026 rows, where half is 1024.
        assert_eq!(in_pool(2, 2048), 54);
    }

    #[test]
    fn rows_that_share_cache_sets_are_copied_and_give_the_same() {
        let (m, n, k) = (7, 20, 512);
        let (a, b) = (noise("a", m * k), noise("b", k * n));
        let packed = Packed::new(View::rows(&b, n), k, n);
        let mut c = vec![f32::NAN; m * n];
        let mut scratch = Scratch::default();
        multiply([m, n, k], View::rows(&a, k), &packed, &mut c, n, Store::SET, &mut scratch);
        assert_close(&c, &reference(|i, p| a[i * k + p], &b, [m, n, k]), 1e-5);
    }
}
