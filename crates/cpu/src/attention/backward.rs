//! From the gradient of the mixed values to that of the joined projections.

use super::heads::{return_head, take_head};
use super::slots::{SlotPass, slots_backward};
use super::{Columns, KEYS, QUERIES, Room, Shape, Slots};
use crate::gemm::{Packed, Store, View, multiply};
use crate::rows::filled;
use crate::simd::{add_scaled, dot, exp};
use rayon::prelude::*;

/// Gradients of [`forward()`](super::forward()).
#[derive(Debug)]
pub struct Gradient {
    /// Of the joined projections.
    pub joined: Vec<f32>,
    /// Of the query heads' gain; empty without norms.
    pub query_gain: Vec<f32>,
    /// Of the key heads' gain; empty without norms.
    pub key_gain: Vec<f32>,
    /// Of the slots' keys, in their layout.
    pub slot_keys: Vec<f32>,
    /// Of the slots' values, in their layout.
    pub slot_values: Vec<f32>,
}

#[derive(Debug, Default)]
pub(super) struct BackRoom {
    /// `V^T` of each tile.
    value_tiles: Vec<Packed>,
    /// `K` of each tile.
    key_rows: Vec<Packed>,
    d_out: Vec<f32>,
    d_queries: Vec<f32>,
    d_keys: Vec<f32>,
    d_values: Vec<f32>,
    d_scores: Vec<f32>,
    packed_queries: Packed,
    packed_d_out: Packed,
}

/// `d_mixed` is the gradient of [`Output::mixed`](super::Output::mixed); `mixed` and `log_sums` are those of the output.
pub fn backward(
    d_mixed: &[f32],
    joined: &[f32],
    mixed: &[f32],
    log_sums: &[f32],
    shape: &Shape,
    slots: &Slots,
) -> Gradient {
    let (time, dim) = (shape.time, shape.head_dim);
    let (mut slot_keys, mut slot_values) =
        (vec![0.0; slots.keys.len()], vec![0.0; slots.values.len()]);
    let slot_width = shape.kv_heads * dim;
    let d_slot_keys = Columns::new(&mut slot_keys, slot_width);
    let d_slot_values = Columns::new(&mut slot_values, slot_width);
    let mut gains = Vec::new();
    let d_joined = filled(joined.len(), |d_joined| {
        let d_joined = Columns::new(d_joined, shape.joined());
        let tasks = log_sums.par_chunks(shape.group() * time).enumerate();
        gains = tasks
            .with_max_len(1)
            .map_init(Room::of_thread, |room, (task, log_sums)| {
                let room: &mut Room = room;
                let (sequence, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
                let rows = &joined[sequence * time * shape.joined()..][..time * shape.joined()];
                let mut gains = HeadGains::new(shape);
                room.keys.resize(time * dim, 0.0);
                take_head(&mut room.keys, rows, shape.key_at(kv_head), shape, shape.key_gain());
                room.prepare_backward(rows, kv_head, shape);
                // SAFETY: this task alone writes these heads of this sequence.
                let row =
                    |t: usize, at: usize| unsafe { d_joined.row(sequence * time + t, at, dim) };
                for (g, log_sums) in log_sums.chunks_exact(time).enumerate() {
                    let head = kv_head * shape.group() + g;
                    room.queries.resize(time * dim, 0.0);
                    let at = shape.query_at(head);
                    take_head(&mut room.queries, rows, at, shape, shape.query_gain());
                    room.take_output(d_mixed, mixed, sequence, head, shape);
                    attend_backward(room, log_sums, shape);
                    let back = &mut room.back;
                    let pass = SlotPass {
                        queries: &room.queries,
                        d_out: &back.d_out,
                        sums: &room.out,
                        log_sums,
                        token: sequence * time,
                        kv_head,
                    };
                    let (d_keys, d_values) = (&d_slot_keys, &d_slot_values);
                    slots_backward(&mut back.d_queries, d_keys, d_values, &pass, slots, shape);
                    let d = &mut room.back.d_queries;
                    for t in 0..time {
                        let d = &mut d[t * dim..(t + 1) * dim];
                        let x = &rows[t * shape.joined() + at..][..dim];
                        return_head(
                            row(t, at),
                            d,
                            x,
                            t,
                            shape,
                            shape.query_gain(),
                            &mut gains.query,
                        );
                    }
                }
                let (key_at, value_at) = (shape.key_at(kv_head), shape.value_at(kv_head));
                for t in 0..time {
                    let d = &mut room.back.d_keys[t * dim..(t + 1) * dim];
                    let x = &rows[t * shape.joined() + key_at..][..dim];
                    return_head(row(t, key_at), d, x, t, shape, shape.key_gain(), &mut gains.key);
                    row(t, value_at).copy_from_slice(&room.back.d_values[t * dim..(t + 1) * dim]);
                }
                gains
            })
            .collect();
    });
    let mut sum = HeadGains::new(shape);
    for part in &gains {
        add_scaled(&mut sum.query, 1.0, &part.query);
        add_scaled(&mut sum.key, 1.0, &part.key);
    }
    Gradient { joined: d_joined, query_gain: sum.query, key_gain: sum.key, slot_keys, slot_values }
}

/// Gradients of the heads' norms.
struct HeadGains {
    query: Vec<f32>,
    key: Vec<f32>,
}

impl HeadGains {
    fn new(shape: &Shape) -> Self {
        let length = if shape.norms.is_some() { shape.head_dim } else { 0 };
        Self { query: vec![0.0; length], key: vec![0.0; length] }
    }
}

impl Room {
    fn prepare_backward(&mut self, rows: &[f32], kv_head: usize, shape: &Shape) {
        let (time, dim) = (shape.time, shape.head_dim);
        self.pack_keys(dim);
        let back = &mut self.back;
        back.d_keys.clear();
        back.d_keys.resize(time * dim, 0.0);
        back.d_values.clear();
        back.d_values.resize(time * dim, 0.0);
        let tiles = time.div_ceil(KEYS);
        back.key_rows.resize_with(tiles, Packed::default);
        back.value_tiles.resize_with(tiles, Packed::default);
        for tile in 0..tiles {
            let (start, keys) = (tile * KEYS, KEYS.min(time - tile * KEYS));
            back.key_rows[tile].refill(View::rows(&self.keys[start * dim..], dim), keys, dim);
            let values = &rows[start * shape.joined() + shape.value_at(kv_head)..];
            back.value_tiles[tile].refill(View::transposed(values, shape.joined()), dim, keys);
        }
    }

    /// The head's gradient, and behind it the sums `d . out` of each row.
    fn take_output(
        &mut self,
        d_mixed: &[f32],
        mixed: &[f32],
        sequence: usize,
        head: usize,
        shape: &Shape,
    ) {
        let (time, dim, width) = (shape.time, shape.head_dim, shape.query_width());
        self.back.d_out.resize(time * dim, 0.0);
        self.out.resize(time, 0.0);
        let first = sequence * time * width + head * dim;
        let (d_mixed, mixed) = (&d_mixed[first..], &mixed[first..]);
        take_gradient(&mut self.back.d_out, &mut self.out, d_mixed, mixed, dim, width);
    }
}

simd! {
    fn take_gradient(
        d_out: &mut [f32], sums: &mut [f32], d_mixed: &[f32], mixed: &[f32], dim: usize,
        width: usize,
    ) {
        for (t, (d, sum)) in d_out.chunks_exact_mut(dim).zip(sums).enumerate() {
            let row = t * width..t * width + dim;
            d.copy_from_slice(&d_mixed[row.clone()]);
            *sum = dot(d, &mixed[row]);
        }
    }
}

/// One query head: fills `d_queries` and adds to `d_keys` and `d_values`.
fn attend_backward(room: &mut Room, log_sums: &[f32], shape: &Shape) {
    let (time, dim) = (shape.time, shape.head_dim);
    let Room { queries, out: sums, key_tiles, scores, scratch, back, .. } = room;
    scores.resize(QUERIES * KEYS, 0.0);
    back.d_scores.resize(QUERIES * KEYS, 0.0);
    back.d_queries.resize(time * dim, 0.0);
    for first in (0..time).step_by(QUERIES) {
        let rows = QUERIES.min(time - first);
        let block = first * dim..(first + rows) * dim;
        let (queries, d_out) = (&queries[block.clone()], &back.d_out[block.clone()]);
        let d_queries = &mut back.d_queries[block];
        back.packed_queries.refill(View::rows(queries, dim), rows, dim);
        back.packed_d_out.refill(View::rows(d_out, dim), rows, dim);
        for (tile, start) in (0..first + rows).step_by(KEYS).enumerate() {
            let keys = KEYS.min(first + rows - start);
            let (store, d_scores) =
                (Store { scale: shape.scale(), add: false }, &mut back.d_scores);
            multiply(
                [rows, keys, dim],
                View::rows(queries, dim),
                &key_tiles[tile],
                scores,
                KEYS,
                store,
                scratch,
            );
            let values = &back.value_tiles[tile];
            multiply(
                [rows, keys, dim],
                View::rows(d_out, dim),
                values,
                d_scores,
                KEYS,
                Store::SET,
                scratch,
            );
            let offset = first as isize - start as isize;
            let range = first..first + rows;
            weigh_backward(
                scores,
                d_scores,
                &log_sums[range.clone()],
                &sums[range],
                keys,
                offset,
                shape.scale(),
            );
            let store = Store { scale: 1.0, add: start > 0 };
            multiply(
                [rows, dim, keys],
                View::rows(d_scores, KEYS),
                &back.key_rows[tile],
                d_queries,
                dim,
                store,
                scratch,
            );
            let tile = start * dim..(start + keys) * dim;
            let sizes = [keys, dim, rows];
            let d_keys = &mut back.d_keys[tile.clone()];
            multiply(
                sizes,
                View::transposed(d_scores, KEYS),
                &back.packed_queries,
                d_keys,
                dim,
                Store::ADD,
                scratch,
            );
            let d_values = &mut back.d_values[tile];
            multiply(
                sizes,
                View::transposed(scores, KEYS),
                &back.packed_d_out,
                d_values,
                dim,
                Store::ADD,
                scratch,
            );
        }
    }
}

simd! {
    /// Scores become weights, gradients of weights become gradients of scores.
    fn weigh_backward(
        scores: &mut [f32], d_scores: &mut [f32], log_sums: &[f32], sums: &[f32], keys: usize,
        offset: isize, scale: f32,
    ) {
        let rows = scores.chunks_exact_mut(KEYS).zip(d_scores.chunks_exact_mut(KEYS));
        for (r, ((scores, d_scores), (log_sum, sum))) in rows.zip(log_sums.iter().zip(sums)).enumerate() {
            let seen = (r as isize + offset + 1).clamp(0, keys as isize) as usize;
            let (live, future) = scores[..keys].split_at_mut(seen);
            let (d_live, d_future) = d_scores[..keys].split_at_mut(seen);
            future.fill(0.0);
            d_future.fill(0.0);
            // Two simple loops over copies of the row's numbers: the compiler vectorises each of them.
            let (log_sum, sum) = (*log_sum, *sum);
            for score in live.iter_mut() {
                *score = exp(*score - log_sum);
            }
            for (d, weight) in d_live.iter_mut().zip(live.iter()) {
                *d = weight * (*d - sum) * scale;
            }
        }
    }
}
