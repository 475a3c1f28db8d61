//! Streams that are mixed: Hyper-Connections, mHC and mHC-lite.
//!
//! A token has n streams `H_i`, n copies of its embedding to begin with. Each sub-layer has a site, which
//! finds weights `pre`, `post` and `res` for every token from its streams:
//!
//! ```text
//! h = sum_i pre_i H_i                       the sub-layer is given rms(h) * gain and writes f
//! H'_i = sum_j res_ij H_j + post_i f
//! out = sum_i H_i                           the head is given rms(out) * gain
//! ```
//!
//! with `rms(x) = x / sqrt(mean(x^2) + eps)`. A junction finishes the previous site's write, finds the
//! weights of the next site and reads. How weights are found is what the kinds differ in
//! ([`MixingKind`]).
//!
//! # Parameters
//!
//! Of a junction that leads to a sub-layer, one after the other; matrices row by row:
//!
//! ```text
//! Static         gain [width], pre [n], post [n], res [n, n]
//! Dynamic        gain [width], pre [n], post [n], res [n, n], mix_scale [1], post_scale [1],
//!                weight [2 + n, width]
//! Sinkhorn       gain [width], bias [2 n + n n], weight [2 n + n n, n width]
//! Permutations   gain [width], bias [2 n + n!], weight [2 n + n!, n width]
//! ```
//!
//! and of the last junction: `gain [width]`.
//!
//! - `res` is indexed `[source, target]`, as in the paper on Hyper-Connections.
//! - Weights are transposed: one row of inputs for each output, in the order pre, post, res. Scales
//!   (mHC) and the gain of the norm (dynamic HC) are multiplied in by the caller.
//! - Dynamic: with `q_i = rms(H_i) weight^T`, `pre_i += mix_scale tanh(q_i0)`,
//!   `post_i += post_scale tanh(q_i1)`, `res[i][j] += mix_scale tanh(q_i(2+j))`.
//! - Sinkhorn: with `q = rms(vec(H)) weight^T + bias`, over all n width values, `pre` is the sigmoid of
//!   the first n, `post` twice that of the next n, `res` (here `[target, source]`) is made of the rest.
//! - Permutations: the same, but `res = sum_k softmax(rest)_k P_k` over the permutations in
//!   lexicographic order, `P_k[i][permutation_k(i)] = 1`.
//!
//! # What is kept
//!
//! Of each junction the streams after its write, what the sub-layer wrote to them (shared), and for each
//! token the logits, the inverse norms and the weights. The gradient of the streams is one buffer that
//! all junctions update in place.

mod block;
mod lanes;
mod permutations;
mod projection;
mod sinkhorn;
mod tile;
mod walk;
mod weights;

#[cfg(test)]
mod tests;

use super::tiles::TILE;
use super::{DecodeStream, Gradient, Stream};
use crate::rows::{Rows, filled};
use crate::simd::add_scaled;
use crate::team::each_of;
use std::slice::{Chunks, ChunksMut};
use tile::{Backward, Close, CloseBackward, Forward, Params, Room};
use walk::MixingWalk;
use weights::Shape;

/// How the weights of a site are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixingKind {
    /// They are parameters (static Hyper-Connections).
    Static,
    /// Parameters, and a bounded function of each stream (dynamic Hyper-Connections).
    Dynamic,
    /// Functions of all streams; `res` is made doubly stochastic by iteration (mHC).
    Sinkhorn {
        /// Rounds of column and row normalisation.
        iterations: usize,
    },
    /// Functions of all streams; `res` is a mixture of permutations (mHC-lite).
    Permutations,
}

/// Tokens that share a partial sum of the parameters' gradients: several tiles, for such a sum is as
/// large as the parameters.
const PART: usize = 4 * TILE;

/// Elements of the parameters' gradients that one task adds up.
const SUMMED: usize = 1 << 12;

/// n streams, mixed at every sub-layer.
#[derive(Debug)]
pub struct Mixing {
    shape: Shape,
    eps: f32,
    sites: usize,
    keep: bool,
    /// How many junctions were gone through.
    passed: usize,
    /// What is known of each junction that led to a sub-layer, or, if nothing is kept, of the last.
    known: Vec<Known>,
    /// The sum of the streams at the last junction.
    out: Vec<f32>,
    /// Of the streams, on the way back.
    gradient: Vec<f32>,
}

/// One junction that leads to a sub-layer.
#[derive(Debug, Default)]
struct Known {
    /// `[tokens, n, width]`
    streams: Vec<f32>,
    /// `[tokens, logits]`, without the bias.
    logits: Vec<f32>,
    /// Of the rows that were projected, `[tokens, rows]`.
    inverse_rms: Vec<f32>,
    /// `[tokens, n + 1, n + 1]`
    weights: Vec<f32>,
    /// What the sub-layer wrote.
    written: Option<Rows>,
}

impl Mixing {
    /// `streams` streams of `width` features, past `sites` sub-layers. Without `keep` there is no way
    /// back.
    pub fn new(
        kind: MixingKind,
        streams: usize,
        width: usize,
        eps: f32,
        sites: usize,
        keep: bool,
    ) -> Self {
        assert!(streams > 0 && width > 0, "there are {streams} streams of {width} features");
        Self {
            shape: Shape::new(kind, streams, width),
            eps,
            sites,
            keep,
            passed: 0,
            known: Vec::new(),
            out: Vec::new(),
            gradient: Vec::new(),
        }
    }

    /// How many parameters this junction takes.
    pub fn params(&self, junction: usize) -> usize {
        let Shape { width, .. } = self.shape;
        if junction == self.sites {
            return width;
        }
        width + self.shape.small() + self.shape.projection()
    }

    fn read(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        let tokens = write.values().len() / self.shape.width;
        let mut known = Known {
            logits: vec![0.0; tokens * self.shape.logits()],
            inverse_rms: vec![0.0; tokens * self.shape.rows()],
            weights: vec![0.0; tokens * self.shape.weights()],
            ..Known::default()
        };
        let (shape, eps) = (&self.shape, self.eps);
        let params = Params::of(params, shape);
        let mut before = self.known.pop().unwrap_or_default();
        let mut streams = std::mem::take(&mut before.streams);
        let mut answer = Vec::new();
        let mut go = |streams: &mut [f32], from: &[f32]| {
            answer = filled(tokens * shape.width, |answer| {
                let mut from = Parts::new(from, shape.state(), TILE);
                let mut mixing = Parts::new(&before.weights, shape.weights(), TILE);
                let mut write = Parts::new(write.values(), shape.width, TILE);
                let mut streams = PartsMut::new(streams, shape.state(), TILE);
                let mut logits = PartsMut::new(&mut known.logits, shape.logits(), TILE);
                let mut inverse_rms = PartsMut::new(&mut known.inverse_rms, shape.rows(), TILE);
                let mut weights = PartsMut::new(&mut known.weights, shape.weights(), TILE);
                let mut answer = PartsMut::new(answer, shape.width, TILE);
                let tiles = (0..tokens.div_ceil(TILE)).map(|_| Forward {
                    streams: streams.take(),
                    before: Some(from.take()).filter(|from| !from.is_empty()),
                    mixing: mixing.take(),
                    write: write.take(),
                    logits: logits.take(),
                    inverse_rms: inverse_rms.take(),
                    weights: weights.take(),
                    answer: answer.take(),
                });
                each_of(tiles, |tile| {
                    tile::forward(
                        crate::simd::Form::best(),
                        tile,
                        shape,
                        &params,
                        eps,
                        &mut Room::default(),
                    );
                });
            });
        };
        if self.keep {
            known.streams = filled(tokens * shape.state(), |new| go(new, &streams));
        } else if streams.is_empty() {
            known.streams = filled(tokens * shape.state(), |new| go(new, &[]));
        } else {
            go(&mut streams, &[]);
            known.streams = std::mem::take(&mut streams);
        }
        if self.keep && self.passed > 0 {
            before.streams = streams;
            before.written = Some(write);
            self.known.push(before);
        }
        self.known.push(known);
        answer
    }

    fn close(&mut self, write: Rows, gain: &[f32]) -> Vec<f32> {
        let (shape, eps) = (&self.shape, self.eps);
        let tokens = write.values().len() / shape.width;
        let nothing = Known::default();
        let before = self.known.last().unwrap_or(&nothing);
        let mut answer = Vec::new();
        let out = filled(tokens * shape.width, |out| {
            answer = filled(tokens * shape.width, |answer| {
                let mut streams = Parts::new(&before.streams, shape.state(), TILE);
                let mut mixing = Parts::new(&before.weights, shape.weights(), TILE);
                let mut write = Parts::new(write.values(), shape.width, TILE);
                let mut out = PartsMut::new(out, shape.width, TILE);
                let mut answer = PartsMut::new(answer, shape.width, TILE);
                let tiles = (0..tokens.div_ceil(TILE)).map(|_| Close {
                    streams: streams.take(),
                    mixing: mixing.take(),
                    write: write.take(),
                    out: out.take(),
                    answer: answer.take(),
                });
                each_of(tiles, |tile| {
                    tile::close(
                        crate::simd::Form::best(),
                        tile,
                        shape,
                        gain,
                        eps,
                        &mut Room::default(),
                    );
                });
            });
        });
        if self.keep {
            self.out = out;
            if let Some(last) = self.known.last_mut() {
                last.written = Some(write);
            }
        } else {
            self.known.clear();
        }
        answer
    }

    fn read_backward(&mut self, d_input: &[f32], params: &[f32]) -> Gradient {
        let known = self.known.pop().expect("a junction that was kept");
        let written = known.written.expect("what the sub-layer wrote");
        let (shape, eps) = (&self.shape, self.eps);
        let tokens = d_input.len() / shape.width;
        let mixing = self.known.last().map_or(&[][..], |before| &before.weights);
        let mut partials = vec![0.0; tokens.div_ceil(PART) * params.len()];
        let site = Params::of(params, shape);
        let write = filled(tokens * shape.width, |d_write| {
            let mut gradient = PartsMut::new(&mut self.gradient, shape.state(), PART);
            let mut streams = Parts::new(&known.streams, shape.state(), PART);
            let mut written = Parts::new(written.values(), shape.width, PART);
            let mut logits = Parts::new(&known.logits, shape.logits(), PART);
            let mut inverse_rms = Parts::new(&known.inverse_rms, shape.rows(), PART);
            let mut weights = Parts::new(&known.weights, shape.weights(), PART);
            let mut mixing = Parts::new(mixing, shape.weights(), PART);
            let mut d_answer = Parts::new(d_input, shape.width, PART);
            let mut d_write = PartsMut::new(d_write, shape.width, PART);
            let mut d_params = PartsMut::new(&mut partials, params.len(), 1);
            let parts = (0..tokens.div_ceil(PART)).map(|_| Backward {
                gradient: gradient.take(),
                streams: streams.take(),
                written: written.take(),
                logits: logits.take(),
                inverse_rms: inverse_rms.take(),
                weights: weights.take(),
                mixing: mixing.take(),
                d_answer: d_answer.take(),
                d_write: d_write.take(),
                d_params: d_params.take(),
            });
            each_of(parts, |part| {
                tile::backward(crate::simd::Form::best(), part, shape, &site, eps)
            });
        });
        Gradient { write, params: sum(&partials, params.len()) }
    }

    fn close_backward(&mut self, d_input: &[f32], gain: &[f32]) -> Gradient {
        let (shape, eps) = (&self.shape, self.eps);
        let tokens = d_input.len() / shape.width;
        let out = std::mem::take(&mut self.out);
        let mixing = self.known.last().map_or(&[][..], |before| &before.weights);
        let mut partials = vec![0.0; tokens.div_ceil(PART) * shape.width];
        let mut write = Vec::new();
        self.gradient = filled(tokens * shape.state(), |gradient| {
            write = filled(tokens * shape.width, |d_write| {
                let mut gradient = PartsMut::new(gradient, shape.state(), PART);
                let mut out = Parts::new(&out, shape.width, PART);
                let mut mixing = Parts::new(mixing, shape.weights(), PART);
                let mut d_answer = Parts::new(d_input, shape.width, PART);
                let mut d_write = PartsMut::new(d_write, shape.width, PART);
                let mut d_gain = PartsMut::new(&mut partials, shape.width, 1);
                let parts = (0..tokens.div_ceil(PART)).map(|_| CloseBackward {
                    gradient: gradient.take(),
                    out: out.take(),
                    mixing: mixing.take(),
                    d_answer: d_answer.take(),
                    d_write: d_write.take(),
                    d_gain: d_gain.take(),
                });
                each_of(parts, |part| {
                    tile::close_backward(crate::simd::Form::best(), part, shape, gain, eps)
                });
            });
        });
        Gradient { write, params: sum(&partials, shape.width) }
    }
}

impl Stream for Mixing {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        assert!(self.passed <= self.sites, "there are only {} junctions", self.sites + 1);
        assert_eq!(params.len(), self.params(self.passed), "parameters of a junction");
        let answer = if self.passed < self.sites {
            self.read(write, params)
        } else {
            self.close(write, params)
        };
        self.passed += 1;
        answer
    }

    fn backward(&mut self, d_input: &[f32], params: &[f32]) -> Gradient {
        assert!(self.keep, "nothing was kept for the way back");
        self.passed = self.passed.checked_sub(1).expect("a junction to go back through");
        assert_eq!(params.len(), self.params(self.passed), "parameters of a junction");
        if self.passed < self.sites {
            self.read_backward(d_input, params)
        } else {
            self.close_backward(d_input, params)
        }
    }

    fn decode(self: Box<Self>) -> Box<dyn DecodeStream> {
        Box::new(MixingWalk::new(*self))
    }
}

/// The sum of partial sums of `length` elements, always added in the same order.
fn sum(partials: &[f32], length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; length];
    each_of(sum.chunks_mut(SUMMED).enumerate(), |(slice, sum)| {
        for partial in partials.chunks_exact(length) {
            add_scaled(sum, 1.0, &partial[slice * SUMMED..]);
        }
    });
    sum
}

/// Hands out a buffer part by part; one without elements yields empty parts for ever.
struct Parts<'a>(Chunks<'a, f32>);

impl<'a> Parts<'a> {
    /// `each` elements for each of `tokens` tokens.
    fn new(values: &'a [f32], each: usize, tokens: usize) -> Self {
        Self(values.chunks((each * tokens).max(1)))
    }

    fn take(&mut self) -> &'a [f32] {
        self.0.next().unwrap_or_default()
    }
}

/// [`Parts`] to be written to.
struct PartsMut<'a>(ChunksMut<'a, f32>);

impl<'a> PartsMut<'a> {
    fn new(values: &'a mut [f32], each: usize, tokens: usize) -> Self {
        Self(values.chunks_mut((each * tokens).max(1)))
    }

    fn take(&mut self) -> &'a mut [f32] {
        self.0.next().unwrap_or_default()
    }
}
