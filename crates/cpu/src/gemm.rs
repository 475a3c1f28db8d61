//! Matrix products in blocks: `C = A B`, with B packed once and shared by all tasks.
//!
//! The micro-kernel keeps a tile of sums in registers and runs along k: [`MR`] rows of a panel, or with AVX-512 twice as many
//! of two panels. B is packed into panels of [`NR`] columns so that it is read in order; A is packed too, unless its rows are
//! read too few times for that to pay. The depth is cut into blocks of [`KC`], for which a panel of B fits into
//! the L1 cache. Products run on one thread: callers split the rows of C, or its columns where the left factor
//! is packed once for all ([`Left`]). What one product writes in [`Panels`], others read without packing it.
//!
//! Operands are rounded as they are packed, to the [`Precision`] that the shared factor was packed with; what f32 reads in place
//! is packed too. With several parts to an operand, the parts lie one behind the other, and a product is a sum of products of
//! parts. Where the CPU multiplies bf16 numbers itself, parts are in words instead ([`words`]).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod left;
mod pack;
mod panels;
mod tasks;
mod tile;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod words;

pub(crate) use left::Left;
pub(crate) use pack::Packed;
pub(crate) use panels::{Layout, Panels, PanelsMut};
pub(crate) use tasks::{block_tasks, large_row_tasks, panel_tasks, row_pairs, row_tasks};
pub use words::Unit;

use crate::lent::Lent;
use crate::precision::Precision;
use pack::{pack_left, panel_stride};
use std::cell::Cell;
use std::ops::Range;
use tile::{A, C, Order, Tile, multiply_tiles};
use words::Kind;

/// Rows that are packed side by side; a register tile has one or two such groups.
pub(crate) const MR: usize = 6;
/// Columns of a panel; a register tile has one or two of them.
pub(crate) const NR: usize = 16;
/// Depth of a block.
pub(crate) const KC: usize = 256;
/// Columns of C from which on it pays to pack rows of A.
const WORTH_PACKING: usize = 512;
/// Depth up to which a transposed A stays in the cache where it lies.
const SHALLOW: usize = 32;
/// Panels of C that are computed from words before they are handed on.
const WORD_PANELS: usize = 8;

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

    /// Without the first columns.
    fn after(self, columns: usize) -> Self {
        Self { data: &self.data[columns * self.column..], ..self }
    }
}

/// Memory that a task needs for its products, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    a: Vec<f32>,
    words: Vec<u32>,
}

impl Scratch {
    /// The one that this thread keeps.
    pub(crate) fn of_thread() -> Lent<Self> {
        const EMPTY: Scratch = Scratch { a: Vec::new(), words: Vec::new() };
        thread_local!(static HOME: Cell<Scratch> = const { Cell::new(EMPTY) });
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
    if k == 0 && !store.add {
        // A sum of nothing.
        (0..m).for_each(|row| c[row * ldc..][..n].fill(0.0));
    }
    for start in (0..k).step_by(b.block()) {
        let depth = b.block().min(k - start);
        let store = Store { add: store.add || start > 0, ..store };
        let a = prepare([m, n, depth], a.after(start), b, scratch);
        for_panels([m, n, depth], start, a, b, c, ldc, store);
    }
}

/// One block of a product: all columns of C.
fn for_panels(
    [m, n, depth]: [usize; 3],
    start: usize,
    a: Parts,
    b: &Packed,
    c: &mut [f32],
    ldc: usize,
    store: Store,
) {
    let at_once = match a {
        Parts::Words(..) => n.next_multiple_of(NR).max(NR),
        Parts::Numbers { .. } => Tile::here().panels * NR,
    };
    for first in (0..n).step_by(at_once) {
        let sizes = [m, at_once.min(n - first), depth];
        some_panels(sizes, [start, first / NR], a, b, C::rows(&mut c[first..], ldc), store);
    }
}

/// Some columns of a block: those of B from `panel` on, in the block that begins at `start`.
fn some_panels(
    sizes @ [m, columns, depth]: [usize; 3],
    [start, panel]: [usize; 2],
    a: Parts,
    b: &Packed,
    mut c: C,
    store: Store,
) {
    match a {
        Parts::Words(kind, a) => {
            words::multiply(kind, sizes, a, b.right(kind, start, panel), c, store);
        }
        Parts::Numbers { first, apart } => {
            for (left, right, store) in terms(b.precision(), store) {
                let (a, b) = (first.after(left * apart), b.panels(right, start, panel, columns));
                multiply_tiles([m, columns, depth], a, b, c.lend(), store, None);
            }
        }
    }
}

/// The products of parts that a product is the sum of, and what each of them does to C.
fn terms(precision: Precision, store: Store) -> impl Iterator<Item = (usize, usize, Store)> {
    let terms = precision.terms().iter().enumerate();
    terms.map(move |(i, &(left, right))| (left, right, Store { add: store.add || i > 0, ..store }))
}

/// `C = A B` for some rows of C, those from `rows.start` on of a matrix in panels, which must be of one block. Each
/// piece is handed to `finish` with the number of its panel while it is in the cache.
///
/// # Safety
/// No other reference to these rows of C may exist.
pub(crate) unsafe fn fill_panels(
    rows: Range<usize>,
    k: usize,
    a: View,
    b: &Packed,
    c: &PanelsMut,
    scratch: &mut Scratch,
    finish: impl Fn(usize, &mut [f32]),
) {
    assert!(k <= b.depth() && c.layout.columns == b.columns());
    if k == 0 {
        for panel in 0..c.layout.panels() {
            // SAFETY: passed on from the caller.
            let c = unsafe { c.piece(panel, rows.clone()) };
            c.fill(0.0);
            finish(panel, c);
        }
    }
    // To set up a unit for words takes time: more columns share it.
    let at_once = if b.kind().is_some() { WORD_PANELS } else { Tile::here().panels };
    for start in (0..k).step_by(b.block()) {
        let depth = b.block().min(k - start);
        let store = Store { add: start > 0, ..Store::SET };
        let a = prepare([rows.len(), b.columns(), depth], a.after(start), b, scratch);
        let panels = c.layout.panels();
        for first in (0..panels).step_by(at_once) {
            let group = first..panels.min(first + at_once);
            (group.end..panels.min(group.end + at_once))
                .for_each(|panel| c.ask_for(panel, rows.clone()));
            let columns = group.len() * NR;
            // SAFETY: passed on from the caller.
            let to = unsafe { c.target(first, rows.clone()) };
            some_panels([rows.len(), columns, depth], [start, first], a, b, to, store);
            if start + depth == k {
                // SAFETY: passed on from the caller.
                group.for_each(|panel| finish(panel, unsafe { c.piece(panel, rows.clone()) }));
            }
        }
    }
}

/// `C = A B` for some rows of a matrix A in panels, which must be of one block.
///
/// # Safety
/// These rows of A must be written, and not be changed meanwhile.
pub(crate) unsafe fn multiply_panels(
    rows: Range<usize>,
    a: &PanelsMut,
    b: &Packed,
    c: &mut [f32],
    store: Store,
    scratch: &mut Scratch,
) {
    let (k, n) = (a.layout.columns, b.columns());
    assert!(k <= b.depth());
    if k == 0 && !store.add {
        c[..rows.len() * n].fill(0.0);
    }
    for start in (0..k).step_by(b.block()) {
        let depth = b.block().min(k - start);
        let store = Store { add: store.add || start > 0, ..store };
        // SAFETY: passed on from the caller.
        let a = unsafe { prepare_panels(rows.clone(), start, depth, a, b, scratch) };
        for_panels([rows.len(), n, depth], start, a, b, c, n, store);
    }
}

/// A block of a left factor, as the right one wants it.
#[derive(Clone, Copy)]
enum Parts<'a> {
    /// Parts that lie so far apart, or operands as they are.
    Numbers { first: A<'a>, apart: usize },
    /// All parts, in rows of words.
    Words(Kind, &'a [u32]),
}

impl<'a> Parts<'a> {
    /// Operands as they are.
    fn whole(a: A<'a>) -> Self {
        Self::Numbers { first: a, apart: 0 }
    }
}

/// A for a product of these sizes: packed, unless it is read as it is, and too few times for packing to pay.
fn prepare<'a>(
    [m, n, depth]: [usize; 3],
    a: View<'a>,
    b: &Packed,
    scratch: &'a mut Scratch,
) -> Parts<'a> {
    if let Some(kind) = b.kind() {
        return scratch.words(kind, m, |out| words::pack_rows(kind, out, a, m, depth));
    }
    // A stream of its own is read faster than six rows side by side, above all where rows are a large
    // power of two apart and fall into the same cache sets; but it must be read often enough.
    if n < WORTH_PACKING && b.precision() == Precision::F32 {
        if a.column == 1 && !a.row.is_multiple_of(512) {
            return Parts::whole(A::new(a.data, Order::Rows { row: a.row }, MR * a.row));
        }
        if a.row == 1 && depth <= SHALLOW {
            return Parts::whole(A::new(a.data, Order::Columns { column: a.column }, MR));
        }
    }
    scratch.parts([m, depth], b.precision(), |out| pack_left(out, a, m, depth))
}

/// Rows of a matrix in panels, over `depth` columns from `start` on.
///
/// # Safety
/// These rows must be written, and not be changed while the result is in use.
unsafe fn prepare_panels<'a>(
    rows: Range<usize>,
    start: usize,
    depth: usize,
    a: &'a PanelsMut,
    b: &Packed,
    scratch: &'a mut Scratch,
) -> Parts<'a> {
    if let Some(kind) = b.kind() {
        // SAFETY: passed on from the caller; nobody writes to it.
        let piece = |panel| -> &[f32] { unsafe { a.piece(start / NR + panel, rows.clone()) } };
        let pack = |out: &mut [u32]| {
            words::pack_rows_of_panels(kind, out, piece, rows.len(), depth);
        };
        return scratch.words(kind, rows.len(), pack);
    }
    // SAFETY: passed on from the caller.
    unsafe {
        match b.precision() {
            Precision::F32 => Parts::whole(a.left(rows.start, start)),
            precision => {
                let pack = |out: &mut [f32]| a.pack(rows.clone(), start, depth, out);
                scratch.parts([rows.len(), depth], precision, pack)
            }
        }
    }
}

impl Scratch {
    /// Rows of a left factor as `pack` leaves them, rounded.
    fn parts(
        &mut self,
        [m, depth]: [usize; 2],
        precision: Precision,
        pack: impl FnOnce(&mut [f32]),
    ) -> Parts<'_> {
        let stride = panel_stride(depth);
        let apart = m.div_ceil(MR) * stride;
        self.a.resize(precision.parts() * apart, 0.0);
        pack(&mut self.a[..apart]);
        precision.round(&mut self.a);
        Parts::Numbers { first: A::new(&self.a, Order::PACKED, stride), apart }
    }

    /// The same in words.
    fn words(&mut self, kind: Kind, m: usize, pack: impl FnOnce(&mut [u32])) -> Parts<'_> {
        self.words.resize(kind.rows(m), 0);
        pack(&mut self.words);
        Parts::Words(kind, &self.words)
    }
}

#[cfg(test)]
mod tests;
