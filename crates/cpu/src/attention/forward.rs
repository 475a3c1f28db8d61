//! From joined projections to mixed values.

use super::heads::take_head;
use super::slots::add_slots;
use super::{Columns, KEYS, QUERIES, Room, Shape, Slots};
use crate::gemm::{Store, View, multiply};
use crate::rows::filled;
use crate::simd::exp;
use rayon::prelude::*;

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
pub(super) struct Running {
    pub(super) largest: f32,
    pub(super) sum: f32,
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
pub(super) fn max(values: &[f32], start: f32) -> f32 {
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
