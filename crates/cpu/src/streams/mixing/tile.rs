//! Junctions of a tile of tokens, in one pass over their streams.

use super::block::{
    COLUMNS, Chunk, Products, Shares, TARGETS, blocks, put, scatter, sort_shares, sums,
    weighted_sum,
};
use super::lanes::Lane;
use super::projection::{self, Known, project, project_backward};
use super::weights::{Shape, find, find_backward};
use crate::simd::add_scaled;
use crate::streams::norm::{Normed, inverse_rms, multiply_by_gain};
use crate::streams::tiles::TILE;

/// The parameters of one site, or their gradient's parts.
pub(super) struct Params<T> {
    pub(super) gain: T,
    pub(super) small: T,
    pub(super) projection: T,
}

impl<'a> Params<&'a [f32]> {
    /// Takes apart what a junction was given.
    pub(super) fn of(params: &'a [f32], shape: &Shape) -> Self {
        let (gain, rest) = params.split_at(shape.width);
        let (small, projection) = rest.split_at(shape.small());
        Self { gain, small, projection }
    }
}

impl<'a> Params<&'a mut [f32]> {
    /// Takes apart what a junction gives back.
    fn of_gradient(params: &'a mut [f32], shape: &Shape) -> Self {
        let (gain, rest) = params.split_at_mut(shape.width);
        let (small, projection) = rest.split_at_mut(shape.small());
        Self { gain, small, projection }
    }
}

/// Working memory of a tile, which it leaves behind for the next.
#[derive(Debug, Default)]
pub(super) struct Room {
    mixer: Mixer,
    products: Products,
    lanes: Vec<Lane>,
    /// What each source gives to the sum of the streams.
    shares: Vec<f32>,
}

/// Memory for mixing the streams of one token.
#[derive(Debug, Default)]
struct Mixer {
    /// The streams and one row more, chunk by chunk: they are read once, in order, and may then be
    /// overwritten.
    sources: Vec<Chunk>,
    shares: Vec<Shares>,
}

impl Mixer {
    fn make_room(&mut self, n: usize, width: usize) {
        self.sources.resize(width.div_ceil(COLUMNS) * (n + 1), [0.0; COLUMNS]);
        self.shares.resize(blocks(n) * (n + 1), [0.0; TARGETS]);
    }

    /// Takes some of the n + 1 rows, from the one with index `first`.
    #[inline(always)]
    fn load(&mut self, rows: &[f32], width: usize, first: usize) {
        let count = self.sources.len() / width.div_ceil(COLUMNS);
        for (j, row) in rows.chunks_exact(width).enumerate() {
            scatter(&mut self.sources[first + j..], count, row);
        }
    }

    /// `out_i = sum_j E_ij row_j` of the n + 1 rows loaded, where `strides` are those of E's rows and
    /// columns.
    #[inline(always)]
    fn mix(&mut self, out: &mut [f32], width: usize, weights: &[f32], strides: [usize; 2]) {
        let n = out.len() / width;
        sort_shares(&mut self.shares, weights, strides, [n, n + 1]);
        for (chunk, sources) in self.sources.chunks_exact(n + 1).enumerate() {
            let targets = out.chunks_mut(TARGETS * width);
            for (out, shares) in targets.zip(self.shares.chunks_exact(n + 1)) {
                put::<false>(out, width, chunk * COLUMNS, &sums(sources, shares));
            }
        }
    }
}

/// One tile at a junction that leads to a sub-layer.
pub(super) struct Forward<'a> {
    /// Becomes the streams after the write.
    pub(super) streams: &'a mut [f32],
    /// The streams before the write, unless they are in `streams`.
    pub(super) before: Option<&'a [f32]>,
    /// What mixes them with the write; none at the first junction, where all are the write.
    pub(super) mixing: &'a [f32],
    pub(super) write: &'a [f32],
    pub(super) logits: &'a mut [f32],
    pub(super) inverse_rms: &'a mut [f32],
    /// Becomes the weights of the sub-layer's site.
    pub(super) weights: &'a mut [f32],
    pub(super) answer: &'a mut [f32],
}

simd! {
    /// Writes, finds the weights of the next site, and reads.
    pub(super) fn forward(
        tile: Forward, shape: &Shape, params: &Params<&[f32]>, eps: f32, room: &mut Room,
    ) {
        let (n, width) = (shape.n, shape.width);
        if tile.mixing.is_empty() {
            let copies = tile.streams.chunks_exact_mut(shape.state());
            for (streams, write) in copies.zip(tile.write.chunks_exact(width)) {
                for stream in streams.chunks_exact_mut(width) {
                    stream.copy_from_slice(write);
                }
            }
        } else {
            let mixer = &mut room.mixer;
            mixer.make_room(n, width);
            let streams = tile.streams.chunks_exact_mut(shape.state());
            let weights = tile.mixing.chunks_exact(shape.weights());
            let writes = tile.write.chunks_exact(width);
            for (t, ((streams, weights), write)) in streams.zip(weights).zip(writes).enumerate() {
                match tile.before {
                    Some(all) => mixer.load(rows_of(all, t * shape.state(), shape.state()), width, 0),
                    None => mixer.load(streams, width, 0),
                }
                mixer.load(write, width, n);
                mixer.mix(streams, width, weights, [n + 1, 1]);
            }
        }
        if shape.rows() > 0 {
            let (logits, inverse_rms) = (&mut *tile.logits, &mut *tile.inverse_rms);
            let (weight, products) = (params.projection, &mut room.products);
            project(logits, inverse_rms, tile.streams, weight, shape.inputs(), eps, products);
        }
        find(shape, tile.weights, tile.logits, params.small, &mut room.lanes);
        let reads = tile.answer.chunks_exact_mut(width).zip(tile.streams.chunks_exact(shape.state()));
        for ((answer, streams), weights) in reads.zip(tile.weights.chunks_exact(shape.weights())) {
            weighted_sum(answer, streams, &weights[n * (n + 1)..], 1);
            normalise(answer, params.gain, eps);
        }
    }
}

/// `x / sqrt(mean(x^2) + eps) * gain`, in place.
#[inline(always)]
fn normalise(x: &mut [f32], gain: &[f32], eps: f32) {
    let r = inverse_rms(x, eps);
    multiply_by_gain(x, r, gain);
}

/// The way back from [`normalise`]: `d` becomes the gradient of `x`, and `d_gain` is added to.
#[inline(always)]
fn normalise_backward(d: &mut [f32], d_gain: &mut [f32], x: &[f32], gain: &[f32], eps: f32) {
    let normed = Normed { x, inverse_rms: inverse_rms(x, eps), scale: 1.0, gain };
    normed.take_gradient(d, d_gain);
}

/// Some tokens on the way back through a junction that leads to a sub-layer.
pub(super) struct Backward<'a> {
    /// Of the streams after the sub-layer's write; becomes that of the streams before it.
    pub(super) gradient: &'a mut [f32],
    /// The streams before it.
    pub(super) streams: &'a [f32],
    /// What the sub-layer wrote.
    pub(super) written: &'a [f32],
    pub(super) logits: &'a [f32],
    pub(super) inverse_rms: &'a [f32],
    pub(super) weights: &'a [f32],
    /// The weights that the junction's own write was mixed with; none at the first junction.
    pub(super) mixing: &'a [f32],
    pub(super) d_answer: &'a [f32],
    pub(super) d_write: &'a mut [f32],
    /// Partial sums.
    pub(super) d_params: &'a mut [f32],
}

simd! {
    /// Goes back, tile by tile.
    pub(super) fn backward(part: Backward, shape: &Shape, params: &Params<&[f32]>, eps: f32) {
        let (n, width, state) = (shape.n, shape.width, shape.state());
        let (edge, count) = (shape.weights(), TILE * shape.logits());
        let d_params = Params::of_gradient(part.d_params, shape);
        let mut scratch = projection::Scratch::default();
        let Room { mut mixer, mut products, .. } = Room::default();
        mixer.make_room(n, width);
        let (mut read, mut d_read) = (vec![0f32; width], vec![0f32; width]);
        let mut all_d_weights = vec![0f32; TILE * edge];
        let mut all_d_logits = vec![0f32; count];
        let tiles = part.gradient.chunks_mut(TILE * state).zip(part.d_write.chunks_mut(TILE * width));
        for (tile, (gradient, d_write)) in tiles.enumerate() {
            let tokens = d_write.len() / width;
            let of = |values, each: usize| rows_of(values, tile * TILE * each, tokens * each);
            let streams = of(part.streams, state);
            let weights = of(part.weights, edge);
            let d_weights = &mut all_d_weights[..tokens * edge];
            for t in 0..tokens {
                let gradient = &mut gradient[t * state..(t + 1) * state];
                let streams = rows_of(streams, t * state, state);
                let weights = rows_of(weights, t * edge, edge);
                let at = (tile * TILE + t) * width;
                mixer.load(gradient, width, 0);
                weighted_sum(&mut read, streams, &weights[n * (n + 1)..], 1);
                d_read.copy_from_slice(rows_of(part.d_answer, at, width));
                normalise_backward(&mut d_read, d_params.gain, &read, params.gain, eps);
                let d_weights = &mut d_weights[t * edge..(t + 1) * edge];
                let written = rows_of(part.written, at, width);
                products.find(d_weights, n + 1, gradient, streams, width);
                products.find(&mut d_weights[n..], n + 1, gradient, written, width);
                products.find(&mut d_weights[n * (n + 1)..], 1, streams, &d_read, width);
                mixer.load(&d_read, width, n);
                mixer.mix(gradient, width, weights, [1, n + 1]);
            }
            let logits = of(part.logits, shape.logits());
            let d_logits = &mut all_d_logits[..tokens * shape.logits()];
            find_backward(shape, d_logits, d_params.small, d_weights, logits, params.small);
            if shape.rows() > 0 {
                let known = Known {
                    rows: streams,
                    weight: params.projection,
                    logits,
                    inverse_rms: of(part.inverse_rms, shape.rows()),
                };
                project_backward(
                    gradient, d_params.projection, d_logits, &known, shape.inputs(), &mut scratch,
                );
            }
            gradient_of_write(d_write, gradient, of(part.mixing, edge), shape);
        }
    }
}

/// `count` values from `first`; none of none.
#[inline(always)]
fn rows_of(values: &[f32], first: usize, count: usize) -> &[f32] {
    if values.is_empty() { values } else { &values[first..first + count] }
}

/// `d_write = sum_i post_i gradient_i`; without weights, every stream is a copy of the write.
#[inline(always)]
fn gradient_of_write(d_write: &mut [f32], gradient: &[f32], mixing: &[f32], shape: &Shape) {
    let n = shape.n;
    let tokens = d_write.chunks_exact_mut(shape.width).zip(gradient.chunks_exact(shape.state()));
    for (t, (d_write, gradient)) in tokens.enumerate() {
        if mixing.is_empty() {
            weighted_sum(d_write, gradient, &[1.0], 0);
        } else {
            weighted_sum(d_write, gradient, &mixing[t * shape.weights() + n..], n + 1);
        }
    }
}

/// What each source gives to the sum of the streams after a write: the n streams before it, then the
/// write.
#[inline(always)]
fn shares_in_sum(shares: &mut [f32], weights: &[f32], n: usize) {
    shares.fill(0.0);
    for row in weights.chunks_exact(n + 1).take(n) {
        add_scaled(shares, 1.0, row);
    }
}

/// One tile at the last junction.
pub(super) struct Close<'a> {
    /// The streams before the write; none if there is no sub-layer.
    pub(super) streams: &'a [f32],
    pub(super) mixing: &'a [f32],
    pub(super) write: &'a [f32],
    /// Becomes the sum of the streams.
    pub(super) out: &'a mut [f32],
    pub(super) answer: &'a mut [f32],
}

simd! {
    /// Writes and sums the streams, without ever forming those after the write.
    pub(super) fn close(tile: Close, shape: &Shape, gain: &[f32], eps: f32, room: &mut Room) {
        let (n, width, state) = (shape.n, shape.width, shape.state());
        let shares = &mut room.shares;
        shares.resize(n + 1, 0.0);
        shares[n] = n as f32;
        let rows = tile.out.chunks_exact_mut(width).zip(tile.answer.chunks_exact_mut(width));
        for (t, ((out, answer), write)) in rows.zip(tile.write.chunks_exact(width)).enumerate() {
            if tile.mixing.is_empty() {
                out.fill(0.0);
            } else {
                let weights = &tile.mixing[t * shape.weights()..(t + 1) * shape.weights()];
                shares_in_sum(shares, weights, n);
                weighted_sum(out, &tile.streams[t * state..(t + 1) * state], shares, 1);
            }
            add_scaled(out, shares[n], write);
            answer.copy_from_slice(out);
            normalise(answer, gain, eps);
        }
    }
}

/// Some tokens on the way back through the last junction.
pub(super) struct CloseBackward<'a> {
    /// Becomes that of the streams after the last write.
    pub(super) gradient: &'a mut [f32],
    pub(super) out: &'a [f32],
    pub(super) mixing: &'a [f32],
    pub(super) d_answer: &'a [f32],
    pub(super) d_write: &'a mut [f32],
    /// Partial sums.
    pub(super) d_gain: &'a mut [f32],
}

simd! {
    /// Goes back through the sum of the streams.
    pub(super) fn close_backward(part: CloseBackward, shape: &Shape, gain: &[f32], eps: f32) {
        let (n, width, state) = (shape.n, shape.width, shape.state());
        let mut shares = vec![0f32; n + 1];
        shares[n] = n as f32;
        let mut d_out = vec![0f32; width];
        let rows = part.gradient.chunks_exact_mut(state).zip(part.d_write.chunks_exact_mut(width));
        let known = part.out.chunks_exact(width).zip(part.d_answer.chunks_exact(width));
        for (t, ((gradient, d_write), (out, d_answer))) in rows.zip(known).enumerate() {
            d_out.copy_from_slice(d_answer);
            normalise_backward(&mut d_out, part.d_gain, out, gain, eps);
            for gradient in gradient.chunks_exact_mut(width) {
                gradient.copy_from_slice(&d_out);
            }
            if !part.mixing.is_empty() {
                let weights = &part.mixing[t * shape.weights()..(t + 1) * shape.weights()];
                shares_in_sum(&mut shares, weights, n);
            }
            for (d_write, d_out) in d_write.iter_mut().zip(&d_out) {
                *d_write = shares[n] * d_out;
            }
        }
    }
}
