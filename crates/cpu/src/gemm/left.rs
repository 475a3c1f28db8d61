//! A left factor that is packed once and shared by tasks that split the columns of C.

use super::pack::{pack_left, panel_stride};
use super::panels::{BLOCK, Panels};
use super::tile::{A, C, Order, Tile, multiply_tiles};
use super::{MR, NR, Store, View};
use crate::buffer::unwritten;
use crate::parallel;
use std::ops::Range;

/// Rows of C that are computed against one panel before the next one's turn: so many rows of a block of A stay in the
/// L2 cache.
const ROWS: usize = 43 * MR;

/// `X^T` for a product over the rows of X, in blocks of [`BLOCK`] of them.
pub(crate) struct Left {
    data: Vec<f32>,
    rows: usize,
}

impl Left {
    /// Packs the transposes of matrices with rows of `width` elements.
    pub(crate) fn transposed<const N: usize>(matrices: [&[f32]; N], width: usize) -> [Self; N] {
        let tiles = width.div_ceil(MR);
        let length = |depth: usize| tiles * panel_stride(depth);
        let lengths = matrices.iter().map(|x| {
            let depth = x.len() / width;
            let rest = depth % BLOCK;
            depth / BLOCK * length(BLOCK) + if rest > 0 { length(rest) } else { 0 }
        });
        // SAFETY: every block is packed, and its gaps are cleared, by a task.
        let mut vectors: Vec<_> = lengths.map(|length| unsafe { unwritten(length) }).collect();
        let blocks = vectors.iter_mut().zip(matrices).flat_map(|(data, x)| {
            data.chunks_mut(length(BLOCK).max(1)).zip(x.chunks(BLOCK * width))
        });
        let blocks: Vec<_> = blocks.collect();
        parallel::for_each(blocks.into_iter(), |(data, x)| {
            let depth = x.len() / width;
            let stride = panel_stride(depth);
            // What fills up the last tile, and the lines between tiles.
            let last = (tiles - 1) * stride;
            data[last..].fill(0.0);
            data[..last].chunks_mut(stride).for_each(|tile| tile[depth * MR..].fill(0.0));
            pack_left(data, View::transposed(x, width), width, depth);
        });
        let mut vectors = vectors.into_iter();
        std::array::from_fn(|_| Self { data: vectors.next().unwrap_or_default(), rows: width })
    }

    /// `C = X^T B` for some of the panels of B; rows of C are `panels.len() * NR` long.
    pub(crate) fn times(&self, b: Panels, panels: Range<usize>, c: &mut [f32]) {
        let ldc = panels.len() * NR;
        let (mut rest, at_once) = (self.data.as_slice(), Tile::here().panels);
        if b.layout.rows == 0 {
            // A sum of nothing.
            c[..self.rows * ldc].fill(0.0);
        }
        for block in b.blocks() {
            let stride = panel_stride(block.len());
            let data = rest.split_off(..self.rows.div_ceil(MR) * stride).expect("the same blocks");
            let store = Store { add: block.start > 0, ..Store::SET };
            for first in (0..self.rows).step_by(ROWS) {
                let a = A::new(&data[first / MR * stride..], Order::PACKED, stride);
                let rows = ROWS.min(self.rows - first);
                for panel in panels.clone().step_by(at_once) {
                    let to = C::rows(&mut c[first * ldc + (panel - panels.start) * NR..], ldc);
                    let count = at_once.min(panels.end - panel);
                    let next = if panel + count < panels.end {
                        Some(b.piece(panel + count, block.clone()))
                    } else if block.end < b.layout.rows {
                        Some(b.piece(panels.start, block.end..block.end + 1))
                    } else {
                        None
                    };
                    let b = b.right(panel, count, block.clone());
                    multiply_tiles([rows, count * NR, block.len()], a, b, to, store, next);
                }
            }
        }
    }
}
