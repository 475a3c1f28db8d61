//! Panels of C: register tiles one below the other, for each form.

use super::{MR, NR, Store};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::simd::Form;
use std::marker::PhantomData;

/// Where the micro-kernel finds A.
#[derive(Clone, Copy)]
pub(super) struct A<'a> {
    /// Not a slice: between the elements of these rows may be those of others, which other tasks write.
    data: *const f32,
    length: usize,
    pub(super) order: Order,
    /// From one tile to the next.
    pub(super) tile: usize,
    lives: PhantomData<&'a f32>,
}

/// How the elements of a tile of A lie.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Row by row, so far apart.
    Rows { row: usize },
    /// Column by column, so far apart.
    Columns { column: usize },
    /// In rows of [`NR`] elements, with panels so far apart.
    Panels { stride: usize },
}

impl Order {
    /// As packing leaves it.
    pub(super) const PACKED: Self = Self::Columns { column: MR };
}

impl<'a> A<'a> {
    pub(super) fn new(data: &'a [f32], order: Order, tile: usize) -> Self {
        // SAFETY: a slice can be read.
        unsafe { Self::from_raw(data.as_ptr(), data.len(), order, tile) }
    }

    /// # Safety
    /// `length` elements from `data` on must be one piece of memory that lives for `'a`, and whatever of it is read must be
    /// written and not be changed for `'a`.
    pub(super) unsafe fn from_raw(
        data: *const f32,
        length: usize,
        order: Order,
        tile: usize,
    ) -> Self {
        Self { data, length, order, tile, lives: PhantomData }
    }

    pub(super) fn of_tile(self, index: usize) -> Self {
        self.after(index * self.tile)
    }

    /// The same order, so many elements further.
    pub(super) fn after(self, elements: usize) -> Self {
        assert!(elements <= self.length);
        // SAFETY: within the same memory, or at its end.
        Self { data: unsafe { self.data.add(elements) }, length: self.length - elements, ..self }
    }

    pub(super) fn as_ptr(self) -> *const f32 {
        self.data
    }

    /// Whether so many whole tiles can be read.
    fn has(self, tiles: usize, rows: usize, depth: usize) -> bool {
        self.length > (tiles - 1) * self.tile + self.at(rows - 1, depth - 1)
    }

    /// Element `(r, p)` of the first tile.
    fn element(self, r: usize, p: usize) -> f32 {
        assert!(self.has(1, r + 1, p + 1));
        // SAFETY: it is within the memory, and readable as `from_raw` was promised.
        unsafe { *self.data.add(self.at(r, p)) }
    }

    /// Where element `(r, p)` of the first tile is.
    fn at(self, r: usize, p: usize) -> usize {
        match self.order {
            Order::Rows { row } => r * row + p,
            Order::Columns { column } => p * column + r,
            Order::Panels { stride } => p / NR * stride + r * NR + p % NR,
        }
    }
}

/// What one register tile covers.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) rows: usize,
    /// Of [`NR`] columns.
    pub(super) panels: usize,
}

impl Tile {
    /// That of the form in use.
    pub(super) fn here() -> Self {
        match Form::best() {
            Form::Avx512(_) => Self { rows: 2 * MR, panels: 2 },
            Form::Avx2(_) | Form::Portable => Self { rows: MR, panels: 1 },
        }
    }
}

/// Panels of the right factor, at most as many as a [`Tile`] has.
#[derive(Clone, Copy)]
pub(super) struct B<'a> {
    data: &'a [f32],
    /// From one panel to the next.
    pub(super) apart: usize,
}

impl<'a> B<'a> {
    pub(super) fn new(data: &'a [f32], apart: usize) -> Self {
        Self { data, apart }
    }

    pub(super) fn as_ptr(self) -> *const f32 {
        self.data.as_ptr()
    }

    fn has(self, columns: usize, depth: usize) -> bool {
        self.data.len() >= (columns - 1) / NR * self.apart + depth * NR
    }
}

/// The part of C that goes with these panels.
pub(super) struct C<'a> {
    /// Not a slice: between these rows of two panels may be those of others, which other tasks write.
    data: *mut f32,
    length: usize,
    /// From one row to the next.
    pub(super) row: usize,
    /// From one panel to the next.
    pub(super) apart: usize,
    lives: PhantomData<&'a mut f32>,
}

impl<'a> C<'a> {
    /// Rows that lie so far apart.
    pub(super) fn rows(data: &'a mut [f32], row: usize) -> Self {
        // SAFETY: nobody else has a slice that can be written.
        unsafe { Self::from_raw(data.as_mut_ptr(), data.len(), row, NR) }
    }

    /// # Safety
    /// `length` elements from `data` on must be one piece of memory that lives for `'a`, and whatever of it is written must be
    /// the caller's alone for `'a`.
    pub(super) unsafe fn from_raw(data: *mut f32, length: usize, row: usize, apart: usize) -> Self {
        Self { data, length, row, apart, lives: PhantomData }
    }

    /// The same again, for one of several products.
    pub(super) fn lend(&mut self) -> C<'_> {
        C { lives: PhantomData, ..*self }
    }

    pub(super) fn as_mut_ptr(&self) -> *mut f32 {
        self.data
    }

    pub(super) fn has(&self, rows: usize, columns: usize) -> bool {
        let last = (rows - 1) * self.row + (columns - 1) / NR * self.apart + (columns - 1) % NR;
        self.length > last
    }

    /// All of it, which must be of one panel.
    fn panel(&mut self, rows: usize, columns: usize) -> &mut [f32] {
        assert!(self.has(rows, columns) && columns <= NR);
        // SAFETY: it is there, and of one panel: if rows are further apart than these columns, they are of a matrix of which
        // all columns are the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.data, (rows - 1) * self.row + columns) }
    }
}

/// As many panels of C as are given of B, `columns` wide in all. The cache fetches what is needed next, from the beginning of
/// `next` on: a few lines with every tile, as it would have to wait for all of them at once.
pub(super) fn multiply_tiles(
    sizes @ [m, columns, depth]: [usize; 3],
    a: A,
    b: B,
    mut c: C,
    store: Store,
    next: Option<&[f32]>,
) {
    if m == 0 || columns == 0 {
        return;
    }
    match Form::best() {
        #[cfg(target_arch = "x86_64")]
        Form::Avx512(_) => {
            let (full, rest) = (m / MR, m % MR);
            assert!(full == 0 || a.has(full, MR, depth));
            assert!(rest == 0 || a.of_tile(full).has(1, rest, depth));
            assert!(columns <= 2 * NR && b.has(columns, depth) && c.has(m, columns));
            // SAFETY: AVX-512 was detected, and the lengths were checked above.
            unsafe { avx512::multiply(sizes, a, b, c, store, next) }
        }
        _ => {
            let row = c.row;
            one_panel(sizes, a, b.data, c.panel(m, columns), row, store, next);
        }
    }
}

/// One panel of C, at most [`NR`] columns wide.
fn one_panel(
    [m, columns, depth]: [usize; 3],
    a: A,
    b: &[f32],
    c: &mut [f32],
    ldc: usize,
    store: Store,
    next: Option<&[f32]>,
) {
    let full = m / MR;
    if columns == NR {
        if full > 0 {
            full_tiles(full, depth, a, b, c, ldc, store, next);
        }
        if full * MR < m {
            let c = &mut c[full * MR * ldc..];
            some_rows(m - full * MR, depth, a.of_tile(full), b, c, ldc, store);
        }
        return;
    }
    // Narrow panels go by way of a wide tile.
    for index in 0..m.div_ceil(MR) {
        let rows = MR.min(m - index * MR);
        let mut whole = [0.0; MR * NR];
        let set = Store { add: false, ..store };
        some_rows(rows, depth, a.of_tile(index), b, &mut whole, NR, set);
        let c = c[index * MR * ldc..].chunks_mut(ldc);
        for (c, whole) in c.zip(whole.chunks_exact(NR)).take(rows) {
            for (c, whole) in c[..columns].iter_mut().zip(whole) {
                *c = *whole + if store.add { *c } else { 0.0 };
            }
        }
    }
}

/// `tiles` tiles of [`MR`] rows and [`NR`] columns, one below the other.
#[allow(clippy::too_many_arguments)]
fn full_tiles(
    tiles: usize,
    depth: usize,
    a: A,
    b: &[f32],
    c: &mut [f32],
    ldc: usize,
    store: Store,
    next: Option<&[f32]>,
) {
    assert!(a.has(tiles, MR, depth) && b.len() >= depth * NR);
    assert!(c.len() >= (tiles * MR - 1) * ldc + NR);
    #[cfg(target_arch = "x86_64")]
    if Form::best() != Form::Portable {
        // SAFETY: AVX2 and FMA were detected, and the lengths were checked above.
        return unsafe { avx2::full_tiles(tiles, depth, a, b, c, ldc, store, next) };
    }
    for index in 0..tiles {
        portable_kernel(MR, depth, a.of_tile(index), b, &mut c[index * MR * ldc..], ldc, store);
    }
}

/// One tile of at most [`MR`] rows.
fn some_rows(rows: usize, depth: usize, a: A, b: &[f32], c: &mut [f32], ldc: usize, store: Store) {
    assert!(rows <= MR && a.has(1, rows, depth));
    assert!(b.len() >= depth * NR && c.len() >= (rows - 1) * ldc + NR);
    #[cfg(target_arch = "x86_64")]
    if Form::best() != Form::Portable {
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
            let x = a.element(r, p);
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
