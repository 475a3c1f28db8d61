//! A left factor that is packed once and shared by tasks that split the columns of C.

use super::pack::{pack_left, panel_stride, round};
use super::panels::{BLOCK, Panels};
use super::tile::{A, B, C, Order, Tile, multiply_tiles};
use super::words::{self, Kind, Right};
use super::{MR, NR, Scratch, Store, View, terms};
use crate::buffer::unwritten;
use crate::parallel;
use crate::precision::Precision;
use std::ops::Range;

/// Rows of C that are computed against one panel before the next one's turn: so many rows of a block of A stay in the
/// L2 cache.
const ROWS: usize = 43 * MR;

/// `X^T` for a product over the rows of X, in blocks of [`BLOCK`] of them; its parts one behind the other.
pub(crate) struct Left {
    data: Vec<f32>,
    rows: usize,
    precision: Precision,
    /// Instead of the data, if it is in words: in blocks of their depth.
    words: Vec<u32>,
    kind: Option<Kind>,
}

/// Rows of words that one task packs.
const GROUP: usize = 64;
/// [`ROWS`] for rows of words.
const ROWS_OF_WORDS: usize = 256;

impl Left {
    /// Packs the transposes of matrices with rows of `width` elements.
    pub(crate) fn transposed<const N: usize>(
        matrices: [&[f32]; N],
        width: usize,
        precision: Precision,
    ) -> [Self; N] {
        if let Some(kind) = Kind::here(precision) {
            return Self::in_words(matrices, width, precision, kind);
        }
        let tiles = width.div_ceil(MR);
        let length = |depth: usize| tiles * panel_stride(depth);
        let lengths = matrices.iter().map(|x| {
            let depth = x.len() / width;
            let rest = depth % BLOCK;
            depth / BLOCK * length(BLOCK) + if rest > 0 { length(rest) } else { 0 }
        });
        // SAFETY: every block is packed, and its gaps are cleared, by a task, and further parts are made of that one.
        let new = |length: usize| unsafe { unwritten(precision.parts() * length) };
        let mut vectors: Vec<_> = lengths.map(new).collect();
        let blocks = vectors.iter_mut().zip(matrices).flat_map(|(data, x)| {
            let first = data.len() / precision.parts();
            data[..first].chunks_mut(length(BLOCK).max(1)).zip(x.chunks(BLOCK * width))
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
        vectors.iter_mut().for_each(|data| round(data, precision));
        let mut vectors = vectors.into_iter();
        std::array::from_fn(|_| Self {
            data: vectors.next().unwrap_or_default(),
            rows: width,
            precision,
            words: Vec::new(),
            kind: None,
        })
    }

    fn in_words<const N: usize>(
        matrices: [&[f32]; N],
        width: usize,
        precision: Precision,
        kind: Kind,
    ) -> [Self; N] {
        let (deep, rows) = (kind.block(), kind.rows(width));
        let mut factors = matrices.map(|x| {
            let words = vec![0; (x.len() / width).div_ceil(deep) * rows];
            Self { data: Vec::new(), rows: width, precision, words, kind: Some(kind) }
        });
        let mut tasks = Vec::new();
        for (factor, x) in factors.iter_mut().zip(matrices) {
            for (words, x) in factor.words.chunks_mut(rows).zip(x.chunks(deep * width)) {
                let groups = words.chunks_mut(kind.rows(GROUP)).enumerate();
                tasks.extend(groups.map(|(group, words)| (words, group * GROUP, x)));
            }
        }
        parallel::for_each(tasks.into_iter(), |(words, first, x)| {
            let (rows, columns) = (GROUP.min(width - first), View::transposed(&x[first..], width));
            words::pack_rows(kind, words, columns, rows, x.len() / width);
        });
        factors
    }

    /// `C = X^T B` for some of the panels of B; rows of C are `panels.len() * NR` long.
    pub(crate) fn times(&self, b: Panels, panels: Range<usize>, c: &mut [f32]) {
        let ldc = panels.len() * NR;
        let (mut rest, at_once) = (self.data.as_slice(), Tile::here().panels);
        if b.layout.rows == 0 {
            // A sum of nothing.
            c[..self.rows * ldc].fill(0.0);
        }
        if let Some(kind) = self.kind {
            return self.times_words(kind, b, panels, c);
        }
        if self.precision != Precision::F32 {
            return self.times_rounded(b, panels, c);
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

    /// [`Self::times`] with the right factor rounded too, for which it is copied.
    fn times_rounded(&self, b: Panels, panels: Range<usize>, c: &mut [f32]) {
        let (ldc, at_once) = (panels.len() * NR, Tile::here().panels);
        let whole = self.data.len() / self.precision.parts();
        let mut scratch = Scratch::of_thread();
        let mut before = 0;
        for block in b.blocks() {
            let (depth, stride) = (block.len(), panel_stride(block.len()));
            let store = Store { add: block.start > 0, ..Store::SET };
            for panel in panels.clone().step_by(at_once) {
                let count = at_once.min(panels.end - panel);
                let (apart, right) = (depth * NR, count * depth * NR);
                scratch.a.resize(self.precision.parts() * right, 0.0);
                b.copy_right(panel..panel + count, block.clone(), &mut scratch.a[..right]);
                self.precision.round(&mut scratch.a);
                for first in (0..self.rows).step_by(ROWS) {
                    let rows = ROWS.min(self.rows - first);
                    for (left, part, store) in terms(self.precision, store) {
                        let data = &self.data[left * whole + before + first / MR * stride..];
                        let a = A::new(data, Order::PACKED, stride);
                        let b = B::new(&scratch.a[part * right..][..right], apart);
                        let at = first * ldc + (panel - panels.start) * NR;
                        let to = C::rows(&mut c[at..], ldc);
                        multiply_tiles([rows, count * NR, depth], a, b, to, store, None);
                    }
                }
            }
            before += self.rows.div_ceil(MR) * stride;
        }
    }

    /// [`Self::times`] in words, of which the right factor's are made here.
    fn times_words(&self, kind: Kind, b: Panels, panels: Range<usize>, c: &mut [f32]) {
        let (ldc, deep) = (panels.len() * NR, kind.block());
        let mut scratch = Scratch::of_thread();
        for (a, start) in
            self.words.chunks(kind.rows(self.rows)).zip((0..b.layout.rows).step_by(deep))
        {
            let rows = start..b.layout.rows.min(start + deep);
            let length = kind.panel(rows.len());
            scratch.words.resize(panels.len() * length, 0);
            for (panel, out) in panels.clone().zip(scratch.words.chunks_mut(length)) {
                for piece in b.within(rows.clone()) {
                    let first = piece.start - rows.start;
                    words::pack_panel_of_rows(kind, out, b.piece(panel, piece), first, rows.len());
                }
            }
            let store = Store { add: start > 0, ..Store::SET };
            for first in (0..self.rows).step_by(ROWS_OF_WORDS) {
                let sizes = [ROWS_OF_WORDS.min(self.rows - first), ldc, rows.len()];
                let right = Right { words: &scratch.words, depth: rows.len() };
                let to = C::rows(&mut c[first * ldc..], ldc);
                words::multiply(kind, sizes, &a[kind.rows(first)..], right, to, store);
            }
        }
    }
}
