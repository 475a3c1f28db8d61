//! From the gradient of the mixed values to that of the projections.

use super::heads::{AHEAD, return_heads};
use super::live::{CHUNK, Live};
use super::plan::{Part, Plan};
use super::slots::{SlotPass, slots_backward};
use super::table::{Inputs, Table};
use super::{KEYS, QUERIES, Room, STRIDE, Shape, Slots, value_tiles};
use crate::buffer::unwritten;
use crate::gemm::{Packed, Store, View, multiply};
use crate::parallel;
use crate::precision::Precision;
use crate::rows::Columns;
use crate::simd::{add_scaled, dot, exp_by, prefetch};
use crate::work;

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
    precision: Precision,
) -> Gradient {
    let plan = Plan::dense(shape.tokens(joined), shape);
    let inputs = Inputs::joined(joined, shape, precision);
    let kept = Kept::new(d_mixed, mixed, log_sums, shape);
    let mut rest = Rest::new(shape, slots);
    // SAFETY: every head of every token is of one task, which writes it.
    let mut d_joined = unsafe { unwritten(joined.len()) };
    let queries = Columns::new(&mut d_joined, shape.joined());
    let key_values = queries.after(shape.query_width());
    unmix(&kept, &inputs, &Gradients { queries, key_values }, &mut rest, &plan, shape, slots);
    let Rest { query_gain, key_gain, slot_keys, slot_values } = rest;
    Gradient { joined: d_joined, query_gain, key_gain, slot_keys, slot_values }
}

/// What the forward pass left, and the gradient that comes back.
pub(super) struct Kept<'a> {
    d_mixed: Table<'a>,
    mixed: Table<'a>,
    log_sums: &'a [f32],
}

impl<'a> Kept<'a> {
    pub(super) fn new(
        d_mixed: &'a [f32],
        mixed: &'a [f32],
        log_sums: &'a [f32],
        shape: &Shape,
    ) -> Self {
        let width = shape.query_width();
        Self { d_mixed: Table::new(d_mixed, width), mixed: Table::new(mixed, width), log_sums }
    }

    /// Of the query heads that a key head serves, one after another.
    fn log_sums(&self, part: &Part, kv_head: usize, shape: &Shape) -> &'a [f32] {
        let count = shape.group() * part.queries.len();
        &self.log_sums[part.queries.first * shape.heads + kv_head * count..][..count]
    }
}

/// Where the gradients of the projections go.
pub(super) struct Gradients<'a> {
    pub(super) queries: Columns<'a>,
    pub(super) key_values: Columns<'a>,
}

/// All other gradients.
pub(super) struct Rest {
    pub(super) query_gain: Vec<f32>,
    pub(super) key_gain: Vec<f32>,
    pub(super) slot_keys: Vec<f32>,
    pub(super) slot_values: Vec<f32>,
}

impl Rest {
    /// Zeros, to which [`unmix`] adds.
    pub(super) fn new(shape: &Shape, slots: &Slots) -> Self {
        let HeadGains { query, key } = HeadGains::new(shape);
        let (slot_keys, slot_values) = (vec![0.0; slots.keys.len()], vec![0.0; slots.values.len()]);
        Self { query_gain: query, key_gain: key, slot_keys, slot_values }
    }
}

/// The way back through [`mix`](super::forward::mix). Writes the gradients of all planned rows.
pub(super) fn unmix(
    kept: &Kept,
    inputs: &Inputs,
    to: &Gradients,
    rest: &mut Rest,
    plan: &Plan,
    shape: &Shape,
    slots: &Slots,
) {
    let dim = shape.head_dim;
    work::add(2 * plan.operations(shape, slots));
    let slot_width = shape.kv_heads * dim;
    let d_slot_keys = Columns::new(&mut rest.slot_keys, slot_width);
    let d_slot_values = Columns::new(&mut rest.slot_values, slot_width);
    let tasks: Vec<_> = plan.tasks(shape.kv_heads).collect();
    let gains = parallel::map_init(tasks.into_iter(), Room::of_thread, |room, (part, kv_head)| {
        let room: &mut Room = room;
        let mut gains = HeadGains::new(shape);
        room.take_keys(inputs, &part, kv_head, shape);
        room.prepare_backward(inputs, &part, kv_head, shape);
        let log_sums = kept.log_sums(&part, kv_head, shape);
        for (g, log_sums) in log_sums.chunks_exact(part.queries.len()).enumerate() {
            let head = kv_head * shape.group() + g;
            room.take_queries(inputs, &part, head, shape);
            room.take_output(kept, &part, head, shape);
            attend_backward(room, log_sums, &part, shape, inputs.precision);
            let back = &mut room.back;
            let pass = SlotPass {
                queries: &room.queries,
                d_out: &back.d_out,
                sums: &room.out,
                log_sums,
                part: &part,
                kv_head,
            };
            let (d_keys, d_values) = (&d_slot_keys, &d_slot_values);
            slots_backward(&mut back.d_queries, d_keys, d_values, &pass, slots, shape);
            let (at, gain) = (shape.head_at(head), shape.query_gain());
            let (from, places) = (&inputs.queries, &part.queries);
            let d = &mut back.d_queries;
            return_heads(&to.queries, at, places, d, from, shape, gain, &mut gains.query);
        }
        let (at, gain) = (shape.head_at(kv_head), shape.key_gain());
        let (from, places) = (&inputs.key_values, &part.keys);
        let d = &mut room.back.d_keys;
        return_heads(&to.key_values, at, places, d, from, shape, gain, &mut gains.key);
        let d_values = room.back.d_values.chunks_exact(dim);
        for (row, d_value) in (part.keys.first..).zip(d_values) {
            // SAFETY: this task alone writes these heads of this sequence.
            let to = unsafe { to.key_values.row(row, shape.value_at(kv_head), dim) };
            to.copy_from_slice(d_value);
        }
        gains
    });
    for part in gains {
        add_scaled(&mut rest.query_gain, 1.0, &part.query);
        add_scaled(&mut rest.key_gain, 1.0, &part.key);
    }
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
    /// After [`Room::take_keys`].
    fn prepare_backward(&mut self, inputs: &Inputs, part: &Part, kv_head: usize, shape: &Shape) {
        let (dim, precision) = (shape.head_dim, inputs.precision);
        let back = &mut self.back;
        back.d_keys.clear();
        back.d_keys.resize(self.keys.len(), 0.0);
        back.d_values.clear();
        back.d_values.resize(self.keys.len(), 0.0);
        let (tiles, stride) = (value_tiles(inputs, part, kv_head, shape), inputs.key_values.width);
        back.key_rows.resize_with(tiles.len(), Packed::default);
        back.value_tiles.resize_with(tiles.len(), Packed::default);
        for (tile, (values, keys)) in tiles.enumerate() {
            let rows = &self.keys[tile * KEYS * dim..];
            back.key_rows[tile].refill(View::rows(rows, dim), keys, dim, precision);
            back.value_tiles[tile].refill(View::transposed(values, stride), dim, keys, precision);
        }
    }

    /// The head's gradient, and the sums `d . out` of each row.
    fn take_output(&mut self, kept: &Kept, part: &Part, head: usize, shape: &Shape) {
        let (dim, width) = (shape.head_dim, shape.query_width());
        self.back.d_out.resize(part.queries.len() * dim, 0.0);
        self.out.resize(part.queries.len(), 0.0);
        let (row, at) = (part.queries.first, shape.head_at(head));
        let (d_mixed, mixed) = (kept.d_mixed.from(row, at), kept.mixed.from(row, at));
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
            // As in `take_head`.
            for rows in [d_mixed, mixed] {
                if let Some(ahead) = rows.get((t + AHEAD) * width..(t + AHEAD) * width + dim) {
                    prefetch(ahead);
                }
            }
            d.copy_from_slice(&d_mixed[row.clone()]);
            *sum = dot(d, &mixed[row]);
        }
    }
}

/// One query head: fills `d_queries` and adds to `d_keys` and `d_values`.
fn attend_backward(
    room: &mut Room,
    log_sums: &[f32],
    part: &Part,
    shape: &Shape,
    precision: Precision,
) {
    let dim = shape.head_dim;
    let Room { queries, out: sums, key_tiles, scores, scratch, back, .. } = room;
    scores.resize(QUERIES * STRIDE, 0.0);
    back.d_scores.resize(QUERIES * STRIDE, 0.0);
    back.d_queries.resize(queries.len(), 0.0);
    for (block, seen) in part.blocks() {
        let (rows, elements) = (block.len(), block.start * dim..block.end * dim);
        let (queries, d_out) = (&queries[elements.clone()], &back.d_out[elements.clone()]);
        let d_queries = &mut back.d_queries[elements];
        back.packed_queries.refill(View::rows(queries, dim), rows, dim, precision);
        back.packed_d_out.refill(View::rows(d_out, dim), rows, dim, precision);
        let hidden = seen.start / KEYS;
        for (tile, start) in (0..seen.end).step_by(KEYS).enumerate().skip(hidden) {
            let keys = KEYS.min(seen.end - start);
            let (store, d_scores) =
                (Store { scale: shape.scale(), add: false }, &mut back.d_scores);
            multiply(
                [rows, keys, dim],
                View::rows(queries, dim),
                &key_tiles[tile],
                scores,
                STRIDE,
                store,
                scratch,
            );
            let values = &back.value_tiles[tile];
            multiply(
                [rows, keys, dim],
                View::rows(d_out, dim),
                values,
                d_scores,
                STRIDE,
                Store::SET,
                scratch,
            );
            let of_rows = BlockRows {
                log_sums: &log_sums[block.clone()],
                sums: &sums[block.clone()],
                sights: [&part.first[block.clone()], &part.seen[block.clone()]],
            };
            weigh_backward(scores, d_scores, &of_rows, start, keys, shape.scale());
            let store = Store { scale: 1.0, add: tile > hidden };
            multiply(
                [rows, dim, keys],
                View::rows(d_scores, STRIDE),
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
                View::transposed(d_scores, STRIDE),
                &back.packed_queries,
                d_keys,
                dim,
                Store::ADD,
                scratch,
            );
            let d_values = &mut back.d_values[tile];
            multiply(
                sizes,
                View::transposed(scores, STRIDE),
                &back.packed_d_out,
                d_values,
                dim,
                Store::ADD,
                scratch,
            );
        }
    }
}

/// Numbers of each query of a block.
struct BlockRows<'a> {
    log_sums: &'a [f32],
    /// `d_out . out`
    sums: &'a [f32],
    /// The first key that it sees, and the first behind those.
    sights: [&'a [u32]; 2],
}

simd! {
    /// Scores become weights, gradients of weights become gradients of scores; the tile holds `keys` keys
    /// from `start` on.
    fn weigh_backward(
        scores: &mut [f32], d_scores: &mut [f32], of_rows: &BlockRows, start: usize, keys: usize,
        scale: f32,
    ) {
        let rows = scores.chunks_exact_mut(STRIDE).zip(d_scores.chunks_exact_mut(STRIDE));
        let sums = of_rows.log_sums.iter().zip(of_rows.sums);
        let sights = of_rows.sights[0].iter().zip(of_rows.sights[1]);
        for ((scores, d_scores), ((log_sum, sum), (first, seen))) in rows.zip(sums.zip(sights)) {
            let live = Live::of(*first, *seen, start, keys);
            let (weights, gradients) = (live.chunks(scores), live.gradient_chunks(d_scores));
            let (Some(weights), Some(gradients)) = (weights, gradients) else { continue };
            let (log_sum, sum) = (*log_sum, *sum);
            for (weights, gradients) in weights.iter_mut().zip(gradients) {
                for j in 0..CHUNK {
                    weights[j] = exp_by::<FUSED>(weights[j] - log_sum);
                    gradients[j] = weights[j] * (gradients[j] - sum) * scale;
                }
            }
        }
    }
}
