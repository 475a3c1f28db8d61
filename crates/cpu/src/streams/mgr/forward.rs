//! The forward pass of a tile.

use super::decision::{Opened, Rule};
use super::gate::softmax;
use super::layout::{Junction, Numbers, Params, Shape};
use super::saved::{Quota, Saved};
use super::sums::lerp_square_and_dot;
use crate::simd::{add_scaled, dot};

/// The part of the tensors that a tile of tokens owns.
pub(super) struct ForwardTile<'a> {
    pub(super) write: &'a [f32],
    pub(super) streams: &'a mut [f32],
    pub(super) inverse_rms: &'a mut [f32],
    pub(super) drift: &'a mut [f32],
    pub(super) numbers: &'a mut [f32],
    /// The gates, if the junction before opened them.
    pub(super) opened: Option<&'a Opened>,
    /// The number of the tile's first token.
    pub(super) first: usize,
    pub(super) answer: &'a mut [f32],
}

simd! {
    /// Writes, then reads. With a rule, also opens the gates of the next write.
    pub(super) fn forward_tile(
        shape: &Shape,
        junction: Junction,
        params: Params<'_>,
        rule: Option<Rule<'_>>,
        quota: Quota,
        tile: ForwardTile<'_>,
    ) -> (Saved, Option<Opened>) {
        let ForwardTile { write, streams, inverse_rms, drift, numbers, opened, first, answer } = tile;
        let saved = if junction.gates {
            let gates = open_gates(shape, junction, params, streams, inverse_rms, numbers, opened);
            Saved::choose(quota, &gates, drift, streams, shape.width)
        } else {
            Saved::default()
        };
        let runs = opened.map_or(&[][..], |opened| &opened.runs);
        let mut next = rule.map(|rule| (rule, Opened::default()));
        let tokens = streams
            .chunks_exact_mut(shape.slots * shape.width)
            .zip(inverse_rms.chunks_exact_mut(shape.slots))
            .zip(numbers.chunks_exact_mut(junction.numbers()))
            .zip(write.chunks_exact(shape.width))
            .zip(answer.chunks_exact_mut(shape.width))
            .enumerate();
        for (t, ((((streams, inverse_rms), numbers), write), answer)) in tokens {
            let streams = &mut streams[..junction.after * shape.width];
            let mut numbers = Numbers::split(numbers, junction);
            if !junction.gates {
                append(shape, params, write, streams, inverse_rms, &mut numbers);
            } else if runs.get(t) == Some(&false) {
                // Not even with a gate of zero: the write may be no number.
                score(params.pool_query, streams, inverse_rms, numbers.scores);
            } else {
                lerp(shape, params, write, streams, inverse_rms, &mut numbers);
            }
            read(shape, junction, params, streams, numbers, answer);
            if let Some((rule, next)) = &mut next {
                open_next(shape, params, *rule, first + t, streams, inverse_rms, next);
            }
        }
        (saved, next.map(|(_, opened)| opened))
    }
}

/// Opens all gates of the tile, before any stream changes, unless that is done. Returns the gate of every
/// row.
#[inline(always)]
fn open_gates(
    shape: &Shape,
    junction: Junction,
    params: Params<'_>,
    streams: &[f32],
    inverse_rms: &[f32],
    numbers: &mut [f32],
    opened: Option<&Opened>,
) -> Vec<f32> {
    let mut gates = Vec::with_capacity(inverse_rms.len());
    let tokens = streams
        .chunks_exact(shape.slots * shape.width)
        .zip(inverse_rms.chunks_exact(shape.slots))
        .zip(numbers.chunks_exact_mut(junction.numbers()))
        .enumerate();
    for (t, ((streams, inverse_rms), numbers)) in tokens {
        let numbers = Numbers::split(numbers, junction);
        numbers.rms_before.copy_from_slice(inverse_rms);
        if let Some(opened) = opened {
            let row = t * shape.slots..(t + 1) * shape.slots;
            numbers.gate_scores.copy_from_slice(&opened.scores[row.clone()]);
            numbers.gates.copy_from_slice(&opened.gates[row]);
        } else {
            score(params.gate_query, streams, inverse_rms, numbers.gate_scores);
            shape.gate.open(numbers.gate_scores, params.gate_bias, numbers.gates);
        }
        gates.extend_from_slice(numbers.gates);
    }
    gates
}

/// Opens the gates of a token's next write, and decides whether it will be made.
#[inline(always)]
fn open_next(
    shape: &Shape,
    params: Params<'_>,
    rule: Rule<'_>,
    token: usize,
    streams: &[f32],
    inverse_rms: &[f32],
    next: &mut Opened,
) {
    let start = next.scores.len();
    next.scores.resize(start + shape.slots, 0.0);
    next.gates.resize(start + shape.slots, 0.0);
    let (scores, gates) = (&mut next.scores[start..], &mut next.gates[start..]);
    score(params.next_query, streams, inverse_rms, scores);
    shape.gate.open(scores, params.next_bias, gates);
    next.runs.push(rule.decide(token, gates));
}

/// `query . rms(s_i)` of the first streams, as many as there are scores.
#[inline(always)]
pub(super) fn score(query: &[f32], streams: &[f32], inverse_rms: &[f32], scores: &mut [f32]) {
    let streams = streams.chunks_exact(query.len()).zip(inverse_rms);
    for (score, (stream, r)) in scores.iter_mut().zip(streams) {
        *score = r * dot(stream, query);
    }
}

/// Moves all streams of a token towards the write, and scores them for the reader on the way.
#[inline(always)]
pub(super) fn lerp(
    shape: &Shape,
    params: Params<'_>,
    write: &[f32],
    streams: &mut [f32],
    inverse_rms: &mut [f32],
    numbers: &mut Numbers<'_>,
) {
    let gates = streams.chunks_exact_mut(shape.width).zip(&*numbers.gates);
    let scores = inverse_rms.iter_mut().zip(numbers.scores.iter_mut());
    for ((stream, beta), (r, score)) in gates.zip(scores) {
        let (squares, product) = lerp_square_and_dot(stream, *beta, write, params.pool_query);
        *r = shape.inverse_rms(squares);
        *score = *r * product;
    }
}

/// Makes the write of a token its last stream, and scores all for the reader.
#[inline(always)]
pub(super) fn append(
    shape: &Shape,
    params: Params<'_>,
    write: &[f32],
    streams: &mut [f32],
    inverse_rms: &mut [f32],
    numbers: &mut Numbers<'_>,
) {
    let last = streams.len() / shape.width - 1;
    streams[last * shape.width..].copy_from_slice(write);
    inverse_rms[last] = shape.inverse_rms(dot(write, write));
    if last > 0 {
        score(params.pool_query, streams, inverse_rms, numbers.scores);
    }
}

/// Pools the scored streams of a token and normalises what is read.
#[inline(always)]
pub(super) fn read(
    shape: &Shape,
    junction: Junction,
    params: Params<'_>,
    streams: &[f32],
    numbers: Numbers<'_>,
    answer: &mut [f32],
) {
    if junction.pools() {
        numbers.weights.copy_from_slice(numbers.scores);
        softmax(numbers.weights);
    }
    pool(streams, numbers.weights, answer);
    let r = shape.inverse_rms(dot(answer, answer));
    *numbers.reading_rms = r;
    for (answer, gain) in answer.iter_mut().zip(params.gain) {
        *answer *= r * gain;
    }
}

/// `h = sum_i alpha_i s_i`, or the only stream if there are no weights.
#[inline(always)]
pub(super) fn pool(streams: &[f32], weights: &[f32], h: &mut [f32]) {
    let width = h.len();
    if weights.is_empty() {
        h.copy_from_slice(streams);
        return;
    }
    // Four streams at a time, so that the sum is rarely stored and loaded again.
    let fours = weights.chunks_exact(4).zip(streams.chunks_exact(4 * width));
    let rest = weights.len() / 4 * 4;
    h.fill(0.0);
    for (weights, streams) in fours {
        let (a, streams) = streams.split_at(width);
        let (b, streams) = streams.split_at(width);
        let (c, d) = streams.split_at(width);
        let d = &d[..width];
        for (j, h) in h.iter_mut().enumerate() {
            *h += (weights[0] * a[j] + weights[1] * b[j]) + (weights[2] * c[j] + weights[3] * d[j]);
        }
    }
    for (weight, stream) in weights[rest..].iter().zip(streams[rest * width..].chunks_exact(width))
    {
        add_scaled(h, *weight, stream);
    }
}
