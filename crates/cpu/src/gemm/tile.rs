//! One panel of C: register tiles one below the other, for AVX2 or for any CPU.

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::{MR, NR, Store};

/// Where the micro-kernel finds A: element `(r, p)` of tile i at `i * tile + r * row + p * step`.
#[derive(Clone, Copy)]
pub(super) struct A<'a> {
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) step: usize,
    pub(super) tile: usize,
}

impl A<'_> {
    pub(super) fn of_tile(self, index: usize) -> Self {
        Self { data: &self.data[index * self.tile..], ..self }
    }
}

/// One panel of C, at most [`NR`] columns wide.
pub(super) fn multiply_panel(
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
