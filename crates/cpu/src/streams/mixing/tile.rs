//! Junctions of a tile of tokens, in one pass over their streams.

use super::Mixed;
use super::block::{
    COLUMNS, Chunk, Products, Shares, TARGETS, blocks, put, scatter, sort_shares, sums,
    weighted_sum,
};
use super::lanes::Lane;
use super::projection::{self, Known, project, project_backward};
use super::weights::{Shape, find, find_backward};
use super::wide_projection::{Room as WideRoom, WideRows, pull_back};
use crate::gemm::Packed;
use crate::pieces::{load, store};
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
    pub(super) scale: T,
    /// What makes logits of all streams, as products want it: of the way forward, unless tokens are few, and of the way
    /// back.
    pub(super) forth: Option<Packed>,
    pub(super) back: Option<Packed>,
}

/// Working memory of a tile, which it leaves behind for the next.
#[derive(Debug, Default)]
pub struct Room {
    mixer: Mixer,
    pub(super) products: Products,
    lanes: Vec<Lane>,
    /// What each source gives to the read-out, and the weight of each stream in it.
    pub(super) shares: Vec<f32>,
    pub(super) weights: Vec<f32>,
    /// A row that was read, and its gradient.
    read: Vec<f32>,
    pub(super) d_read: Vec<f32>,
    d_weights: Vec<f32>,
    d_logits: Vec<f32>,
    scratch: projection::Scratch,
    wide: WideRoom,
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

    /// The same, and `read = sum_i pre_i out_i` on the way.
    #[inline(always)]
    fn mix_and_read(
        &mut self,
        out: &mut [f32],
        read: &mut [f32],
        weights: &[f32],
        strides: [usize; 2],
        pre: &[f32],
    ) {
        let (n, width) = (pre.len(), read.len());
        sort_shares(&mut self.shares, weights, strides, [n, n + 1]);
        let chunks = self.sources.chunks_exact(n + 1).zip(read.chunks_mut(COLUMNS));
        for (chunk, (sources, read)) in chunks.enumerate() {
            let mut reading = [0f32; COLUMNS];
            let targets = out.chunks_mut(TARGETS * width).zip(self.shares.chunks_exact(n + 1));
            for ((out, shares), pre) in targets.zip(pre.chunks(TARGETS)) {
                let sums = sums(sources, shares);
                put::<false>(out, width, chunk * COLUMNS, &sums);
                for (sum, pre) in sums.iter().zip(pre) {
                    for j in 0..COLUMNS {
                        reading[j] += pre * sum[j];
                    }
                }
            }
            read.copy_from_slice(&reading[..read.len()]);
        }
    }
}

/// `out_i = before_i + post_i write`, where `posts` goes on in steps of `stride`; without `before`, in place.
#[inline(always)]
fn add_write(
    streams: &mut [f32],
    before: Option<&[f32]>,
    write: &[f32],
    posts: &[f32],
    stride: usize,
) {
    let width = write.len();
    for (i, stream) in streams.chunks_exact_mut(width).enumerate() {
        let post = posts[i * stride];
        match before {
            None => add_scaled(stream, post, write),
            Some(before) => {
                let before = &before[i * width..(i + 1) * width];
                for ((x, before), write) in stream.iter_mut().zip(before).zip(write) {
                    *x = before + post * write;
                }
            }
        }
    }
}

impl Mixed {
    /// Writes, finds the weights of the next site, and reads.
    #[inline(always)]
    pub(super) fn read(
        &self,
        shape: &Shape,
        params: &Params<&[f32]>,
        tile: Forward<'_, ()>,
        room: &mut Room,
    ) {
        let (eps, n, width) = (self.eps, shape.n, shape.width);
        let [all_streams, logits, inverse_rms, all_weights] = tile.record;
        let [before, _, _, mixing] = tile.before.record;
        let hands_on = self.hands_on();
        let streams = all_streams.chunks_exact_mut(shape.state());
        if tile.junction == 0 {
            for (streams, write) in streams.zip(tile.write.chunks_exact(width)) {
                open(streams, write, params.scale);
            }
        } else {
            let mixer = &mut room.mixer;
            mixer.make_room(n, width);
            // Without a way back, the streams before the write are where those after it go.
            let mut before = before.chunks_exact(shape.state());
            let weights = mixing.chunks_exact(shape.weights());
            let rows = tile.write.chunks_exact(width).zip(tile.output.chunks_exact_mut(width));
            for ((streams, weights), (write, output)) in streams.zip(weights).zip(rows) {
                let pre = &weights[n * (n + 1)..][..n];
                if !self.shape.mixes() {
                    add_write(streams, before.next(), write, &weights[n..], n + 1);
                    if hands_on {
                        weighted_sum(output, streams, pre, 1);
                    }
                    continue;
                }
                mixer.load(before.next().unwrap_or(streams), width, 0);
                mixer.load(write, width, n);
                if hands_on {
                    mixer.mix_and_read(streams, output, weights, [n + 1, 1], pre);
                } else {
                    mixer.mix(streams, width, weights, [n + 1, 1]);
                }
            }
        }
        if shape.rows() > 0 {
            let (weight, products) = (params.projection, &mut room.products);
            let inputs = shape.inputs();
            match &params.forth {
                Some(weight) => {
                    room.wide.project(logits, inverse_rms, all_streams, weight, inputs, eps);
                }
                None => project(logits, inverse_rms, all_streams, weight, inputs, eps, products),
            }
        }
        find(shape, all_weights, logits, params.small, &mut room.lanes);
        let reads =
            tile.output.chunks_exact_mut(width).zip(all_streams.chunks_exact(shape.state()));
        for ((output, streams), weights) in reads.zip(all_weights.chunks_exact(shape.weights())) {
            if !hands_on {
                weighted_sum(output, streams, &weights[n * (n + 1)..], 1);
            } else if tile.junction == 0 {
                // The first reader is given stream 0; later ones have been read for already.
                output.copy_from_slice(&streams[..width]);
            }
            normalise(output, params.gain, eps);
        }
    }

    /// The way back from [`Mixed::read`].
    #[inline(always)]
    pub(super) fn read_backward(
        &self,
        shape: &Shape,
        params: &Params<&[f32]>,
        tile: Backward<'_, ()>,
        room: &mut Room,
    ) {
        let (n, width) = (shape.n, shape.width);
        let (state, edge) = (shape.state(), shape.weights());
        let [gain, small, projection, scale] =
            split_mut(tile.d_params, self.lengths(tile.junction));
        let Room {
            mixer, products, read, d_read, d_weights, d_logits, scratch, weights, wide, ..
        } = room;
        let used = weights;
        mixer.make_room(n, width);
        read.resize(width, 0.0);
        d_read.resize(width, 0.0);
        used.resize(edge, 0.0);
        d_weights.resize(tile.tokens * edge, 0.0);
        d_logits.resize(tile.tokens * shape.logits(), 0.0);
        let [gradients, d_handed_on, ..] = tile.gradient;
        let [all_streams, logits, inverse_rms, weights] = tile.record.map(|part| &*part);
        let hands_on = self.hands_on();
        for t in 0..tile.tokens {
            let gradient = &mut gradients[t * state..(t + 1) * state];
            let streams = &all_streams[t * state..(t + 1) * state];
            let own = t * edge..(t + 1) * edge;
            // The weights that were used here: those of reading may be the last site's.
            used.copy_from_slice(&weights[own.clone()]);
            if hands_on {
                handed_on(&mut used[n * (n + 1)..][..n], tile.before.record[3], t);
            }
            let pre = &used[n * (n + 1)..][..n];
            let row = t * width..(t + 1) * width;
            weighted_sum(read, streams, pre, 1);
            d_read.copy_from_slice(&tile.d_output[row.clone()]);
            normalise_backward(d_read, gain, read, params.gain, self.eps);
            let d_weights = &mut d_weights[own];
            if shape.mixes() {
                mixer.load(gradient, width, 0);
                products.find(d_weights, n + 1, gradient, streams, width);
            }
            if shape.writes() {
                products.find(&mut d_weights[n..], n + 1, gradient, &tile.next_write[row], width);
            }
            let d_pre = &mut d_weights[n * (n + 1)..][..n];
            if hands_on {
                let d_handed_on = &mut d_handed_on[t * n..(t + 1) * n];
                d_pre.copy_from_slice(d_handed_on);
                products.find(d_handed_on, 1, streams, d_read, width);
            } else {
                products.find(d_pre, 1, streams, d_read, width);
            }
            if shape.mixes() {
                mixer.load(d_read, width, n);
                mixer.mix(gradient, width, used, [1, n + 1]);
            } else {
                add_write(gradient, None, d_read, pre, 1);
            }
        }
        find_backward(shape, d_logits, small, d_weights, logits, params.small);
        if shape.rows() > 0 {
            let weight = params.projection;
            let known = Known { rows: all_streams, weight, logits, inverse_rms };
            match &params.back {
                None => {
                    let inputs = shape.inputs();
                    project_backward(gradients, projection, d_logits, &known, inputs, scratch);
                }
                Some(weight) => {
                    let rows = WideRows { rows: all_streams, weight, logits, inverse_rms };
                    let pulls = wide.project_backward(gradients, projection, d_logits, rows);
                    if tile.junction > 0 {
                        let posts = (tile.before.record[3], shape.weights(), n + 1);
                        let rows = [all_streams, pulls];
                        pulled_gradient_of_write(tile.d_write, gradients, rows, posts);
                        return;
                    }
                    pull_back(gradients, all_streams, pulls);
                }
            }
        }
        if tile.junction > 0 {
            gradient_of_write(tile.d_write, gradients, tile.before.record[3], shape);
            return;
        }
        let rows = tile.d_write.chunks_exact_mut(width).zip(gradients.chunks_exact(state));
        for (t, (d_write, gradient)) in rows.enumerate() {
            let write = tile.write.get(t * width..(t + 1) * width).unwrap_or_default();
            open_backward(d_write, scale, gradient, write, params.scale);
        }
    }
}

/// The streams that a token starts with: copies of its embedding, or what their scales make of it.
#[inline(always)]
fn open(streams: &mut [f32], write: &[f32], scale: &[f32]) {
    let width = write.len();
    for (i, stream) in streams.chunks_exact_mut(width).enumerate() {
        match scale.get(i * width..(i + 1) * width) {
            None => stream.copy_from_slice(write),
            Some(scale) => {
                for ((x, write), scale) in stream.iter_mut().zip(write).zip(scale) {
                    *x = scale * write;
                }
            }
        }
    }
}

/// The way back from [`open`].
#[inline(always)]
fn open_backward(
    d_write: &mut [f32],
    d_scale: &mut [f32],
    gradient: &[f32],
    write: &[f32],
    scale: &[f32],
) {
    if scale.is_empty() {
        weighted_sum(d_write, gradient, &[1.0], 0);
        return;
    }
    d_write.fill(0.0);
    let width = write.len();
    let streams = gradient.chunks_exact(width).zip(scale.chunks_exact(width));
    for ((gradient, scale), d_scale) in streams.zip(d_scale.chunks_exact_mut(width)) {
        for j in 0..width {
            d_write[j] += scale[j] * gradient[j];
            d_scale[j] += write[j] * gradient[j];
        }
    }
}

/// The weights of reading that the site before found of token `t`; before the first site, stream 0 alone is read.
#[inline(always)]
pub(super) fn handed_on(pre: &mut [f32], mixing: &[f32], t: usize) {
    let n = pre.len();
    let edge = (n + 1) * (n + 1);
    if mixing.is_empty() {
        pre.fill(0.0);
        pre[0] = 1.0;
    } else {
        pre.copy_from_slice(&mixing[t * edge + n * (n + 1)..][..n]);
    }
}

/// The way back from [`normalise`]: `d` becomes the gradient of `x`, and `d_gain` is added to.
#[inline(always)]
pub(super) fn normalise_backward(
    d: &mut [f32],
    d_gain: &mut [f32],
    x: &[f32],
    gain: &[f32],
    eps: f32,
) {
    let normed = Normed { x, inverse_rms: inverse_rms(x, eps), scale: 1.0, gain };
    normed.take_gradient(d, d_gain);
}

/// Pulls the gradient of each token back along its streams, and finds `d_write = sum_i post_i gradient_i` on the way. The
/// posts of a token stand `stride` apart in `edge` weights, behind the first `n`.
#[inline(always)]
fn pulled_gradient_of_write(
    d_write: &mut [f32],
    gradients: &mut [f32],
    [streams, pulls]: [&[f32]; 2],
    (mixing, edge, stride): (&[f32], usize, usize),
) {
    let (n, width) = (stride - 1, d_write.len() / pulls.len());
    let tokens = d_write.chunks_exact_mut(width).zip(gradients.chunks_exact_mut(n * width));
    let tokens = tokens.zip(streams.chunks_exact(n * width)).zip(mixing.chunks_exact(edge));
    for ((((d_write, gradient), streams), mixing), pull) in tokens.zip(pulls) {
        let posts = &mixing[n..];
        pieces!(width, |at| {
            let mut sums = [0.0; N];
            for i in 0..n {
                let x: [f32; N] = load(streams, i * width + at);
                let mut new: [f32; N] = load(gradient, i * width + at);
                for j in 0..N {
                    new[j] -= pull * x[j];
                    sums[j] += posts[i * stride] * new[j];
                }
                store(gradient, i * width + at, new);
            }
            store(d_write, at, sums);
        });
    }
}

/// `d_write = sum_i post_i gradient_i`.
#[inline(always)]
fn gradient_of_write(d_write: &mut [f32], gradient: &[f32], mixing: &[f32], shape: &Shape) {
    let n = shape.n;
    let tokens = d_write.chunks_exact_mut(shape.width).zip(gradient.chunks_exact(shape.state()));
    for (t, (d_write, gradient)) in tokens.enumerate() {
        weighted_sum(d_write, gradient, &mixing[t * shape.weights() + n..], n + 1);
    }
}
