//! Matrix products in blocks: `C = A B`, with B packed once and shared by all tasks.
//!
//! The micro-kernel keeps a tile of `MR x NR` sums in registers and runs along k. B is packed into
//! panels of [`NR`] columns so that it is read in order; A is read in place where k is contiguous, and
//! packed where it is transposed. The depth is cut into blocks of [`KC`], for which a panel of B fits
//! into the L1 cache. All functions here run on one thread: callers split the rows of C.

use crate::rows::filled;
use crate::simd::prefetch;
use rayon::prelude::*;

/// Rows of a register tile.
pub(crate) const MR: usize = 6;
/// Columns of a register tile: two AVX2 registers.
pub(crate) const NR: usize = 16;
/// Depth of a block.
pub(crate) const KC: usize = 256;
/// Rows of C that one task computes: a multiple of [`MR`], and few enough that tasks balance.
pub(crate) const ROWS: usize = 66;

/// Columns of C from which on it pays to pack rows of A.
const WORTH_PACKING: usize = 128;
/// How many rows before it is needed a row is asked for.
const AHEAD: usize = 6;

/// A matrix somewhere in memory.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    data: &'a [f32],
    row: usize,
    column: usize,
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

/// The right factor `[k, n]`: by blocks of depth, by panels of columns.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    data: Vec<f32>,
    k: usize,
    n: usize,
}

impl Packed {
    /// Packs `b`, on as many threads as there are.
    pub(crate) fn new(b: View, k: usize, n: usize) -> Self {
        Self::side_by_side(&[(b, n)], k)
    }

    /// Packs matrices with as many columns each side by side, as if they were one. All but the last must
    /// fill their panels.
    pub(crate) fn side_by_side(parts: &[(View, usize)], k: usize) -> Self {
        let n: usize = parts.iter().map(|(_, n)| n).sum();
        debug_assert!(parts.iter().rev().skip(1).all(|(_, n)| n.is_multiple_of(NR)));
        let panels = n.div_ceil(NR);
        let data = filled(k * panels * NR, |data| {
            let blocks = data.par_chunks_mut(KC * panels * NR).enumerate();
            blocks.for_each(|(block, data)| {
                let depth = data.len() / (panels * NR);
                data.par_chunks_mut(depth * NR).enumerate().with_min_len(4).for_each(
                    |(panel, out)| {
                        let mut column = panel * NR;
                        for &(b, n) in parts {
                            if column < n {
                                let columns = NR.min(n - column);
                                return pack_panel(out, b, block * KC, column, columns);
                            }
                            column -= n;
                        }
                    },
                );
            });
        });
        Self { data, k, n }
    }

    /// Packs `b` into the memory of an earlier one, on this thread.
    pub(crate) fn refill(&mut self, b: View, k: usize, n: usize) {
        let panels = n.div_ceil(NR);
        (self.k, self.n) = (k, n);
        self.data.resize(k * panels * NR, 0.0);
        for (block, data) in self.data.chunks_mut((KC * panels * NR).max(1)).enumerate() {
            let depth = data.len() / (panels * NR);
            for (panel, out) in data.chunks_mut(depth * NR).enumerate() {
                pack_panel(out, b, block * KC, panel * NR, NR.min(n - panel * NR));
            }
        }
    }

    /// How many rows it has.
    pub(crate) fn depth(&self) -> usize {
        self.k
    }

    /// The panel that begins with column `panel * NR`, in the block that begins at depth `start`.
    fn panel(&self, start: usize, panel: usize) -> &[f32] {
        let depth = KC.min(self.k - start);
        let first = start * self.n.div_ceil(NR) * NR + panel * depth * NR;
        &self.data[first..first + depth * NR]
    }
}

simd! {
    /// One panel: `columns` columns from `column`, as many rows from `start` as `out` has room for.
    fn pack_panel(out: &mut [f32], b: View, start: usize, column: usize, columns: usize) {
        let first = start * b.row + column * b.column;
        if b.column == 1 && columns == NR {
            for (p, out) in out.as_chunks_mut::<NR>().0.iter_mut().enumerate() {
                let from = first + p * b.row;
                // A copy of known length is two registers, not a call.
                *out = b.data[from..from + NR].try_into().unwrap_or([0.0; NR]);
            }
            return;
        }
        if b.column == 1 {
            for (p, out) in out.chunks_exact_mut(NR).enumerate() {
                let from = first + p * b.row;
                out[..columns].copy_from_slice(&b.data[from..from + columns]);
                out[columns..].fill(0.0);
            }
            return;
        }
        // Columns are rows of memory: go along eight rows of the panel at a time, so that what is
        // read and what is written both stay in the cache.
        for (group, out) in out.chunks_mut(8 * NR).enumerate() {
            let depth = out.len() / NR;
            for j in 0..NR {
                if j >= columns {
                    out.iter_mut().skip(j).step_by(NR).for_each(|x| *x = 0.0);
                    continue;
                }
                let from = first + group * 8 * b.row + j * b.column;
                if b.row == 1 && depth == 8 {
                    let source: &[f32; 8] = b.data[from..from + 8].try_into().expect("eight");
                    for p in 0..8 {
                        out[p * NR + j] = source[p];
                    }
                } else {
                    for p in 0..depth {
                        out[p * NR + j] = b.data[from + p * b.row];
                    }
                }
            }
        }
    }
}

/// Memory that a task needs for its products, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    a: Vec<f32>,
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

/// `C[m, n] = A[m, k] B` for rows of A with stride `lda` and rows of C with stride `ldc`; the first `k`
/// rows of B are used.
#[allow(clippy::too_many_arguments)]
pub(crate) fn multiply(
    [m, n, k]: [usize; 3],
    a: &[f32],
    lda: usize,
    b: &Packed,
    c: &mut [f32],
    ldc: usize,
    store: Store,
    scratch: &mut Scratch,
) {
    check([m, n, k], b, c, ldc);
    assert!(m == 0 || k == 0 || a.len() >= (m - 1) * lda + k);
    // A stream of its own is read faster than six rows side by side, above all where rows are a large
    // power of two apart and fall into the same cache sets; but it must be read often enough.
    let packs = n >= WORTH_PACKING || lda.is_multiple_of(512);
    for start in (0..k).step_by(KC) {
        let depth = KC.min(k - start);
        let store = Store { add: store.add || start > 0, ..store };
        let a = if packs {
            let stride = panel_stride(depth);
            scratch.a.resize(m.div_ceil(MR) * stride, 0.0);
            pack_rows(&mut scratch.a, stride, &a[start..], lda, m, depth);
            A { data: &scratch.a, row: 1, step: MR, tile: stride }
        } else {
            A { data: &a[start..], row: lda, step: 1, tile: MR * lda }
        };
        for panel in 0..n.div_ceil(NR) {
            let b = &b.panel(start, panel)[..depth * NR];
            let columns = NR.min(n - panel * NR);
            multiply_panel([m, columns, depth], a, b, &mut c[panel * NR..], ldc, store);
        }
    }
}

/// One line more than a panel of A, so that panels do not fall into the same cache sets.
fn panel_stride(depth: usize) -> usize {
    depth * MR + NR
}

/// `C[m, n] = A^T B` where A is `[k, m]` in rows of stride `lda`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn multiply_transposed(
    [m, n, k]: [usize; 3],
    a: &[f32],
    lda: usize,
    b: &Packed,
    c: &mut [f32],
    ldc: usize,
    store: Store,
    scratch: &mut Scratch,
) {
    check([m, n, k], b, c, ldc);
    for start in (0..k).step_by(KC) {
        let depth = KC.min(k - start);
        let store = Store { add: store.add || start > 0, ..store };
        let stride = panel_stride(depth);
        scratch.a.resize(m.div_ceil(MR) * stride, 0.0);
        pack_transposed(&mut scratch.a, stride, &a[start * lda..], lda, m, depth);
        for panel in 0..n.div_ceil(NR) {
            let b = &b.panel(start, panel)[..depth * NR];
            let columns = NR.min(n - panel * NR);
            let a = A { data: &scratch.a, row: 1, step: MR, tile: stride };
            multiply_panel([m, columns, depth], a, b, &mut c[panel * NR..], ldc, store);
        }
    }
}

fn check([m, n, k]: [usize; 3], b: &Packed, c: &[f32], ldc: usize) {
    assert!(k <= b.k && n <= b.n);
    assert!(m == 0 || n == 0 || c.len() >= (m - 1) * ldc + n);
}

simd! {
    /// Rows of `depth` elements into panels of [`MR`] rows.
    fn pack_rows(
        out: &mut [f32], stride: usize, a: &[f32], lda: usize, m: usize, depth: usize,
    ) {
        for (i, out) in out.chunks_mut(stride).enumerate().take(m.div_ceil(MR)) {
            let rows = MR.min(m - i * MR);
            let row = |r: usize| &a[(i * MR + r.min(rows - 1)) * lda..][..depth];
            let rows: [&[f32]; MR] = std::array::from_fn(row);
            for (p, out) in out.as_chunks_mut::<MR>().0.iter_mut().enumerate().take(depth) {
                *out = [rows[0][p], rows[1][p], rows[2][p], rows[3][p], rows[4][p], rows[5][p]];
            }
        }
    }
}

simd! {
    /// `[k, m]` rows into panels of [`MR`] columns.
    fn pack_transposed(
        out: &mut [f32], stride: usize, a: &[f32], lda: usize, m: usize, depth: usize,
    ) {
        for p in 0..depth {
            // Rows lie on pages of their own, where the hardware does not look ahead.
            if let Some(ahead) = a.get((p + AHEAD) * lda..(p + AHEAD) * lda + m) {
                prefetch(ahead);
            }
            let (full, rest) = a[p * lda..p * lda + m].as_chunks::<MR>();
            for (tile, six) in out[p * MR..].chunks_mut(stride).zip(full) {
                // A copy of known length is a few moves, not a call.
                if let Some(out) = tile.first_chunk_mut::<MR>() {
                    *out = *six;
                }
            }
            if !rest.is_empty() {
                let at = (m / MR) * stride + p * MR;
                out[at..at + rest.len()].copy_from_slice(rest);
            }
        }
    }
}

/// Where the micro-kernel finds A: element `(r, p)` of tile i at `i * tile + r * row + p * step`.
#[derive(Clone, Copy)]
struct A<'a> {
    data: &'a [f32],
    row: usize,
    step: usize,
    tile: usize,
}

impl<'a> A<'a> {
    fn of_tile(self, index: usize) -> Self {
        Self { data: &self.data[index * self.tile..], ..self }
    }
}

/// One panel of C, at most [`NR`] columns wide.
fn multiply_panel(
    [m, columns, depth]: [usize; 3],
    a: A,
    b: &[f32],
    c: &mut [f32],
    ldc: usize,
    store: Store,
) {
    let full = if columns == NR { m / MR } else { 0 };
    if full > 0 {
        full_tiles(full, depth, a, b, c, ldc, store);
    }
    // Edges go by way of a full tile.
    for index in full..m.div_ceil(MR) {
        let rows = MR.min(m - index * MR);
        let mut whole = [0.0; MR * NR];
        let set = Store { add: false, ..store };
        if rows == MR {
            full_tiles(1, depth, a.of_tile(index), b, &mut whole, NR, set);
        } else {
            some_rows(rows, depth, a.of_tile(index), b, &mut whole, NR, set);
        }
        let c = c[index * MR * ldc..].chunks_mut(ldc);
        for (c, whole) in c.zip(whole.chunks_exact(NR)).take(rows) {
            for (c, whole) in c[..columns].iter_mut().zip(whole) {
                *c = *whole + if store.add { *c } else { 0.0 };
            }
        }
    }
}

/// `tiles` tiles of [`MR`] rows and [`NR`] columns, one below the other.
fn full_tiles(
    tiles: usize,
    depth: usize,
    a: A,
    b: &[f32],
    c: &mut [f32],
    ldc: usize,
    store: Store,
) {
    let last = (tiles - 1) * a.tile + (MR - 1) * a.row + (depth - 1) * a.step;
    assert!(a.data.len() > last && b.len() >= depth * NR);
    assert!(c.len() >= (tiles * MR - 1) * ldc + NR);
    #[cfg(target_arch = "x86_64")]
    if !crate::simd::is_portable() {
        // SAFETY: AVX2 and FMA were detected, and the lengths were checked above.
        return unsafe { avx2::full_tiles(tiles, depth, a, b, c, ldc, store) };
    }
    for index in 0..tiles {
        portable_kernel(MR, depth, a.of_tile(index), b, &mut c[index * MR * ldc..], ldc, store);
    }
}

/// One tile of fewer rows.
fn some_rows(rows: usize, depth: usize, a: A, b: &[f32], c: &mut [f32], ldc: usize, store: Store) {
    assert!(rows <= MR && a.data.len() > (rows - 1) * a.row + (depth - 1) * a.step);
    assert!(b.len() >= depth * NR && c.len() >= (rows - 1) * ldc + NR);
    #[cfg(target_arch = "x86_64")]
    if !crate::simd::is_portable() {
        // SAFETY: AVX2 and FMA were detected, and the lengths were checked above.
        return unsafe { avx2::some_rows(rows, depth, a, b, c, ldc, store) };
    }
    portable_kernel(rows, depth, a, b, c, ldc, store);
}

/// Row by row, with the sums of one row in registers: four of them on any x86-64, and on NEON.
fn portable_kernel(
    rows: usize,
    depth: usize,
    a: A,
    b: &[f32],
    c: &mut [f32],
    ldc: usize,
    store: Store,
) {
    for r in 0..rows {
        let mut sums = [0f32; NR];
        for (p, b) in b.as_chunks::<NR>().0.iter().take(depth).enumerate() {
            let x = a.data[r * a.row + p * a.step];
            for j in 0..NR {
                sums[j] += x * b[j];
            }
        }
        let c = &mut c[r * ldc..r * ldc + NR];
        for (c, sum) in c.iter_mut().zip(sums) {
            *c = store.scale * sum + if store.add { *c } else { 0.0 };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! The tile in twelve of the sixteen registers.

    use super::{A, MR, NR, Store};
    use std::arch::x86_64::*;

    /// # Safety
    /// Needs AVX2 and FMA, `tiles` tiles of `MR` rows of `depth` elements behind `a`, `depth * NR` elements in
    /// `b`, and `tiles * MR` rows of `NR` elements in `c`.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn full_tiles(
        tiles: usize,
        depth: usize,
        a: A,
        b: &[f32],
        c: &mut [f32],
        ldc: usize,
        store: Store,
    ) {
        let (b, c) = (b.as_ptr(), c.as_mut_ptr());
        for index in 0..tiles {
            // SAFETY: passed on from the caller.
            unsafe {
                tile::<MR>(depth, a.of_tile(index), b, c.add(index * MR * ldc), ldc, store);
            }
        }
    }

    /// # Safety
    /// The same for one tile of `rows` rows.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn some_rows(
        rows: usize,
        depth: usize,
        a: A,
        b: &[f32],
        c: &mut [f32],
        ldc: usize,
        store: Store,
    ) {
        let (b, c) = (b.as_ptr(), c.as_mut_ptr());
        // SAFETY: passed on from the caller.
        unsafe {
            match rows {
                5 => tile::<5>(depth, a, b, c, ldc, store),
                4 => tile::<4>(depth, a, b, c, ldc, store),
                3 => tile::<3>(depth, a, b, c, ldc, store),
                2 => tile::<2>(depth, a, b, c, ldc, store),
                _ => tile::<1>(depth, a, b, c, ldc, store),
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<const M: usize>(
        depth: usize,
        a: A,
        b: *const f32,
        c: *mut f32,
        ldc: usize,
        store: Store,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            let sums = match a.step {
                1 => sums::<M, 1>(depth, a.data.as_ptr(), a.row, b),
                _ => sums::<M, MR>(depth, a.data.as_ptr(), 1, b),
            };
            let scale = _mm256_set1_ps(store.scale);
            for (r, [low, high]) in sums.into_iter().enumerate() {
                let row = c.add(r * ldc);
                let (mut low, mut high) = (_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale));
                if store.add {
                    low = _mm256_add_ps(low, _mm256_loadu_ps(row));
                    high = _mm256_add_ps(high, _mm256_loadu_ps(row.add(8)));
                }
                _mm256_storeu_ps(row, low);
                _mm256_storeu_ps(row.add(8), high);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn sums<const M: usize, const STEP: usize>(
        depth: usize,
        a: *const f32,
        row: usize,
        b: *const f32,
    ) -> [[__m256; 2]; M] {
        let mut sums = [[_mm256_setzero_ps(); 2]; M];
        // SAFETY: passed on from the caller.
        unsafe {
            for p in 0..depth {
                let low = _mm256_loadu_ps(b.add(p * NR));
                let high = _mm256_loadu_ps(b.add(p * NR + 8));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = _mm256_broadcast_ss(&*a.add(r * row + p * STEP));
                    sums[0] = _mm256_fmadd_ps(x, low, sums[0]);
                    sums[1] = _mm256_fmadd_ps(x, high, sums[1]);
                }
            }
        }
        sums
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
                    multiply([m, n, k], &a, k, &packed, &mut c, n, Store::SET, &mut scratch);
                    assert_close(&c, &want, 1e-5);

                    let transposed: Vec<f32> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
                    let mut c = vec![1.0; m * n];
                    let store = Store { scale: 2.0, add: true };
                    let mut again = Packed::default();
                    let columns: Vec<f32> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
                    again.refill(View::transposed(&columns, k), k, n);
                    let sizes = [m, n, k];
                    multiply_transposed(
                        sizes,
                        &transposed,
                        m,
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
    fn rows_that_share_cache_sets_are_copied_and_give_the_same() {
        let (m, n, k) = (7, 20, 512);
        let (a, b) = (noise("a", m * k), noise("b", k * n));
        let packed = Packed::new(View::rows(&b, n), k, n);
        let mut c = vec![f32::NAN; m * n];
        let mut scratch = Scratch::default();
        multiply([m, n, k], &a, k, &packed, &mut c, n, Store::SET, &mut scratch);
        assert_close(&c, &reference(|i, p| a[i * k + p], &b, [m, n, k]), 1e-5);
    }
}
