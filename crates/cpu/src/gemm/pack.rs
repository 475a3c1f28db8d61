//! Copying factors into the order in which the tiles read them.

use super::{KC, MR, NR, View};
use crate::rows::filled;
use crate::simd::prefetch;
use rayon::prelude::*;

/// How many rows before it is needed a row is asked for.
const AHEAD: usize = 6;

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

    /// How many columns it has.
    pub(crate) fn columns(&self) -> usize {
        self.n
    }

    /// The panel that begins with column `panel * NR`, in the block that begins at depth `start`.
    pub(super) fn panel(&self, start: usize, panel: usize) -> &[f32] {
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

/// One line more than a panel of A, so that panels do not fall into the same cache sets.
pub(super) fn panel_stride(depth: usize) -> usize {
    depth * MR + NR
}

simd! {
    /// Rows of `depth` elements into panels of [`MR`] rows.
    pub(super) fn pack_rows(
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
    pub(super) fn pack_transposed(
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
