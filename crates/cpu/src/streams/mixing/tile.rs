//! Junctions of a tile of tokens, in one pass over their streams.

use super::Mixed;
use super::block::{
    COLUMNS, Chunk, Products, Shares, TARGETS, blocks, put, scatter, sort_shares, sums,
    weighted_sum,
};
use super::lanes::Lane;
use super::projection::{self, Known, project, project_backward};
use super::weights::{Shape, find, find_backward};
use crate::row::{Normed, inverse_rms, normalise};
use crate::simd::add_scaled;
use crate::streams::driver::{Backward, Forward};
use crate::streams::tiles::split_mut;

/// The parameters of one site, or their gradient's parts.
#[derive(Debug)]
pub struct Params<T> {
    pub(super) gain: T,
    pub(super) small: T,
    pub(super) projection: T,
}

/// Working memory of a tile, which it leaves behind for the next.
#[derive(Debug, Default)]
pub struct Room {
    mixer: Mixer,
    products: Products,
    lanes: Vec<Lane>,
    /// What each source gives to the sum of the streams.
    shares: Vec<f32>,
    /// A row that was read, and its gradient.
    read: Vec<f32>,
    d_read: Vec<f32>,
    d_weights: Vec<f32>,
    d_logits: Vec<f32>,
    scratch: projection::Scratch,
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

impl Mixed {
    /// Writes, finds the weights of the next site, and reads.
    #[inline(always)]
    pub(super) fn read(&self, params: &Params<&[f32]>, tile: Forward<'_, ()>, room: &mut Room) {
        let (shape, eps, n, width) = (&self.shape, self.eps, self.shape.n, self.shape.width);
        let [all_streams, logits, inverse_rms, all_weights] = tile.record;
        let [before, _, _, mixing] = tile.before.record;
        let streams = all_streams.chunks_exact_mut(shape.state());
        if tile.junction == 0 {
            for (streams, write) in streams.zip(tile.write.chunks_exact(width)) {
                for stream in streams.chunks_exact_mut(width) {
                    stream.copy_from_slice(write);
                }
            }
        } else {
            let mixer = &mut room.mixer;
            mixer.make_room(n, width);
            // Without a way back, the streams before the write are where those after it go.
            let mut before = before.chunks_exact(shape.state());
            let weights = mixing.chunks_exact(shape.weights());
            let writes = tile.write.chunks_exact(width);
            for ((streams, weights), write) in streams.zip(weights).zip(writes) {
                mixer.load(before.next().unwrap_or(streams), width, 0);
                mixer.load(write, width, n);
                mixer.mix(streams, width, weights, [n + 1, 1]);
            }
        }
        if shape.rows() > 0 {
            let (weight, products) = (params.projection, &mut room.products);
            project(logits, inverse_rms, all_streams, weight, shape.inputs(), eps, products);
        }
        find(shape, all_weights, logits, params.small, &mut room.lanes);
        let reads =
            tile.output.chunks_exact_mut(width).zip(all_streams.chunks_exact(shape.state()));
        for ((output, streams), weights) in reads.zip(all_weights.chunks_exact(shape.weights())) {
            weighted_sum(output, streams, &weights[n * (n + 1)..], 1);
            normalise(output, params.gain, eps);
        }
    }

    /// The way back from [`Mixed::read`].
    #[inline(always)]
    pub(super) fn read_backward(
        &self,
        params: &Params<&[f32]>,
        tile: Backward<'_, ()>,
        room: &mut Room,
    ) {
        let (shape, n, width) = (&self.shape, self.shape.n, self.shape.width);
        let (state, edge) = (shape.state(), shape.weights());
        let [gain, small, projection] = split_mut(tile.d_params, self.lengths(tile.junction));
        let Room { mixer, products, read, d_read, d_weights, d_logits, scratch, .. } = room;
        mixer.make_room(n, width);
        read.resize(width, 0.0);
        d_read.resize(width, 0.0);
        d_weights.resize(tile.tokens * edge, 0.0);
        d_logits.resize(tile.tokens * shape.logits(), 0.0);
        let [gradients, ..] = tile.gradient;
        let [all_streams, logits, inverse_rms, weights] = tile.record.map(|part| &*part);
        for t in 0..tile.tokens {
            let gradient = &mut gradients[t * state..(t + 1) * state];
            let streams = &all_streams[t * state..(t + 1) * state];
            let weights = &weights[t * edge..(t + 1) * edge];
            let row = t * width..(t + 1) * width;
            mixer.load(gradient, width, 0);
            weighted_sum(read, streams, &weights[n * (n + 1)..], 1);
            d_read.copy_from_slice(&tile.d_output[row.clone()]);
            normalise_backward(d_read, gain, read, params.gain, self.eps);
            let d_weights = &mut d_weights[t * edge..(t + 1) * edge];
            products.find(d_weights, n + 1, gradient, streams, width);
            products.find(&mut d_weights[n..], n + 1, gradient, &tile.next_write[row], width);
            products.find(&mut d_weights[n * (n + 1)..], 1, streams, d_read, width);
            mixer.load(d_read, width, n);
            mixer.mix(gradient, width, weights, [1, n + 1]);
        }
        find_backward(shape, d_logits, small, d_weights, logits, params.small);
        if shape.rows() > 0 {
            let weight = params.projection;
            let known = Known { rows: all_streams, weight, logits, inverse_rms };
            project_backward(gradients, projection, d_logits, &known, shape.inputs(), scratch);
        }
        gradient_of_write(tile.d_write, gradients, tile.before.record[3], shape);
    }

    /// Writes and sums the streams, without ever forming those after the write.
    #[inline(always)]
    pub(super) fn close(&self, gain: &[f32], tile: Forward<'_, ()>, room: &mut Room) {
        let (shape, n, width) = (&self.shape, self.shape.n, self.shape.width);
        let [out, ..] = tile.record;
        let [streams, _, _, mixing] = tile.before.record;
        let shares = &mut room.shares;
        shares.resize(n + 1, 0.0);
        shares[n] = n as f32;
        let mut sources =
            streams.chunks_exact(shape.state()).zip(mixing.chunks_exact(shape.weights()));
        let rows = out.chunks_exact_mut(width).zip(tile.output.chunks_exact_mut(width));
        for ((out, output), write) in rows.zip(tile.write.chunks_exact(width)) {
            match sources.next() {
                None => out.fill(0.0),
                Some((streams, weights)) => {
                    shares_in_sum(shares, weights, n);
                    weighted_sum(out, streams, shares, 1);
                }
            }
            add_scaled(out, shares[n], write);
            output.copy_from_slice(out);
            normalise(output, gain, self.eps);
        }
    }

    /// The way back from [`Mixed::close`].
    #[inline(always)]
    pub(super) fn close_backward(&self, gain: &[f32], tile: Backward<'_, ()>, room: &mut Room) {
        let (shape, n, width) = (&self.shape, self.shape.n, self.shape.width);
        let Room { shares, d_read: d_out, .. } = room;
        shares.resize(n + 1, 0.0);
        shares[n] = n as f32;
        d_out.resize(width, 0.0);
        let [gradient, ..] = tile.gradient;
        let [out, ..] = tile.record;
        let mut mixing = tile.before.record[3].chunks_exact(shape.weights());
        let rows = gradient.chunks_exact_mut(shape.state());
        let rows = rows.zip(tile.d_write.chunks_exact_mut(width));
        let known = out.chunks_exact(width).zip(tile.d_output.chunks_exact(width));
        for ((gradient, d_write), (out, d_output)) in rows.zip(known) {
            d_out.copy_from_slice(d_output);
            normalise_backward(d_out, tile.d_params, out, gain, self.eps);
            for gradient in gradient.chunks_exact_mut(width) {
                gradient.copy_from_slice(d_out);
            }
            if let Some(weights) = mixing.next() {
                shares_in_sum(shares, weights, n);
            }
            for (d_write, d_out) in d_write.iter_mut().zip(&*d_out) {
                *d_write = shares[n] * d_out;
            }
        }
    }
}

/// The way back from [`normalise`]: `d` becomes the gradient of `x`, and `d_gain` is added to.
#[inline(always)]
fn normalise_backward(d: &mut [f32], d_gain: &mut [f32], x: &[f32], gain: &[f32], eps: f32) {
    let normed = Normed { x, inverse_rms: inverse_rms(x, eps), scale: 1.0, gain };
    normed.take_gradient(d, d_gain);
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
