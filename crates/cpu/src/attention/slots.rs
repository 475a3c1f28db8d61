//! Depth slots (Mixture-of-Depths Attention): keys and values that earlier blocks left for the same token
//! join the softmax over the sequence.

use super::Shape;
use super::forward::Softmax;
use super::plan::Part;
use crate::rows::Columns;
use crate::simd::{add_scaled, dot, exp};

/// What earlier blocks left for every token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots<'a> {
    /// Slots of a token.
    pub count: usize,
    /// Normalised and rotated, `[tokens, count, kv_heads * head_dim]`.
    pub keys: &'a [f32],
    /// `[tokens, count, kv_heads * head_dim]`
    pub values: &'a [f32],
}

impl Slots<'_> {
    /// Where a head of a token's slot begins.
    fn at(&self, token: usize, slot: usize, kv_head: usize, shape: &Shape) -> usize {
        ((token * self.count + slot) * shape.kv_heads + kv_head) * shape.head_dim
    }
}

simd! {
    /// Adds the slots of queries at `positions` of the sequence that begins with `token` to sums over the
    /// sequence that are not divided yet.
    pub(super) fn add_slots(
        out: &mut [f32], softmax: &mut [Softmax], queries: &[f32], slots: &Slots, token: usize,
        positions: &[u32], kv_head: usize, shape: &Shape,
    ) {
        let dim = shape.head_dim;
        let rows = out.chunks_exact_mut(dim).zip(queries.chunks_exact(dim)).zip(softmax);
        for (((out, query), softmax), t) in rows.zip(positions) {
            for slot in 0..slots.count {
                let at = slots.at(token + *t as usize, slot, kv_head, shape);
                let score = shape.scale() * dot(query, &slots.keys[at..at + dim]);
                if score > softmax.largest {
                    let shrink = exp(softmax.largest - score);
                    softmax.largest = score;
                    softmax.sum *= shrink;
                    out.iter_mut().for_each(|value| *value *= shrink);
                }
                let weight = exp(score - softmax.largest);
                softmax.sum += weight;
                add_scaled(out, weight, &slots.values[at..at + dim]);
            }
        }
    }
}

/// One query head of one sequence, on the way back.
pub(super) struct SlotPass<'a> {
    pub(super) queries: &'a [f32],
    pub(super) d_out: &'a [f32],
    /// `d_out . out` of each query.
    pub(super) sums: &'a [f32],
    pub(super) log_sums: &'a [f32],
    pub(super) part: &'a Part<'a>,
    pub(super) kv_head: usize,
}

simd! {
    /// Adds what the slots contribute to the gradient of the queries, and to their own.
    ///
    /// The rows of `d_keys` and `d_values` are slots; no other task touches this key head of these tokens.
    pub(super) fn slots_backward(
        d_queries: &mut [f32], d_keys: &Columns, d_values: &Columns, pass: &SlotPass, slots: &Slots,
        shape: &Shape,
    ) {
        let (dim, scale) = (shape.head_dim, shape.scale());
        let rows = d_queries.chunks_exact_mut(dim).zip(pass.queries.chunks_exact(dim));
        for (r, ((d_query, query), d_out)) in rows.zip(pass.d_out.chunks_exact(dim)).enumerate() {
            let token = pass.part.token + pass.part.queries.positions[r] as usize;
            for slot in 0..slots.count {
                let at = slots.at(token, slot, pass.kv_head, shape);
                let (key, value) = (&slots.keys[at..at + dim], &slots.values[at..at + dim]);
                let weight = exp(scale * dot(query, key) - pass.log_sums[r]);
                let d_score = weight * (dot(d_out, value) - pass.sums[r]) * scale;
                add_scaled(d_query, d_score, key);
                let (row, column) = (token * slots.count + slot, pass.kv_head * dim);
                // SAFETY: this task's alone, as said above.
                unsafe {
                    add_scaled(d_keys.row(row, column, dim), d_score, query);
                    add_scaled(d_values.row(row, column, dim), weight, d_out);
                }
            }
        }
    }
}
