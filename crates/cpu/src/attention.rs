//! Causal attention with rotary positions, grouped queries and per-head norms, from the joined
//! projections `[q | k | v]` to the mixed values.
//!
//! One task works on one key head of one sequence. Queries go in blocks, keys in tiles, and the softmax
//! is built up tile by tile, so no `T x T` matrix exists; tiles above the diagonal are left out. Only the
//! logarithm of each row's sum is kept, and the backward pass computes the weights again from it. Norms
//! and rotations are applied while heads are copied out of the joined rows.

mod decode;
mod slots;

pub use decode::KeyValues;
pub use slots::Slots;

use crate::gemm::{Packed, Scratch, Store, View, multiply};
use crate::lent::Lent;
use crate::rows::filled;
use crate::simd::{add_scaled, dot, exp, prefetch};
use rayon::prelude::*;
use slots::{SlotPass, add_slots, slots_backward};
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

/// What [`forward`] returns.
#[derive(Debug)]
pub struct Output {
    /// `[tokens, heads * head_dim]`
    pub mixed: Vec<f32>,
    /// Logarithm of each softmax's sum, `[sequences, heads, time]`.
    pub log_sums: Vec<f32>,
}

/// Attends within each sequence of `joined`, `[tokens, (heads + 2 kv_heads) * head_dim]`.
pub fn forward(joined: &[f32], shape: &Shape, slots: &Slots) -> Output {
    let tokens = joined.len() / shape.joined();
    let (time, dim, width) = (shape.time, shape.head_dim, shape.query_width());
    let mut log_sums = vec![0.0; tokens * shape.heads];
    let mixed = filled(tokens * width, |mixed| {
        let mixed = Columns::new(mixed, width);
        let tasks = log_sums.par_chunks_mut(shape.group() * time).enumerate();
        tasks.with_max_len(1).for_each_init(Room::of_thread, |room, (task, log_sums)| {
            let (sequence, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
            let rows = &joined[sequence * time * shape.joined()..][..time * shape.joined()];
            room.keys.resize(time * dim, 0.0);
            take_head(&mut room.keys, rows, shape.key_at(kv_head), shape, shape.key_gain());
            room.pack_keys(dim);
            room.pack_values(&rows[shape.value_at(kv_head)..], shape);
            for (g, log_sums) in log_sums.chunks_exact_mut(time).enumerate() {
                let head = kv_head * shape.group() + g;
                room.queries.resize(time * dim, 0.0);
                take_head(&mut room.queries, rows, shape.query_at(head), shape, shape.query_gain());
                room.out.resize(time * dim, 0.0);
                attend(room, log_sums, shape, slots, (sequence * time, kv_head));
                for (t, row) in room.out.chunks_exact(dim).enumerate() {
                    // SAFETY: this task alone writes this head of this sequence.
                    let to = unsafe { mixed.row(sequence * time + t, head * dim, dim) };
                    to.copy_from_slice(row);
                }
            }
        });
    });
    Output { mixed, log_sums }
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

/// One query head against its packed keys and values, into `room.out`.
fn attend(
    room: &mut Room,
    log_sums: &mut [f32],
    shape: &Shape,
    slots: &Slots,
    (token, kv_head): (usize, usize),
) {
    let (time, dim) = (shape.time, shape.head_dim);
    let Room { queries, out, key_tiles, value_tiles, scores, scratch, .. } = room;
    scores.resize(QUERIES * KEYS, 0.0);
    for first in (0..time).step_by(QUERIES) {
        let rows = QUERIES.min(time - first);
        let queries = &queries[first * dim..(first + rows) * dim];
        let out = &mut out[first * dim..(first + rows) * dim];
        let mut softmax = [Running::START; QUERIES];
        for (tile, start) in (0..first + rows).step_by(KEYS).enumerate() {
            let keys = KEYS.min(first + rows - start);
            let store = Store { scale: shape.scale(), add: false };
            multiply(
                [rows, keys, dim],
                View::rows(queries, dim),
                &key_tiles[tile],
                scores,
                KEYS,
                store,
                scratch,
            );
            weigh(scores, out, &mut softmax[..rows], keys, first as isize - start as isize, dim);
            let store = Store { scale: 1.0, add: start > 0 };
            multiply(
                [rows, dim, keys],
                View::rows(scores, KEYS),
                &value_tiles[tile],
                out,
                dim,
                store,
                scratch,
            );
        }
        let seen = &mut softmax[..rows];
        add_slots(out, seen, queries, slots, token + first, kv_head, shape);
        for ((row, log_sum), softmax) in
            out.chunks_exact_mut(dim).zip(&mut log_sums[first..]).zip(&softmax)
        {
            let share = 1.0 / softmax.sum;
            row.iter_mut().for_each(|value| *value *= share);
            *log_sum = softmax.largest + softmax.sum.ln();
        }
    }
}

/// A softmax that is still being summed.
#[derive(Clone, Copy, Debug)]
struct Running {
    largest: f32,
    sum: f32,
}

impl Running {
    const START: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };
}

simd! {
    /// Turns a tile of scores into weights relative to each row's largest score so far, and rescales what
    /// was summed before. Row r sees the keys up to `r + offset`.
    fn weigh(
        scores: &mut [f32], out: &mut [f32], softmax: &mut [Running], keys: usize, offset: isize,
        dim: usize,
    ) {
        let rows = scores.chunks_exact_mut(KEYS).zip(out.chunks_exact_mut(dim)).zip(softmax);
        for (r, ((scores, out), softmax)) in rows.enumerate() {
            let seen = (r as isize + offset + 1).clamp(0, keys as isize) as usize;
            let (live, future) = scores[..keys].split_at_mut(seen);
            future.fill(0.0);
            let largest = max(live, softmax.largest);
            if largest > softmax.largest && softmax.sum > 0.0 {
                let shrink = exp(softmax.largest - largest);
                softmax.sum *= shrink;
                out.iter_mut().for_each(|value| *value *= shrink);
            }
            softmax.largest = largest;
            softmax.sum += exponentials(live, largest);
        }
    }
}

#[inline(always)]
fn max(values: &[f32], start: f32) -> f32 {
    let mut lanes = [start; 16];
    let chunks = values.chunks_exact(16);
    let mut largest = chunks.remainder().iter().fold(start, |a, b| if *b > a { *b } else { a });
    for chunk in chunks {
        for j in 0..16 {
            lanes[j] = if chunk[j] > lanes[j] { chunk[j] } else { lanes[j] };
        }
    }
    for lane in lanes {
        largest = if lane > largest { lane } else { largest };
    }
    largest
}

/// `x = exp(x - shift)`; returns the sum.
#[inline(always)]
fn exponentials(values: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0f32; 16];
    let mut chunks = values.chunks_exact_mut(16);
    for chunk in &mut chunks {
        for j in 0..16 {
            chunk[j] = exp(chunk[j] - shift);
            lanes[j] += chunk[j];
        }
    }
    let mut sum = crate::simd::total(lanes);
    for value in chunks.into_remainder() {
        *value = exp(*value - shift);
        sum += *value;
    }
    sum
}

simd! {
    /// Copies a head out of joined rows, normalised and rotated.
    fn take_head(
        out: &mut [f32], joined: &[f32], at: usize, shape: &Shape, gain: Option<(&[f32], f32)>,
    ) {
        let (dim, stride) = (shape.head_dim, shape.joined());
        for (t, out) in out.chunks_exact_mut(dim).enumerate() {
            let from = &joined[t * stride + at..t * stride + at + dim];
            // A head is a short piece of each row, too short for the hardware to look ahead.
            if let Some(ahead) = joined.get((t + 8) * stride + at..(t + 8) * stride + at + dim) {
                prefetch(ahead);
            }
            match gain {
                None => rotate(out, from, t, shape, 1.0),
                Some((gain, eps)) => {
                    let inverse = inverse_rms(from, eps);
                    for ((out, x), gain) in out.iter_mut().zip(from).zip(gain) {
                        *out = x * inverse * gain;
                    }
                    rotate_in_place(out, t, shape, 1.0);
                }
            }
        }
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// `direction` is 1 to rotate and -1 to rotate back.
#[inline(always)]
fn rotate(out: &mut [f32], x: &[f32], t: usize, shape: &Shape, direction: f32) {
    let half = shape.head_dim / 2;
    let (cos, sin) = (&shape.cos[t * half..][..half], &shape.sin[t * half..][..half]);
    // Lengths that the compiler can see are equal: without them the loop is not vectorised.
    let (a, b) = (&x[..half], &x[half..][..half]);
    let (out_a, out_b) = out.split_at_mut(half);
    let (out_a, out_b) = (&mut out_a[..half], &mut out_b[..half]);
    for j in 0..half {
        let sin = direction * sin[j];
        out_a[j] = a[j] * cos[j] - b[j] * sin;
        out_b[j] = b[j] * cos[j] + a[j] * sin;
    }
}

#[inline(always)]
fn rotate_in_place(x: &mut [f32], t: usize, shape: &Shape, direction: f32) {
    let half = shape.head_dim / 2;
    let (cos, sin) = (&shape.cos[t * half..][..half], &shape.sin[t * half..][..half]);
    let (a, b) = x.split_at_mut(half);
    let (a, b) = (&mut a[..half], &mut b[..half]);
    for j in 0..half {
        let sin = direction * sin[j];
        let (left, right) = (a[j], b[j]);
        a[j] = left * cos[j] - right * sin;
        b[j] = right * cos[j] + left * sin;
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

/// Gradients of [`forward`].
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
struct BackRoom {
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

/// `d_mixed` is the gradient of [`Output::mixed`]; `mixed` and `log_sums` are those of the output.
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

simd! {
    /// Undoes the rotation and the norm of one head's gradient. `d` is used up.
    fn return_head(
        out: &mut [f32], d: &mut [f32], x: &[f32], t: usize, shape: &Shape,
        gain: Option<(&[f32], f32)>, d_gain: &mut [f32],
    ) {
        let Some((gain, eps)) = gain else {
            return rotate(out, d, t, shape, -1.0);
        };
        rotate_in_place(d, t, shape, -1.0);
        let inverse = inverse_rms(x, eps);
        for (((d, x), gain), d_gain) in d.iter_mut().zip(x).zip(gain).zip(d_gain) {
            *d_gain += *d * x * inverse;
            *d *= gain;
        }
        let along = dot(d, x) * inverse * inverse * inverse / x.len() as f32;
        for ((out, d), x) in out.iter_mut().zip(d).zip(x) {
            *out = *d * inverse - x * along;
        }
    }
}

#[cfg(test)]
mod tests;
