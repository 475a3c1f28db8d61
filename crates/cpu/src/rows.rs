//! Buffers of f32 rows.

use rayon::prelude::*;
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
    fill(&mut values);
    values
}

/// `[rows, columns]` to `[columns, rows]`, in blocks that fit into the cache.
pub(crate) fn transpose(matrix: &[f32], columns: usize) -> Vec<f32> {
    const BLOCK: usize = 16;
    let rows = matrix.len() / columns;
    filled(matrix.len(), |out| {
        out.par_chunks_mut(BLOCK * rows).enumerate().for_each(|(block, out)| {
            for first in (0..rows).step_by(BLOCK) {
                for (j, out) in out.chunks_exact_mut(rows).enumerate() {
                    for (i, out) in out[first..rows.min(first + BLOCK)].iter_mut().enumerate() {
                        *out = matrix[(first + i) * columns + block * BLOCK + j];
                    }
                }
            }
        });
    })
}
