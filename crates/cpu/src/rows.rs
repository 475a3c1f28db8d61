//! Buffers of f32 rows.

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
