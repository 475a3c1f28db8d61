//! Multi-Gate Residuals: n streams, gated writes, attention-pooled reads. arXiv 2605.23259.
//!
//! Junction 0 makes the embedding the first stream, and the next n-1 writes are appended as they are.
//! From then on every stream moves towards the write `f` by its own gate,
//!
//! ```text
//! u_i = w1 . rms(s_i)      beta = gate(u, b)      s'_i = s_i + beta_i (f - s_i)
//! independent: beta_i = 1 / (1 + exp(-u_i - b_i))
//! competitive: beta_i = exp(u_i + b_i) / (exp(b_0) + sum_j exp(u_j + b_j))
//! ```
//!
//! and after every write the next reader is given
//!
//! ```text
//! v_i = w2 . rms(s'_i)     alpha = softmax(v)     h = sum_i alpha_i s'_i     answer = gain rms(h)
//! ```
//!
//! except that the reader of junction 0 is given `gain rms(embedding)`. `rms(x) = x / sqrt(mean(x^2) +
//! eps)`.
//!
//! # Parameters of a junction
//!
//! Those of width d carry the policy's `1/sqrt(d)` already. In this order, without gaps:
//!
//! | part | length | present |
//! |---|---|---|
//! | w1 | d | where the junction gates: from junction n on |
//! | b | n, or n+1 (b_0 first) if competitive | where the junction gates |
//! | w2 | d | everywhere but at junction 0 |
//! | gain | d | everywhere |
//!
//! # Backward
//!
//! The streams exist once, `[tokens, n, d]`, and are taken back in place: an append by dropping the last
//! stream, a gated write by `s_i = s'_i + beta_i / (1 - beta_i) (s'_i - f)`. That needs the write and the
//! gates, and where gates are wide open it would lose digits, so `saved` keeps some rows as they were.
//! With `g = dh` and `G_i = ds'_i`,
//!
//! ```text
//! dv_i = alpha_i (g . s'_i - g . h)       G_i += alpha_i g + r'_i dv_i (w2 - rms(s'_i) v_i / d)
//! dbeta_i = G_i . (f - s_i)               df = sum_i beta_i G_i
//! ds_i = (1 - beta_i) G_i + r_i du_i (w1 - rms(s_i) u_i / d)
//! dw1 = sum_i du_i rms(s_i)               dw2 = sum_i dv_i rms(s'_i)
//! ```
//!
//! with `r = 1 / sqrt(mean(s^2) + eps)`, and du as in `gate`. G replaces the gradient of the streams in
//! place, too.

mod backward;
mod forward;
mod gate;
mod saved;
mod sums;
#[cfg(test)]
mod tests;

pub use gate::Gate;
pub use saved::Memory;

use super::tiles::{sum_of_partials, tile, tile_count};
use super::{Gradient, Stream, TILE};
use crate::rows::{Rows, filled};
use backward::{BackwardTile, backward_tile};
use forward::{ForwardTile, forward_tile};
use rayon::prelude::*;
use saved::{Saved, Saving};

/// Settings of [`Mgr`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Features of a token.
    pub width: usize,
    /// What is added to a mean of squares.
    pub eps: f32,
    /// Number of streams when all are there.
    pub streams: usize,
    /// How gates relate to each other.
    pub gate: Gate,
    /// How the backward pass gets back what the forward pass overwrote.
    pub memory: Memory,
}

/// n streams and how they are carried past the sub-layers.
#[derive(Debug)]
pub struct Mgr {
    shape: Shape,
    memory: Memory,
    keep: bool,
    junctions: usize,
    /// Junctions gone through.
    passed: usize,
    /// `[tokens, slots, width]`; a slot is written when its stream is appended.
    streams: Vec<f32>,
    /// `r` of every stream, `[tokens, slots]`.
    inverse_rms: Vec<f32>,
    /// How far [`saved`] let errors grow, `[tokens, slots]`.
    drift: Vec<f32>,
    /// Gradient of the streams, laid out as they are; empty before the backward pass.
    d_streams: Vec<f32>,
    kept: Vec<Kept>,
}

/// What a junction keeps for the backward pass.
#[derive(Debug)]
struct Kept {
    /// As [`Junction::numbers`] has it, `[tokens, ..]`.
    numbers: Vec<f32>,
    /// Where the junction gates.
    write: Option<Rows>,
    /// One for each tile.
    saved: Vec<Saved>,
}

impl Mgr {
    /// No streams yet. There will be `junctions` junctions, one more than sub-layers; without `keep` they
    /// keep nothing for a backward pass.
    pub fn new(settings: Settings, junctions: usize, keep: bool) -> Self {
        let Settings { width, eps, streams, gate, memory } = settings;
        assert!(width > 0 && streams > 0, "a stream of some width is needed, not {settings:?}");
        let shape = Shape { width, eps, streams, slots: streams.min(junctions), gate };
        Self {
            shape,
            memory,
            keep,
            junctions,
            passed: 0,
            streams: Vec::new(),
            inverse_rms: Vec::new(),
            drift: Vec::new(),
            d_streams: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// How many parameters a junction takes.
    pub fn parameters(&self, junction: usize) -> usize {
        self.shape.lengths(self.shape.junction(junction)).iter().sum()
    }

    fn allocate(&mut self, tokens: usize) {
        let rows = tokens * self.shape.slots;
        self.streams = filled(rows * self.shape.width, |_| ());
        self.inverse_rms = filled(rows, |_| ());
        self.drift = vec![1.0; rows];
    }

    /// The rows to save, tile by tile, at a junction.
    fn saving(&self, junction: Junction) -> Saving {
        if self.keep && junction.gates { self.memory.saving() } else { Saving::Nothing }
    }
}

impl Stream for Mgr {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        assert!(self.passed < self.junctions, "there are only {} junctions", self.junctions);
        let junction = self.shape.junction(self.passed);
        let params = Params::split(params, &self.shape, junction);
        let values = write.values();
        let tokens = values.len() / self.shape.width;
        if self.passed == 0 {
            self.allocate(tokens);
        }
        let (shape, saving) = (self.shape, self.saving(junction));
        let rows = TILE * shape.slots;
        let (mut numbers, mut saved) = (Vec::new(), Vec::new());
        let answer = filled(values.len(), |answer| {
            numbers = filled(tokens * junction.numbers(), |numbers| {
                saved = (answer.par_chunks_mut(TILE * shape.width))
                    .zip(values.par_chunks(TILE * shape.width))
                    .zip(self.streams.par_chunks_mut(rows * shape.width))
                    .zip(self.inverse_rms.par_chunks_mut(rows))
                    .zip(self.drift.par_chunks_mut(rows))
                    .zip(numbers.par_chunks_mut(TILE * junction.numbers()))
                    .enumerate()
                    .with_max_len(1)
                    .map(|(i, (((((answer, write), streams), inverse_rms), drift), numbers))| {
                        let quota = saving.quota(i * rows..i * rows + drift.len());
                        let tile =
                            ForwardTile { write, streams, inverse_rms, drift, numbers, answer };
                        forward_tile(&shape, junction, params, quota, tile)
                    })
                    .collect();
            });
        });
        self.passed += 1;
        if self.keep {
            let write = junction.gates.then_some(write);
            self.kept.push(Kept { numbers, write, saved });
        }
        answer
    }

    fn backward(&mut self, d_input: &[f32], params: &[f32]) -> Gradient {
        let Kept { mut numbers, write, saved } =
            self.kept.pop().expect("the stream keeps what its backward pass needs");
        self.passed -= 1;
        let shape = self.shape;
        let junction = shape.junction(self.passed);
        let length = params.len();
        let params = Params::split(params, &shape, junction);
        let fresh = self.d_streams.is_empty();
        if fresh {
            self.d_streams = filled(self.streams.len(), |_| ());
        }
        let write = write.as_ref().map_or(&[][..], |write| write.values());
        let rows = TILE * shape.slots;
        let mut partials = vec![0.0; tile_count(d_input.len() / shape.width) * length];
        let d_write = filled(d_input.len(), |d_write| {
            (d_write.par_chunks_mut(TILE * shape.width))
                .zip(d_input.par_chunks(TILE * shape.width))
                .zip(self.streams.par_chunks_mut(rows * shape.width))
                .zip(self.d_streams.par_chunks_mut(rows * shape.width))
                .zip(self.inverse_rms.par_chunks_mut(rows))
                .zip(numbers.par_chunks_mut(TILE * junction.numbers()))
                .zip(saved.par_iter())
                .zip(partials.par_chunks_mut(length))
                .enumerate()
                .with_max_len(1)
                .for_each(|(i, (tensors, d_params))| {
                    let ((tensors, numbers), saved) = tensors;
                    let ((((d_write, d_answer), streams), d_streams), inverse_rms) = tensors;
                    let write = tile(write, i, shape.width);
                    let tile = BackwardTile {
                        d_answer,
                        write,
                        streams,
                        d_streams,
                        inverse_rms,
                        numbers,
                        saved,
                        d_write,
                    };
                    backward_tile(&shape, junction, params, fresh, tile, d_params);
                });
        });
        Gradient { write: d_write, params: sum_of_partials(&partials, length) }
    }
}

/// What all junctions have in common.
#[derive(Clone, Copy, Debug)]
struct Shape {
    width: usize,
    eps: f32,
    /// n.
    streams: usize,
    /// Streams there is room for: n, or fewer if there are not so many writes.
    slots: usize,
    gate: Gate,
}

impl Shape {
    fn junction(&self, index: usize) -> Junction {
        let gates = index >= self.streams;
        let before = index.min(self.streams);
        Junction { gates, before, after: if gates { before } else { before + 1 } }
    }

    /// Of the parameters' parts.
    fn lengths(&self, junction: Junction) -> [usize; 4] {
        let gate = if junction.gates { self.width } else { 0 };
        let bias = if junction.gates { self.gate.biases(self.streams) } else { 0 };
        let pool = if junction.pools() { self.width } else { 0 };
        [gate, bias, pool, self.width]
    }

    /// `1 / sqrt(mean + eps)` of a sum of squares.
    #[inline(always)]
    fn inverse_rms(&self, squares: f32) -> f32 {
        1.0 / (squares / self.width as f32 + self.eps).sqrt()
    }
}

/// What one junction does.
#[derive(Clone, Copy, Debug)]
struct Junction {
    /// Whether the write is gated into all streams, instead of being appended as a new one.
    gates: bool,
    /// Streams before the write.
    before: usize,
    /// Streams after the write.
    after: usize,
}

impl Junction {
    /// Whether the reader's query weighs the streams, instead of reading the only one.
    #[inline(always)]
    fn pools(self) -> bool {
        self.before > 0
    }

    /// Lengths of the parts of [`Numbers`] for one token.
    #[inline(always)]
    fn number_lengths(self) -> [usize; 2] {
        let gated = if self.gates { self.before } else { 0 };
        let pooled = if self.pools() { self.after } else { 0 };
        [gated, pooled]
    }

    /// Length of [`Numbers`] for one token.
    fn numbers(self) -> usize {
        let [gated, pooled] = self.number_lengths();
        3 * gated + 2 * pooled + 1
    }
}

/// What a junction computes for a token besides vectors; kept for the backward pass.
struct Numbers<'a> {
    /// u.
    gate_scores: &'a mut [f32],
    /// beta.
    gates: &'a mut [f32],
    /// r before the write.
    rms_before: &'a mut [f32],
    /// v.
    scores: &'a mut [f32],
    /// alpha.
    weights: &'a mut [f32],
    /// `1 / sqrt(mean(h^2) + eps)`.
    reading_rms: &'a mut f32,
}

impl<'a> Numbers<'a> {
    #[inline(always)]
    fn split(numbers: &'a mut [f32], junction: Junction) -> Self {
        let [gated, pooled] = junction.number_lengths();
        let (gate_scores, rest) = numbers.split_at_mut(gated);
        let (gates, rest) = rest.split_at_mut(gated);
        let (rms_before, rest) = rest.split_at_mut(gated);
        let (scores, rest) = rest.split_at_mut(pooled);
        let (weights, rest) = rest.split_at_mut(pooled);
        Self { gate_scores, gates, rms_before, scores, weights, reading_rms: &mut rest[0] }
    }
}

/// A junction's parameters, in the layout of the module's head; missing parts are empty.
#[derive(Clone, Copy, Debug)]
struct Params<'a> {
    /// w1.
    gate_query: &'a [f32],
    /// b.
    gate_bias: &'a [f32],
    /// w2.
    pool_query: &'a [f32],
    gain: &'a [f32],
}

impl<'a> Params<'a> {
    fn split(params: &'a [f32], shape: &Shape, junction: Junction) -> Self {
        let [gate, bias, pool, gain] = shape.lengths(junction);
        assert_eq!(params.len(), gate + bias + pool + gain, "parameters of {junction:?}");
        let (gate_query, rest) = params.split_at(gate);
        let (gate_bias, rest) = rest.split_at(bias);
        let (pool_query, gain) = rest.split_at(pool);
        Self { gate_query, gate_bias, pool_query, gain }
    }
}

/// The gradient of [`Params`].
#[derive(Debug)]
struct ParamGradients<'a> {
    gate_query: &'a mut [f32],
    gate_bias: &'a mut [f32],
    pool_query: &'a mut [f32],
    gain: &'a mut [f32],
}

impl<'a> ParamGradients<'a> {
    #[inline(always)]
    fn split(params: &'a mut [f32], shape: &Shape, junction: Junction) -> Self {
        let [gate, bias, pool, _] = shape.lengths(junction);
        let (gate_query, rest) = params.split_at_mut(gate);
        let (gate_bias, rest) = rest.split_at_mut(bias);
        let (pool_query, gain) = rest.split_at_mut(pool);
        Self { gate_query, gate_bias, pool_query, gain }
    }
}
