//! Causal attention with rotary positions, grouped queries and per-head norms, from the joined
//! projections `[q | k | v]` to the mixed values.
//!
//! One task works on one key head of one sequence. Queries go in blocks, keys in tiles, and the softmax
//! is built up tile by tile, so no `T x T` matrix exists; tiles above the diagonal are left out. Only the
//! logarithm of each row's sum is kept, and the backward pass computes the weights again from it. Norms
//! and rotations are applied while heads are copied out of the joined rows.

mod backward;
mod decode;
mod forward;
mod heads;
mod slots;

pub use backward::{Gradient, backward};
pub use decode::KeyValues;
pub use forward::{Output, forward};
pub use slots::Slots;

use crate::gemm::{Packed, Scratch, View};
use crate::lent::Lent;
use backward::BackRoom;
use std::cell::Cell;

/// Queries of one block.
const QUERIES: usize = 48;
/// Keys of one tile: one block of the products over keys.
const KEYS: usize = crate::gemm::KC;

/// The shape of an attention and its tables.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Tokens of one sequence.
    pub time: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// `[time, head_dim / 2]`
    pub cos: &'a [f32],
    /// `[time, head_dim / 2]`
    pub sin: &'a [f32],
    /// Norms of query and key heads, if there are any.
    pub norms: Option<HeadNorms<'a>>,
}

/// RMS norms over each head, before the rotation.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// `[head_dim]`
    pub query: &'a [f32],
    /// `[head_dim]`
    pub key: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

impl Shape<'_> {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of the joined projections.
    fn joined(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Where a head begins in a joined row.
    fn query_at(&self, head: usize) -> usize {
        head * self.head_dim
    }

    fn key_at(&self, head: usize) -> usize {
        (self.heads + head) * self.head_dim
    }

    fn value_at(&self, head: usize) -> usize {
        (self.heads + self.kv_heads + head) * self.head_dim
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn query_gain(&self) -> Option<(&[f32], f32)> {
        self.norms.map(|norms| (norms.query, norms.eps))
    }

    fn key_gain(&self) -> Option<(&[f32], f32)> {
        self.norms.map(|norms| (norms.key, norms.eps))
    }
}

/// Memory of one task.
#[derive(Debug, Default)]
struct Room {
    queries: Vec<f32>,
    keys: Vec<f32>,
    out: Vec<f32>,
    /// `K^T` of each tile.
    key_tiles: Vec<Packed>,
    /// `V` of each tile.
    value_tiles: Vec<Packed>,
    scores: Vec<f32>,
    scratch: Scratch,
    back: BackRoom,
}

impl Room {
    /// The one that this thread keeps.
    fn of_thread() -> Lent<Self> {
        thread_local!(static HOME: Cell<Room> = Cell::default());
        Lent::from(&HOME)
    }

    fn pack_keys(&mut self, dim: usize) {
        let tiles = self.keys.chunks(KEYS * dim);
        self.key_tiles.resize_with(tiles.len(), Packed::default);
        for (packed, keys) in self.key_tiles.iter_mut().zip(tiles) {
            packed.refill(View::transposed(keys, dim), dim, keys.len() / dim);
        }
    }

    /// `values` begins with the head in the first joined row.
    fn pack_values(&mut self, values: &[f32], shape: &Shape) {
        let stride = shape.joined();
        self.value_tiles.resize_with(shape.time.div_ceil(KEYS), Packed::default);
        for (i, packed) in self.value_tiles.iter_mut().enumerate() {
            let keys = KEYS.min(shape.time - i * KEYS);
            let values = &values[i * KEYS * stride..];
            packed.refill(View::rows(values, stride), keys, shape.head_dim);
        }
    }
}

/// Rows of a matrix of which each task writes other columns.
struct Columns {
    data: *mut f32,
    length: usize,
    width: usize,
}

// SAFETY: `row` is only called for parts that no other task touches.
unsafe impl Sync for Columns {}

impl Columns {
    fn new(data: &mut [f32], width: usize) -> Self {
        Self { data: data.as_mut_ptr(), length: data.len(), width }
    }

    /// # Safety
    /// No other reference to these elements may exist.
    #[allow(clippy::mut_from_ref)]
    unsafe fn row(&self, row: usize, column: usize, count: usize) -> &mut [f32] {
        let at = row * self.width + column;
        assert!(column + count <= self.width && at + count <= self.length);
        // SAFETY: within the matrix, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), count) }
    }
}

#[cfg(test)]
mod tests;
