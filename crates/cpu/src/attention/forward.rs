//! From projections to mixed values.

use super::live::{CHUNK, Live};
use super::plan::{Part, Plan};
use super::slots::add_slots;
use super::table::Inputs;
use super::{KEYS, QUERIES, Room, STRIDE, Shape, Slots, value_tiles};
use crate::buffer::unwritten;
use crate::gemm::{Packed, Store, View, multiply};
use crate::parallel;
use crate::precision::Precision;
use crate::rows::Columns;
use crate::simd::{exp, exp_by};
use crate::work;

/// What [`forward`] returns.
#[derive(Debug)]
pub struct Output {
    /// `[queries, heads * head_dim]`; without a route, every token asks.
    pub mixed: Vec<f32>,
    /// Logarithm of each softmax's sum: sequence by sequence, `[heads, queries of the sequence]`.
    pub log_sums: Vec<f32>,
}

/// Attends within each sequence of `joined`, `[tokens, (heads + 2 kv_heads) * head_dim]`.
pub fn forward(joined: &[f32], shape: &Shape, slots: &Slots, precision: Precision) -> Output {
    let plan = Plan::dense(shape.tokens(joined), shape);
    mix(&Inputs::joined(joined, shape, precision), &plan, shape, slots)
}

/// Attends as planned.
pub(super) fn mix(inputs: &Inputs, plan: &Plan, shape: &Shape, slots: &Slots) -> Output {
    let (dim, width, group) = (shape.head_dim, shape.query_width(), shape.group());
    work::add(plan.operations(shape, slots));
    let mut log_sums = vec![0.0; plan.queries() * shape.heads];
    let mut rest = log_sums.as_mut_slice();
    let tasks = plan.tasks(shape.kv_heads).map(|(part, kv_head)| {
        let (mine, others) = std::mem::take(&mut rest).split_at_mut(group * part.queries.len());
        rest = others;
        (part, kv_head, mine)
    });
    let tasks: Vec<_> = tasks.collect();
    // SAFETY: every head of every query is of one task, which writes it.
    let mut mixed = unsafe { unwritten(plan.queries() * width) };
    let columns = Columns::new(&mut mixed, width);
    parallel::for_each_init(
        tasks.into_iter(),
        Room::of_thread,
        |room, (part, kv_head, log_sums)| {
            room.take_keys(inputs, &part, kv_head, shape);
            room.pack_values(inputs, &part, kv_head, shape);
            for (g, log_sums) in log_sums.chunks_exact_mut(part.queries.len()).enumerate() {
                let head = kv_head * group + g;
                room.take_queries(inputs, &part, head, shape);
                attend(room, log_sums, &part, kv_head, shape, slots);
                for ((row, _), out) in part.queries.rows().zip(room.out.chunks_exact(dim)) {
                    // SAFETY: this task alone writes this head of this sequence.
                    let to = unsafe { columns.row(row, shape.head_at(head), dim) };
                    to.copy_from_slice(out);
                }
            }
        },
    );
    Output { mixed, log_sums }
}

impl Room {
    fn pack_values(&mut self, inputs: &Inputs, part: &Part, kv_head: usize, shape: &Shape) {
        let (tiles, stride) = (value_tiles(inputs, part, kv_head, shape), inputs.key_values.width);
        self.value_tiles.resize_with(tiles.len(), Packed::default);
        for (packed, (values, keys)) in self.value_tiles.iter_mut().zip(tiles) {
            packed.refill(View::rows(values, stride), keys, shape.head_dim, inputs.precision);
        }
    }
}

/// One query head against its packed keys and values, into `room.out`.
fn attend(
    room: &mut Room,
    log_sums: &mut [f32],
    part: &Part,
    kv_head: usize,
    shape: &Shape,
    slots: &Slots,
) {
    let dim = shape.head_dim;
    let Room { queries, out, key_tiles, value_tiles, scores, scratch, .. } = room;
    scores.resize(QUERIES * STRIDE, 0.0);
    out.resize(queries.len(), 0.0);
    for (block, seen) in part.blocks() {
        let (rows, elements) = (block.len(), block.start * dim..block.end * dim);
        let (queries, out) = (&queries[elements.clone()], &mut out[elements]);
        let mut softmax = [Softmax::START; QUERIES];
        let softmax = &mut softmax[..rows];
        let hidden = seen.start / KEYS;
        for (tile, start) in (0..seen.end).step_by(KEYS).enumerate().skip(hidden) {
            let keys = KEYS.min(seen.end - start);
            let store = Store { scale: shape.scale(), add: false };
            multiply(
                [rows, keys, dim],
                View::rows(queries, dim),
                &key_tiles[tile],
                scores,
                STRIDE,
                store,
                scratch,
            );
            let sights = [&part.first[block.clone()], &part.seen[block.clone()]];
            weigh(scores, out, softmax, sights, start, keys, dim);
            let store = Store { scale: 1.0, add: tile > hidden };
            multiply(
                [rows, dim, keys],
                View::rows(scores, STRIDE),
                &value_tiles[tile],
                out,
                dim,
                store,
                scratch,
            );
        }
        let positions = &part.queries.positions[block.clone()];
        add_slots(out, softmax, queries, slots, part.token, positions, kv_head, shape);
        let rows = out.chunks_exact_mut(dim).zip(&mut log_sums[block]);
        for ((row, log_sum), softmax) in rows.zip(softmax) {
            let share = 1.0 / softmax.sum;
            row.iter_mut().for_each(|value| *value *= share);
            *log_sum = softmax.largest + softmax.sum.ln();
        }
    }
}

/// A softmax that is still being summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Softmax {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

impl Softmax {
    const START: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };
}

simd! {
    /// Turns a tile of scores into weights relative to each row's largest score so far, and rescales what
    /// was summed before. Of the keys of the sequence, each row sees those between its two `sights`; the
    /// tile holds `keys` of them from `start` on.
    fn weigh(
        scores: &mut [f32], out: &mut [f32], softmax: &mut [Softmax], sights: [&[u32]; 2],
        start: usize, keys: usize, dim: usize,
    ) {
        let rows = scores.chunks_exact_mut(STRIDE).zip(out.chunks_exact_mut(dim)).zip(softmax);
        for (((scores, out), softmax), (first, seen)) in rows.zip(sights[0].iter().zip(sights[1])) {
            let Some(live) = Live::of(*first, *seen, start, keys).chunks(scores) else { continue };
            let largest = largest(live, softmax.largest);
            if largest > softmax.largest && softmax.sum > 0.0 {
                let shrink = exp(softmax.largest - largest);
                softmax.sum *= shrink;
                out.iter_mut().for_each(|value| *value *= shrink);
            }
            softmax.largest = largest;
            softmax.sum += exponentials::<FUSED>(live, largest);
        }
    }
}

/// The largest of all elements and `start`.
#[inline(always)]
pub(super) fn largest(chunks: &[[f32; CHUNK]], start: f32) -> f32 {
    let mut lanes = [start; CHUNK];
    for chunk in chunks {
        for j in 0..CHUNK {
            lanes[j] = if chunk[j] > lanes[j] { chunk[j] } else { lanes[j] };
        }
    }
    // By halves: one after another, each comparison would wait for the one before.
    let mut count = CHUNK;
    while count > 1 {
        count /= 2;
        for j in 0..count {
            lanes[j] = if lanes[j + count] > lanes[j] { lanes[j + count] } else { lanes[j] };
        }
    }
    lanes[0]
}

/// `x = exp(x - shift)`; returns the sum.
#[inline(always)]
fn exponentials<const FUSED: bool>(chunks: &mut [[f32; CHUNK]], shift: f32) -> f32 {
    let mut lanes = [0f32; CHUNK];
    for chunk in chunks {
        for j in 0..CHUNK {
            chunk[j] = exp_by::<FUSED>(chunk[j] - shift);
            lanes[j] += chunk[j];
        }
    }
    crate::simd::total(lanes)
}
