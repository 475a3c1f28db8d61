//! Buffers of f32 rows.

use crate::team::each_of;
use std::fmt::Debug;
use std::sync::Arc;

/// f32 values that somebody owns: a vector, or a tensor's storage.
pub trait Values: Debug + Send + Sync {
    /// All of them, row by row.
    fn values(&self) -> &[f32];
}

impl Values for Vec<f32> {
    fn values(&self) -> &[f32] {
        self
    }
}

/// Shared rows: kept for the backward pass without a copy.
pub type Rows = Arc<dyn Values>;

/// A vector of `length` elements, all written by `fill`, which must not read before it writes.
///
/// Zeroing first would cost one more pass over memory for every result of every kernel.
pub(crate) fn filled(length: usize, fill: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut values = unwritten(length);
    fill(&mut values);
    values
}

/// [`filled`] for vectors of several lengths.
pub(crate) fn filled_each(
    lengths: impl Iterator<Item = usize>,
    fill: impl FnOnce(Vec<&mut [f32]>),
) -> Vec<Vec<f32>> {
    let mut vectors: Vec<_> = lengths.map(unwritten).collect();
    fill(vectors.iter_mut().map(Vec::as_mut_slice).collect());
    vectors
}

fn unwritten(length: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(length);
    // SAFETY: the memory is ours and has room for `length` elements of a type for which every bit
    // pattern is valid. That no element stays unwritten is checked by the kernels' tests, for which
    // the vector is poisoned below.
    #[allow(clippy::uninit_vec)]
    unsafe {
        values.set_len(length);
    }
    if cfg!(test) {
        values.fill(f32::NAN);
    }
    values
}

/// Rows of a matrix of which each task writes other columns.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    data: *mut f32,
    length: usize,
    width: usize,
    first: usize,
}

// SAFETY: `row` is only called for parts that no other task touches.
unsafe impl Sync for Columns {}
// SAFETY: as above.
unsafe impl Send for Columns {}

impl Columns {
    pub(crate) fn new(data: &mut [f32], width: usize) -> Self {
        Self { data: data.as_mut_ptr(), length: data.len(), width, first: 0 }
    }

    /// Without the first columns.
    pub(crate) fn after(&self, columns: usize) -> Self {
        Self { first: self.first + columns, ..*self }
    }

    /// # Safety
    /// No other reference to these elements may exist.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row(&self, row: usize, column: usize, count: usize) -> &mut [f32] {
        let column = self.first + column;
        let at = row * self.width + column;
        assert!(column + count <= self.width && at + count <= self.length);
        // SAFETY: within the matrix, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), count) }
    }
}

/// The first elements of what is left of a slice, which loses them.
pub(crate) fn cut<'a, T>(rest: &mut &'a [T], length: usize) -> &'a [T] {
    rest.split_off(..length).expect("a slice for all of the rows")
}

/// [`cut`], to write to.
pub(crate) fn cut_mut<'a, T>(rest: &mut &'a mut [T], length: usize) -> &'a mut [T] {
    rest.split_off_mut(..length).expect("a slice for all of the rows")
}

/// Rows and columns that are transposed together.
const BLOCK: usize = 16;

/// `[rows, columns]` to `[columns, rows]`.
pub(crate) fn transpose(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    filled(matrix.len(), |out| {
        each_of(out.chunks_mut(BLOCK * rows).enumerate(), |(block, out)| {
            transpose_into(out, &matrix[block * BLOCK..], columns);
        });
    })
}

/// The first columns of a matrix with rows of `columns` elements, as many as there are rows in `out`; the last row of the
/// matrix need not be whole.
pub(crate) fn transpose_into(out: &mut [f32], matrix: &[f32], columns: usize) {
    let rows = matrix.len().div_ceil(columns);
    // In blocks that fit into the cache.
    for (block, out) in out.chunks_mut(BLOCK * rows).enumerate() {
        for first in (0..rows).step_by(BLOCK) {
            for (j, out) in out.chunks_exact_mut(rows).enumerate() {
                for (i, out) in out[first..rows.min(first + BLOCK)].iter_mut().enumerate() {
                    *out = matrix[(first + i) * columns + block * BLOCK + j];
                }
            }
        }
    }
}
