//! Matrices in panels: what one product writes, and others read as either factor without packing it again.
//!
//! Rows come in blocks of [`BLOCK`], and within a block columns come in panels of [`NR`]. A block of a panel
//! is what a product over rows reads as its right factor, and rows of neighbouring panels are what a product
//! over columns reads as its left one.

use super::pack::panel_stride;
use super::tile::{A, B, C, Order};
use super::{MR, NR};
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of a block: whole register tiles, and as deep as a product's blocks should be.
pub(crate) const BLOCK: usize = 44 * MR;

/// Where the elements of a matrix in panels are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Layout {
    pub(crate) fn panels(self) -> usize {
        self.columns.div_ceil(NR)
    }

    /// Elements of the memory that it takes.
    pub(crate) fn len(self) -> usize {
        let blocks = self.rows.div_ceil(BLOCK);
        self.panels() * (self.rows + blocks) * NR
    }

    /// A matrix that has its elements row by row.
    pub(crate) fn arranged(self, rows: &[f32]) -> Vec<f32> {
        let mut data = vec![0.0; self.len()];
        for (row, elements) in rows.chunks_exact(self.columns).enumerate() {
            for (panel, elements) in elements.chunks(NR).enumerate() {
                let at = self.at(row, panel);
                data[at..at + elements.len()].copy_from_slice(elements);
            }
        }
        data
    }

    /// Rows of the block that begins with row `start`.
    fn depth(self, start: usize) -> usize {
        BLOCK.min(self.rows - start)
    }

    /// From one panel to the next: one line more than its rows, so that rows of neighbouring panels do not fall
    /// into the same cache sets.
    fn stride(depth: usize) -> usize {
        (depth + 1) * NR
    }

    fn at(self, row: usize, panel: usize) -> usize {
        let start = row / BLOCK * BLOCK;
        let before = start / BLOCK * self.panels() * Self::stride(BLOCK);
        before + panel * Self::stride(self.depth(start)) + (row - start) * NR
    }

    /// Of neighbouring rows in one panel, which must be rows of one block.
    fn piece(self, panel: usize, rows: Range<usize>) -> Range<usize> {
        assert!(rows.is_empty() || rows.start / BLOCK == (rows.end - 1) / BLOCK, "of one block");
        let first = self.at(rows.start, panel);
        first..first + rows.len() * NR
    }

    /// The lines between panels, which hold nothing.
    fn gaps(self) -> impl Iterator<Item = Range<usize>> {
        let starts = (0..self.rows).step_by(BLOCK);
        starts.flat_map(move |start| {
            let depth = self.depth(start);
            (0..self.panels()).map(move |panel| {
                let end = self.at(start, panel) + depth * NR;
                end..end + NR
            })
        })
    }
}

/// A matrix in panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels<'a> {
    data: &'a [f32],
    pub(crate) layout: Layout,
}

impl<'a> Panels<'a> {
    pub(crate) fn new(data: &'a [f32], layout: Layout) -> Self {
        assert_eq!(data.len(), layout.len(), "a matrix in panels has the size of its layout");
        Self { data, layout }
    }

    /// All of it, in its order.
    pub(crate) fn data(&self) -> &'a [f32] {
        self.data
    }

    /// Neighbouring rows of one block in one panel.
    pub(crate) fn piece(&self, panel: usize, rows: Range<usize>) -> &'a [f32] {
        &self.data[self.layout.piece(panel, rows)]
    }

    /// Rows of one block, in this panel and so many in all, as the right factor of a product over them.
    pub(super) fn right(&self, panel: usize, count: usize, rows: Range<usize>) -> B<'a> {
        let apart = Layout::stride(self.layout.depth(rows.start / BLOCK * BLOCK));
        let first = self.layout.piece(panel, rows.clone());
        let end = first.end + (count - 1) * apart;
        B::new(&self.data[first.start..end], apart)
    }

    /// Copies what [`Self::right`] reads, panel by panel without gaps.
    pub(super) fn copy_right(&self, panels: Range<usize>, rows: Range<usize>, out: &mut [f32]) {
        let pieces = out.chunks_exact_mut(rows.len() * NR);
        for (panel, out) in panels.zip(pieces) {
            out.copy_from_slice(self.piece(panel, rows.clone()));
        }
    }

    /// These rows, cut where blocks end.
    pub(super) fn within(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let blocks = rows.start / BLOCK..rows.end.div_ceil(BLOCK);
        blocks.map(move |block| rows.start.max(block * BLOCK)..rows.end.min((block + 1) * BLOCK))
    }

    /// The blocks of a product over rows.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let layout = self.layout;
        (0..layout.rows).step_by(BLOCK).map(move |start| start..start + layout.depth(start))
    }
}

/// A matrix in panels that tasks fill, each with its own rows.
pub(crate) struct PanelsMut<'a> {
    data: *mut f32,
    pub(crate) layout: Layout,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks that share this get at its elements by `piece` and `left` alone, whose callers promise that no other task
// touches these rows; the memory is borrowed for as long as this lives.
unsafe impl Sync for PanelsMut<'_> {}

impl<'a> PanelsMut<'a> {
    /// All of it is to be written, except what holds nothing, which is cleared here.
    pub(crate) fn new(data: &'a mut [f32], layout: Layout) -> Self {
        assert_eq!(data.len(), layout.len(), "a matrix in panels has the size of its layout");
        layout.gaps().for_each(|gap| data[gap].fill(0.0));
        Self { data: data.as_mut_ptr(), layout, borrowed: PhantomData }
    }

    /// Neighbouring rows of one block in one panel, to write to.
    ///
    /// # Safety
    /// While the result is in use, no other reference to these rows of this panel may exist.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn piece(&self, panel: usize, rows: Range<usize>) -> &mut [f32] {
        assert!(panel < self.layout.panels() && rows.end <= self.layout.rows);
        let place = self.layout.piece(panel, rows);
        // SAFETY: rows of one block of one panel are neighbours within the matrix, which is borrowed for `'a`; they are the
        // caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(place.start), place.len()) }
    }

    /// Neighbouring rows of one block, in this panel and those behind it, for a product to write to.
    ///
    /// # Safety
    /// As [`Self::piece`], for as many panels as the product writes.
    pub(super) unsafe fn target(&self, panel: usize, rows: Range<usize>) -> C<'_> {
        assert!(panel < self.layout.panels() && rows.end <= self.layout.rows);
        let first = self.layout.piece(panel, rows.clone()).start;
        let apart = Layout::stride(self.layout.depth(rows.start / BLOCK * BLOCK));
        // SAFETY: from there to the end of the matrix, which is borrowed for longer than `self`; the rest is passed on from the
        // caller.
        unsafe { C::from_raw(self.data.add(first), self.layout.len() - first, NR, apart) }
    }

    /// Has the cache fetch what is to be written soon.
    pub(super) fn ask_for(&self, panel: usize, rows: Range<usize>) {
        let place = self.layout.piece(panel, rows);
        for line in place.step_by(NR) {
            crate::simd::prefetch_line(self.data.wrapping_add(line));
        }
    }

    /// Rows from `row` on, as the left factor of a product over the columns from `column` on, which must begin a
    /// panel. Only rows of the same block may be read.
    ///
    /// # Safety
    /// While the result is in use, the rows that are read must be written, and no other task may change them. Other rows of the
    /// same memory may change: it is never a slice.
    pub(super) unsafe fn left(&self, row: usize, column: usize) -> A<'_> {
        assert!(
            row < self.layout.rows && column < self.layout.columns && column.is_multiple_of(NR)
        );
        let stride = Layout::stride(self.layout.depth(row / BLOCK * BLOCK));
        let first = self.layout.at(row, column / NR);
        let length = self.layout.len() - first;
        // SAFETY: from there to the end of the matrix, which is borrowed for longer than `self`; the rest is passed on from the
        // caller.
        unsafe {
            let data = self.data.add(first);
            A::from_raw(data, length, Order::Panels { stride }, MR * NR)
        }
    }

    /// Copies neighbouring rows of one block, as a left factor over `depth` columns from `column` on, which must begin a panel:
    /// into panels of [`MR`] rows, [`panel_stride`] apart.
    ///
    /// # Safety
    /// As [`Self::left`], meanwhile.
    pub(super) unsafe fn pack(
        &self,
        rows: Range<usize>,
        column: usize,
        depth: usize,
        out: &mut [f32],
    ) {
        assert!(column.is_multiple_of(NR) && column + depth <= self.layout.columns);
        let stride = panel_stride(depth);
        for start in (0..depth).step_by(NR) {
            // SAFETY: passed on from the caller; nobody writes to it.
            let piece: &[f32] = unsafe { self.piece((column + start) / NR, rows.clone()) };
            for (r, row) in piece.as_chunks::<NR>().0.iter().enumerate() {
                let out = &mut out[r / MR * stride + start * MR + r % MR..];
                let columns = out.iter_mut().step_by(MR).zip(row);
                columns.take(depth - start).for_each(|(out, x)| *out = *x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::{
        Left, Packed, Scratch, Store, View, block_tasks, fill_panels, multiply_panels, panel_tasks,
    };
    use crate::precision::Precision;
    use crate::testing::{assert_close, noise};

    /// `[m, k] x [k, n]` in f64.
    fn product(a: &[f32], b: &[f32], k: usize, n: usize) -> Vec<f32> {
        let row = |a: &[f32], j: usize| -> f64 {
            a.iter().enumerate().map(|(p, a)| f64::from(*a) * f64::from(b[p * n + j])).sum()
        };
        a.chunks(k).flat_map(|a| (0..n).map(move |j| row(a, j) as f32)).collect()
    }

    fn rows_of(panels: Panels) -> Vec<f32> {
        let Layout { rows, columns } = panels.layout;
        let element =
            |row: usize, column: usize| panels.piece(column / NR, row..row + 1)[column % NR];
        (0..rows * columns).map(|i| element(i / columns, i % columns)).collect()
    }

    #[test]
    fn every_element_has_a_place_of_its_own() {
        for layout in [(1, 1), (6, 16), (264, 17), (265, 33), (600, 5)] {
            let layout = Layout { rows: layout.0, columns: layout.1 };
            let rows = noise("rows", layout.rows * layout.columns);
            let data = layout.arranged(&rows);
            assert_eq!(rows_of(Panels::new(&data, layout)), rows);
            let gaps: usize = layout.gaps().map(|gap| gap.len()).sum();
            assert_eq!(gaps + layout.rows * layout.panels() * NR, layout.len());
        }
    }

    #[test]
    fn products_with_panels_on_either_side_are_those_of_the_definition() {
        // More than one block of rows, more than one block of depth, and edges everywhere.
        for (m, k, n, wide) in [
            (1, 3, 5, 2),
            (300, 37, 40, 19),
            (265, 300, 16, 6),
            (520, 8, 70, 270),
            (31, 20, 48, 33),
            (264, 20, 160, 33),
        ] {
            let (x, w) = (noise("x", m * k), noise("w", k * n));
            let layout = Layout { rows: m, columns: n };
            let packed = Packed::new(View::rows(&w, n), k, n, Precision::F32);
            let v = noise("v", n * wide);
            let packed_v = Packed::new(View::rows(&v, wide), n, wide, Precision::F32);
            let mut data = vec![f32::NAN; layout.len()];
            let mut y = vec![f32::NAN; m * wide];
            let panels = PanelsMut::new(&mut data, layout);
            for rows in block_tasks(m, Precision::F32) {
                let x = View::rows(&x[rows.start * k..], k);
                let y = &mut y[rows.start * wide..rows.end * wide];
                let scratch = &mut Scratch::default();
                let double = |_, piece: &mut [f32]| piece.iter_mut().for_each(|c| *c *= 2.0);
                // SAFETY: there is one task at a time.
                unsafe {
                    fill_panels(rows.clone(), k, x, &packed, &panels, scratch, double);
                    multiply_panels(rows, &panels, &packed_v, y, Store::SET, scratch);
                }
            }
            let panels = Panels::new(&data, layout);
            let want: Vec<f32> = product(&x, &w, k, n).iter().map(|c| 2.0 * c).collect();
            assert_close(&rows_of(panels), &want, 1e-5);
            assert_close(&y, &product(&want, &v, n, wide), 1e-5);

            let turned: Vec<f32> = (0..k * m).map(|i| x[i % m * k + i / m]).collect();
            let want = product(&turned, &want, m, n);
            let [left] = Left::transposed([&x], k, Precision::F32);
            for tasks in panel_tasks(layout.panels()) {
                let count = tasks.len() * NR;
                let mut c = vec![f32::NAN; k * count];
                left.times(panels, tasks.clone(), &mut c);
                for column in tasks.start * NR..n.min(tasks.end * NR) {
                    let of = |matrix: &[f32], stride: usize, at: usize| -> Vec<f32> {
                        matrix.iter().skip(at).step_by(stride).copied().collect()
                    };
                    let got = of(&c, count, column - tasks.start * NR);
                    assert_close(&got, &of(&want, n, column), 1e-5);
                }
            }
        }
    }
}
