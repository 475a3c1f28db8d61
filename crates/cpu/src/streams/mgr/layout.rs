//! What a junction does, and where its parameters and numbers are.

use super::gate::Gate;
use crate::row::inverse_root;
use crate::streams::tiles::{split, split_mut};

/// What all junctions have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) width: usize,
    pub(super) eps: f32,
    /// n.
    pub(super) streams: usize,
    /// Streams there is room for: n, or fewer if there are not so many writes.
    pub(super) slots: usize,
    pub(super) gate: Gate,
    pub(super) junctions: usize,
    /// Whether tokens may skip sites.
    pub(super) skips: bool,
}

impl Shape {
    pub(super) fn junction(&self, index: usize) -> Junction {
        let gates = index >= self.streams;
        let before = index.min(self.streams);
        let next = index + 1;
        let decides = self.skips && next >= self.streams && next < self.junctions;
        Junction { gates, before, after: if gates { before } else { before + 1 }, decides }
    }

    /// Of the parameters' parts.
    pub(super) fn lengths(&self, junction: Junction) -> [usize; 6] {
        let gate = |there: bool| {
            if there { [self.width, self.gate.biases(self.streams)] } else { [0, 0] }
        };
        let ([query, bias], [next_query, next_bias]) =
            (gate(junction.gates), gate(junction.decides));
        let pool = if junction.pools() { self.width } else { 0 };
        [query, bias, pool, self.width, next_query, next_bias]
    }

    /// `1 / sqrt(mean + eps)` of a sum of squares.
    #[inline(always)]
    pub(super) fn inverse_rms(&self, squares: f32) -> f32 {
        inverse_root(squares, self.width, self.eps)
    }
}

/// What one junction does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Junction {
    /// Whether the write is gated into all streams, instead of being appended as a new one.
    pub(super) gates: bool,
    /// Streams before the write.
    pub(super) before: usize,
    /// Streams after the write.
    pub(super) after: usize,
    /// Whether the gates of the next write are opened here, to decide which tokens run the site in between.
    pub(super) decides: bool,
}

impl Junction {
    /// Whether the reader's query weighs the streams, instead of reading the only one.
    #[inline(always)]
    pub(super) fn pools(self) -> bool {
        self.before > 0
    }

    /// Lengths of the parts of [`Numbers`] for one token.
    #[inline(always)]
    pub(super) fn number_lengths(self) -> [usize; 2] {
        let gated = if self.gates { self.before } else { 0 };
        let pooled = if self.pools() { self.after } else { 0 };
        [gated, pooled]
    }

    /// The gates among [`Numbers`], which are only read.
    #[inline(always)]
    pub(super) fn gates_of(self, numbers: &[f32]) -> &[f32] {
        let [gated, _] = self.number_lengths();
        &numbers[gated..2 * gated]
    }

    /// Length of [`Numbers`] for one token.
    pub(super) fn numbers(self) -> usize {
        let [gated, pooled] = self.number_lengths();
        3 * gated + 2 * pooled + 1
    }
}

/// What a junction computes for a token besides vectors; kept for the backward pass.
pub(super) struct Numbers<'a> {
    /// u.
    pub(super) gate_scores: &'a mut [f32],
    /// beta.
    pub(super) gates: &'a mut [f32],
    /// r before the write.
    pub(super) rms_before: &'a mut [f32],
    /// v.
    pub(super) scores: &'a mut [f32],
    /// alpha.
    pub(super) weights: &'a mut [f32],
    /// `1 / sqrt(mean(h^2) + eps)`.
    pub(super) reading_rms: &'a mut f32,
}

impl<'a> Numbers<'a> {
    #[inline(always)]
    pub(super) fn split(numbers: &'a mut [f32], junction: Junction) -> Self {
        let [gated, pooled] = junction.number_lengths();
        let [gate_scores, gates, rms_before, scores, weights, rest] =
            split_mut(numbers, [gated, gated, gated, pooled, pooled, 1]);
        Self { gate_scores, gates, rms_before, scores, weights, reading_rms: &mut rest[0] }
    }
}

/// A junction's parameters, in the layout of the module's head; missing parts are empty.
#[derive(Clone, Copy, Debug)]
pub struct Params<'a> {
    pub(super) junction: Junction,
    /// w1.
    pub(super) gate_query: &'a [f32],
    /// b.
    pub(super) gate_bias: &'a [f32],
    /// w2.
    pub(super) pool_query: &'a [f32],
    pub(super) gain: &'a [f32],
    /// w1 of the next junction.
    pub(super) next_query: &'a [f32],
    /// b of the next junction.
    pub(super) next_bias: &'a [f32],
}

impl<'a> Params<'a> {
    pub(super) fn split(params: &'a [f32], shape: &Shape, junction: Junction) -> Self {
        let [gate_query, gate_bias, pool_query, gain, next_query, next_bias] =
            split(params, shape.lengths(junction));
        Self { junction, gate_query, gate_bias, pool_query, gain, next_query, next_bias }
    }
}

/// The gradient of [`Params`], but for what only decides.
#[derive(Debug)]
pub(super) struct ParamGradients<'a> {
    pub(super) gate_query: &'a mut [f32],
    pub(super) gate_bias: &'a mut [f32],
    pub(super) pool_query: &'a mut [f32],
    pub(super) gain: &'a mut [f32],
}

impl<'a> ParamGradients<'a> {
    #[inline(always)]
    pub(super) fn split(params: &'a mut [f32], shape: &Shape, junction: Junction) -> Self {
        let [gate_query, gate_bias, pool_query, gain, ..] =
            split_mut(params, shape.lengths(junction));
        Self { gate_query, gate_bias, pool_query, gain }
    }
}
