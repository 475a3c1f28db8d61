//! Causal attention with rotary positions, grouped queries and per-head norms, from the projections
//! `[q | k | v]` to the mixed values.
//!
//! One task works on one key head of one sequence. Queries go in blocks, keys in tiles, and the softmax
//! is built up tile by tile, so no `T x T` matrix exists; tiles above the diagonal, and those before a sliding
//! window, are left out. Only the
//! logarithm of each row's sum is kept, and the backward pass computes the weights again from it. Norms
//! and rotations are applied while heads are copied out of the rows.
//!
//! Dense and routed attention are the same loops: a plan says for each query where its row is, at which
//! position it stands and which keys it sees. A token that does not ask is not in the plan.

mod backward;
mod decode;
mod forward;
mod heads;
mod live;
mod plan;
mod routed;
mod slots;
mod table;

pub use backward::{Gradient, backward};
pub use decode::KeyValues;
pub use forward::{Output, forward};
pub use plan::Keys;
pub use routed::{RoutedGradient, backward_routed, forward_routed};
pub use slots::Slots;

use crate::gemm::{Packed, Scratch, View};
use crate::lent::Lent;
use backward::BackRoom;
use heads::take_head;
use plan::Part;
use std::cell::Cell;
use table::Inputs;

/// Queries of one block.
const QUERIES: usize = 24;
/// Keys of one tile: one block of the products over keys.
const KEYS: usize = crate::gemm::KC;
/// From one row of scores to the next: one line more than its keys, so that rows do not fall into the same cache sets.
const STRIDE: usize = KEYS + live::CHUNK;

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
    /// How many positions back a token sees, itself included; everything if none.
    pub window: Option<u32>,
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
    /// Panics if heads do not share key heads evenly, or have no halves that could be rotated: some columns would belong to no
    /// task.
    fn check(&self) {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads on {kv_heads}");
        assert!(head_dim > 0 && head_dim.is_multiple_of(2), "heads of {head_dim} features");
    }

    /// How many tokens there are in `joined`, whose rows must be whole.
    fn tokens(&self, joined: &[f32]) -> usize {
        self.check();
        assert!(joined.len().is_multiple_of(self.joined()), "whole rows");
        joined.len() / self.joined()
    }

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

    /// Width of keys and values side by side.
    fn key_value_width(&self) -> usize {
        2 * self.kv_heads * self.head_dim
    }

    /// Where a head begins among the queries, or among the keys.
    fn head_at(&self, head: usize) -> usize {
        head * self.head_dim
    }

    /// Where a head's values begin, behind all keys.
    fn value_at(&self, head: usize) -> usize {
        (self.kv_heads + head) * self.head_dim
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

    /// Copies a head's queries, normalised and rotated.
    fn take_queries(&mut self, inputs: &Inputs, part: &Part, head: usize, shape: &Shape) {
        let (from, places) = (&inputs.queries, &part.queries);
        self.queries.resize(places.len() * shape.head_dim, 0.0);
        let rows = from.head(places, shape.head_at(head), shape);
        let gain = shape.query_gain();
        take_head(&mut self.queries, rows, from.width, places.positions, shape, gain);
    }

    /// Copies a head's keys, normalised and rotated, and packs them.
    fn take_keys(&mut self, inputs: &Inputs, part: &Part, kv_head: usize, shape: &Shape) {
        let (from, places, dim) = (&inputs.key_values, &part.keys, shape.head_dim);
        self.keys.resize(places.len() * dim, 0.0);
        let rows = from.head(places, shape.head_at(kv_head), shape);
        let gain = shape.key_gain();
        take_head(&mut self.keys, rows, from.width, places.positions, shape, gain);
        let tiles = self.keys.chunks(KEYS * dim);
        self.key_tiles.resize_with(tiles.len(), Packed::default);
        for (packed, keys) in self.key_tiles.iter_mut().zip(tiles) {
            let keys_count = keys.len() / dim;
            packed.refill(View::transposed(keys, dim), dim, keys_count, inputs.precision);
        }
    }
}

/// The values of each tile of a head: where they begin, and how many there are.
fn value_tiles<'a>(
    inputs: &Inputs<'a>,
    part: &Part,
    kv_head: usize,
    shape: &Shape,
) -> impl ExactSizeIterator<Item = (&'a [f32], usize)> {
    let (rows, first, count) = (inputs.key_values, part.keys.first, part.keys.len());
    let at = shape.value_at(kv_head);
    (0..count.div_ceil(KEYS)).map(move |tile| {
        let start = tile * KEYS;
        (rows.from(first + start, at), KEYS.min(count - start))
    })
}

#[cfg(test)]
mod tests;
