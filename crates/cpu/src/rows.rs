//! Buffers of f32 rows.

use crate::buffer::unwritten;
use crate::parallel;
use crate::simd::add_scaled;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

/// f32 values with an owner: a vector, or a tensor's storage.
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

/// Rows of a matrix of which each task writes other columns.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    data: *mut f32,
    length: usize,
    width: usize,
    first: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks that share this get at its elements by `row` alone, whose callers promise that no other reference to them
// exists; the matrix is borrowed for as long as this lives.
unsafe impl Sync for Columns<'_> {}
// SAFETY: as above; a copy in another task is one more way to call `row`.
unsafe impl Send for Columns<'_> {}

impl<'a> Columns<'a> {
    pub(crate) fn new(data: &'a mut [f32], width: usize) -> Self {
        let (length, borrowed) = (data.len(), PhantomData);
        Self { data: data.as_mut_ptr(), length, width, first: 0, borrowed }
    }

    /// Without the first columns.
    pub(crate) fn after(&self, columns: usize) -> Self {
        Self { first: self.first + columns, ..*self }
    }

    /// Elements of one row, to write to.
    ///
    /// # Safety
    /// While the result is in use, no other reference to these elements may exist: neither from this nor from a copy of it, in
    /// this task or in another.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row(&self, row: usize, column: usize, count: usize) -> &mut [f32] {
        let column = self.first + column;
        let at = row * self.width + column;
        assert!(column + count <= self.width && at + count <= self.length);
        // SAFETY: within the matrix, which is borrowed for `'a`, and the caller's alone.
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
    assert_eq!(matrix.len(), rows * columns, "whole rows");
    // SAFETY: every block is written, and blocks are all of the matrix, as its rows are whole.
    let mut out = unsafe { unwritten(matrix.len()) };
    parallel::for_each(out.chunks_mut(BLOCK * rows).enumerate(), |(block, out)| {
        transpose_into(out, &matrix[block * BLOCK..], columns);
    });
    out
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

/// Elements of a sum that one task adds up.
const SUMMED: usize = 1 << 12;

/// The sum of partial sums of `length` elements, always added in the same order.
pub(crate) fn sum_of_partials(partials: &[f32], length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; length];
    parallel::for_each(sum.chunks_mut(SUMMED).enumerate(), |(slice, sum)| {
        for partial in partials.chunks_exact(length) {
            add_scaled(sum, 1.0, &partial[slice * SUMMED..]);
        }
    });
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_sums_of_many_parameters_are_all_added() {
        let length = 2 * SUMMED + 5;
        let partials: Vec<f32> =
            (0..3 * length).map(|i| (i % length + i / length) as f32).collect();
        let want: Vec<f32> = (0..length).map(|i| (3 * i + 3) as f32).collect();
        assert_eq!(sum_of_partials(&partials, length), want);
        assert!(sum_of_partials(&[], 0).is_empty());
    }
}
