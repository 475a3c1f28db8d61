//! Copying factors into the order in which the tiles read them.

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::tile::B;
use super::words::{self, Kind, Right};
use super::{KC, MR, NR, View};
use crate::buffer::unwritten;
use crate::parallel;
use crate::precision::{Precision, split_all};
use crate::rows::cut_mut;
use crate::simd::{Form, prefetch};

/// How many rows before it is needed a row is asked for.
const AHEAD: usize = 6;

/// Panels that one task packs.
const GROUP: usize = 4;

/// The right factor `[k, n]`: by blocks of depth, by panels of columns; its parts one behind the other, or in words.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    data: Vec<f32>,
    words: Vec<u32>,
    k: usize,
    n: usize,
    precision: Precision,
    /// If it is in words.
    kind: Option<Kind>,
}

/// Matrices with as many columns each that are packed side by side, and how many rows they have.
type Factor<'a> = (&'a [(View<'a>, usize)], usize);

impl Packed {
    /// Packs `b`, on as many threads as there are.
    pub(crate) fn new(b: View, k: usize, n: usize, precision: Precision) -> Self {
        Self::side_by_side(&[(b, n)], k, precision)
    }

    /// Packs matrices with as many columns each side by side, as if they were one. All but the last must
    /// fill their panels.
    pub(crate) fn side_by_side(parts: &[(View, usize)], k: usize, precision: Precision) -> Self {
        Self::all(&[(parts, k)], precision).pop().unwrap_or_default()
    }

    /// Packs several factors at once, each of parts as in [`Self::side_by_side`] and of so many rows.
    pub(crate) fn all(factors: &[Factor], precision: Precision) -> Vec<Self> {
        let kind = Kind::here(precision);
        let packed = factors.iter().map(|&(parts, k)| {
            // Otherwise panels would be left unwritten.
            assert!(parts.iter().rev().skip(1).all(|(_, n)| n.is_multiple_of(NR)), "full panels");
            Self { k, n: columns(parts), precision, kind, ..Self::default() }
        });
        let mut packed: Vec<_> = packed.collect();
        match kind {
            None => {
                let length = |packed: &Self| packed.k * packed.n.div_ceil(NR) * NR;
                for packed in &mut packed {
                    // SAFETY: every panel is packed by a task, and further parts are made of that one.
                    packed.data = unsafe { unwritten(precision.parts() * length(packed)) };
                }
                let slices = packed.iter_mut().map(|packed| {
                    let length = length(packed);
                    &mut packed.data[..length]
                });
                pack_all(factors, slices.collect(), KC, |depth| depth * NR, pack_panel);
                packed.iter_mut().for_each(|packed| round(&mut packed.data, precision));
            }
            Some(kind) => {
                for packed in &mut packed {
                    packed.words = vec![0; packed.length_in_words(kind)];
                }
                let slices = packed.iter_mut().map(|packed| packed.words.as_mut_slice());
                let pack = |out: &mut [u32], b: View, first, sizes| {
                    words::pack_panel(kind, out, b, first, sizes);
                };
                pack_all(factors, slices.collect(), kind.block(), |depth| kind.panel(depth), pack);
            }
        }
        packed
    }

    /// Packs `b` into the memory of an earlier one, on this thread.
    pub(crate) fn refill(&mut self, b: View, k: usize, n: usize, precision: Precision) {
        let panels = n.div_ceil(NR);
        (self.k, self.n, self.precision, self.kind) = (k, n, precision, Kind::here(precision));
        if let Some(kind) = self.kind {
            self.words.resize(self.length_in_words(kind), 0);
            let mut rest = self.words.as_mut_slice();
            for start in (0..k).step_by(kind.block()) {
                let depth = kind.block().min(k - start);
                for column in (0..n).step_by(NR) {
                    let out = cut_mut(&mut rest, kind.panel(depth));
                    words::pack_panel(kind, out, b, [start, column], [depth, NR.min(n - column)]);
                }
            }
            return;
        }
        let length = k * panels * NR;
        self.data.resize(precision.parts() * length, 0.0);
        for (block, data) in self.data[..length].chunks_mut((KC * panels * NR).max(1)).enumerate() {
            let depth = data.len() / (panels * NR);
            for (panel, out) in data.chunks_mut(depth * NR).enumerate() {
                pack_panel(out, b, [block * KC, panel * NR], [depth, NR.min(n - panel * NR)]);
            }
        }
        precision.round(&mut self.data);
    }

    fn length_in_words(&self, kind: Kind) -> usize {
        let (panels, block) = (self.n.div_ceil(NR), kind.block());
        panels * (self.k / block * kind.panel(block) + kind.panel(self.k % block))
    }

    /// How it is in words, if it is.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// Elements of a block of depth.
    pub(super) fn block(&self) -> usize {
        self.kind.map_or(KC, Kind::block)
    }

    /// The words from `panel` on in the block that begins at depth `start`.
    pub(super) fn right(&self, kind: Kind, start: usize, panel: usize) -> Right<'_> {
        let depth = kind.block().min(self.k - start);
        let before = start / kind.block() * self.n.div_ceil(NR) * kind.panel(kind.block());
        Right { words: &self.words[before + panel * kind.panel(depth)..], depth }
    }

    /// To which it was rounded, and to which products round the left factor.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// How many rows it has.
    pub(crate) fn depth(&self) -> usize {
        self.k
    }

    /// How many columns it has.
    pub(crate) fn columns(&self) -> usize {
        self.n
    }

    /// `columns` columns of one part from `panel * NR` on, in the block that begins at depth `start`.
    pub(super) fn panels(&self, part: usize, start: usize, panel: usize, columns: usize) -> B<'_> {
        let apart = KC.min(self.k - start) * NR;
        let first = (part * self.k + start) * self.n.div_ceil(NR) * NR + panel * apart;
        B::new(&self.data[first..first + columns.div_ceil(NR) * apart], apart)
    }
}

fn columns(parts: &[(View, usize)]) -> usize {
    parts.iter().map(|(_, n)| n).sum()
}

/// Packs factors into memory of their own, on as many threads as there are: in blocks of `block` rows, in which a panel has the
/// length that its depth makes. `pack` makes a panel of rows and columns from these on, and of so many.
fn pack_all<T: Send>(
    factors: &[Factor],
    outs: Vec<&mut [T]>,
    block: usize,
    length: impl Fn(usize) -> usize + Sync,
    pack: impl Fn(&mut [T], View, [usize; 2], [usize; 2]) + Sync,
) {
    let mut tasks = Vec::new();
    for (mut rest, &(parts, k)) in outs.into_iter().zip(factors) {
        let panels = columns(parts).div_ceil(NR);
        for start in (0..k).step_by(block) {
            let depth = block.min(k - start);
            for first in (0..panels).step_by(GROUP) {
                let out = cut_mut(&mut rest, GROUP.min(panels - first) * length(depth));
                tasks.push((parts, [start, depth], first, out));
            }
        }
    }
    parallel::for_each(tasks.into_iter(), |(parts, [start, depth], first, out)| {
        for (panel, out) in out.chunks_mut(length(depth)).enumerate() {
            let mut column = (first + panel) * NR;
            for &(b, n) in parts {
                if column < n {
                    pack(out, b, [start, column], [depth, NR.min(n - column)]);
                    break;
                }
                column -= n;
            }
        }
    });
}

/// [`Precision::round`], on as many threads as there are.
pub(super) fn round(data: &mut [f32], precision: Precision) {
    const ELEMENTS: usize = 1 << 14;
    match precision {
        Precision::F32 => (),
        Precision::Bf16 => {
            parallel::for_each(data.chunks_mut(ELEMENTS), |data| precision.round(data));
        }
        Precision::Bf16x3 => {
            let (first, rest) = data.split_at_mut(data.len() / 3);
            let (second, third) = rest.split_at_mut(first.len());
            let parts = first.chunks_mut(ELEMENTS).zip(second.chunks_mut(ELEMENTS));
            parallel::for_each(
                parts.zip(third.chunks_mut(ELEMENTS)),
                |((first, second), third)| {
                    split_all(first, second, third);
                },
            );
        }
    }
}

/// One panel: `columns` columns from `column`, `depth` rows from `start`.
fn pack_panel(out: &mut [f32], b: View, [start, column]: [usize; 2], [_, columns]: [usize; 2]) {
    #[cfg(target_arch = "x86_64")]
    if b.row == 1 && b.column != 1 && columns == NR && Form::best() != Form::Portable {
        let columns = &b.data[start + column * b.column..];
        assert!(columns.len() >= (NR - 1) * b.column + out.len() / NR);
        // SAFETY: AVX2 was detected, and there are as many elements in each column as rows in the panel.
        return unsafe { avx2::pack_columns(out, columns, b.column) };
    }
    pack_any_panel(out, b, start, column, columns);
}

simd! {
    /// One panel: `columns` columns from `column`, as many rows from `start` as `out` has room for.
    fn pack_any_panel(out: &mut [f32], b: View, start: usize, column: usize, columns: usize) {
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
                for p in 0..depth {
                    out[p * NR + j] = b.data[from + p * b.row];
                }
            }
        }
    }
}

/// One line more than a panel of A, so that panels do not fall into the same cache sets.
pub(super) fn panel_stride(depth: usize) -> usize {
    depth * MR + NR
}

/// The left factor's first `m` rows and `depth` columns into panels of [`MR`] rows, [`panel_stride`] apart. What lies
/// between panels is overwritten.
pub(super) fn pack_left(out: &mut [f32], a: View, m: usize, depth: usize) {
    match a.column {
        1 => pack_rows(out, a, m, depth),
        _ => pack_transposed(out, a, m, depth),
    }
}

fn pack_rows(out: &mut [f32], a: View, m: usize, depth: usize) {
    for (i, out) in out.chunks_mut(panel_stride(depth)).enumerate().take(m.div_ceil(MR)) {
        let last = MR.min(m - i * MR) - 1;
        let row = |r: usize| &a.data[(i * MR + r.min(last)) * a.row..][..depth];
        pack_tile(out, std::array::from_fn(row), MR * a.row);
    }
}

/// The next tile's rows are `ahead` elements further.
fn pack_tile(out: &mut [f32], rows: [&[f32]; MR], ahead: usize) {
    let mut packed = 0;
    #[cfg(target_arch = "x86_64")]
    if Form::best() != Form::Portable {
        // SAFETY: AVX2 was detected.
        packed = unsafe { avx2::pack_tile(out, rows, ahead) };
    }
    let columns = out.as_chunks_mut::<MR>().0.iter_mut().enumerate();
    for (p, out) in columns.take(rows[0].len()).skip(packed) {
        *out = rows.map(|row| row[p]);
    }
}

simd! {
    fn pack_transposed(out: &mut [f32], a: View, m: usize, depth: usize) {
        let (lda, stride) = (a.column, panel_stride(depth));
        for p in 0..depth {
            // Rows lie on pages of their own, where the hardware does not look ahead.
            if let Some(ahead) = a.data.get((p + AHEAD) * lda..(p + AHEAD) * lda + m) {
                prefetch(ahead);
            }
            let (full, rest) = a.data[p * lda..p * lda + m].as_chunks::<MR>();
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
