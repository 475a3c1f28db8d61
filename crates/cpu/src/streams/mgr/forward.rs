//! The forward pass of a tile.

use super::MultiGate;
use super::gate::softmax;
use super::layout::{Numbers, Params, Shape};
use super::saved::{Quota, Saved, Writes};
use super::sums::lerp_square_and_dot;
use crate::pieces::{load, store};
use crate::simd::dot;
use crate::streams::decision::Rule;
use crate::streams::driver::Forward;

impl MultiGate {
    /// Writes, then reads. Where the junction decides, also opens the gates of the next write.
    #[inline(always)]
    pub(super) fn forward_tile(&self, params: &Params<'_>, tile: Forward<'_, Saved>) {
        let (shape, junction) = (&self.shape, params.junction);
        let [streams, inverse_rms, drift, _] = tile.state;
        let [numbers, next_scores, next_gates, _] = tile.record;
        if tile.junction == 0 {
            drift.fill(0.0);
        }
        if junction.gates {
            let [_, scores, gates, _] = tile.before.record;
            open_gates(shape, params, streams, inverse_rms, numbers, [scores, gates]);
        }
        let skips = |token: usize| tile.before.runs.get(token) == Some(&false);
        if junction.gates && tile.keep {
            let rows = tile.first * shape.slots;
            let quota = self.memory.saving().quota(rows..rows + drift.len());
            let gates = numbers.chunks_exact(junction.numbers());
            let gates: Vec<f32> =
                gates.flat_map(|token| junction.gates_of(token)).copied().collect();
            let sizes: Vec<f32> = match quota {
                Quota::Everything => Vec::new(),
                Quota::Widest(_) => {
                    let writes = tile.write.chunks_exact(shape.width).enumerate();
                    writes.map(|(t, write)| if skips(t) { 0.0 } else { rms(write) }).collect()
                }
            };
            let writes = Writes { gates: &gates, inverse_rms, sizes: &sizes };
            *tile.kept = Saved::choose(quota, writes, drift, streams, shape.width);
        }
        let rule = Rule::of(&self.skip, junction.decides, tile.junction);
        let mut next = next_scores
            .chunks_exact_mut(shape.slots)
            .zip(next_gates.chunks_exact_mut(shape.slots))
            .zip(tile.runs);
        let tokens = streams
            .chunks_exact_mut(shape.slots * shape.width)
            .zip(inverse_rms.chunks_exact_mut(shape.slots))
            .zip(numbers.chunks_exact_mut(junction.numbers()))
            .zip(tile.write.chunks_exact(shape.width))
            .zip(tile.output.chunks_exact_mut(shape.width))
            .enumerate();
        for (t, ((((streams, inverse_rms), numbers), write), output)) in tokens {
            let streams = &mut streams[..junction.after * shape.width];
            let mut numbers = Numbers::split(numbers, junction);
            if !junction.gates {
                append(shape, params, write, streams, inverse_rms, &mut numbers);
            } else if skips(t) {
                // Not even with a gate of zero: the write may be no number.
                score(params.pool_query, streams, inverse_rms, numbers.scores);
            } else {
                lerp(shape, params, write, streams, inverse_rms, &mut numbers);
            }
            read(shape, params, streams, numbers, output);
            if let Some((rule, ((scores, gates), runs))) = rule.zip(next.next()) {
                score(params.next_query, streams, inverse_rms, scores);
                shape.gate.open(scores, params.next_bias, gates);
                *runs = rule.decide(tile.first + t, gates);
            }
        }
    }
}

/// `sqrt(mean(x^2))`.
#[inline(always)]
fn rms(x: &[f32]) -> f32 {
    (dot(x, x) / x.len() as f32).sqrt()
}

/// Opens all gates of the tile, before any stream changes, unless the junction before did: then `opened` are their scores
/// and gates.
#[inline(always)]
fn open_gates(
    shape: &Shape,
    params: &Params<'_>,
    streams: &[f32],
    inverse_rms: &[f32],
    numbers: &mut [f32],
    opened: [&[f32]; 2],
) {
    let mut opened = opened.map(|opened| opened.chunks_exact(shape.slots));
    let tokens = streams
        .chunks_exact(shape.slots * shape.width)
        .zip(inverse_rms.chunks_exact(shape.slots))
        .zip(numbers.chunks_exact_mut(params.junction.numbers()));
    for ((streams, inverse_rms), numbers) in tokens {
        let numbers = Numbers::split(numbers, params.junction);
        numbers.rms_before.copy_from_slice(inverse_rms);
        if let [Some(scores), Some(gates)] = opened.each_mut().map(Iterator::next) {
            numbers.gate_scores.copy_from_slice(scores);
            numbers.gates.copy_from_slice(gates);
        } else {
            score(params.gate_query, streams, inverse_rms, numbers.gate_scores);
            shape.gate.open(numbers.gate_scores, params.gate_bias, numbers.gates);
        }
    }
}

/// `query . rms(s_i)` of the first streams, as many as there are scores.
#[inline(always)]
fn score(query: &[f32], streams: &[f32], inverse_rms: &[f32], scores: &mut [f32]) {
    let streams = streams.chunks_exact(query.len()).zip(inverse_rms);
    for (score, (stream, r)) in scores.iter_mut().zip(streams) {
        *score = r * dot(stream, query);
    }
}

/// Moves all streams of a token towards the write, and scores them for the reader on the way.
#[inline(always)]
fn lerp(
    shape: &Shape,
    params: &Params<'_>,
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
fn append(
    shape: &Shape,
    params: &Params<'_>,
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
fn read(
    shape: &Shape,
    params: &Params<'_>,
    streams: &[f32],
    numbers: Numbers<'_>,
    output: &mut [f32],
) {
    if params.junction.pools() {
        numbers.weights.copy_from_slice(numbers.scores);
        softmax(numbers.weights);
    }
    pool(streams, numbers.weights, output);
    let r = shape.inverse_rms(dot(output, output));
    *numbers.reading_rms = r;
    for (output, gain) in output.iter_mut().zip(params.gain) {
        *output *= r * gain;
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
    pieces!(width, |at| {
        let stream = |i: usize| load::<N>(streams, i * width + at);
        let mut sum = [0.0; N];
        let mut fours = weights.chunks_exact(4);
        for (i, w) in fours.by_ref().enumerate() {
            let (a, b, c, d) =
                (stream(4 * i), stream(4 * i + 1), stream(4 * i + 2), stream(4 * i + 3));
            for j in 0..N {
                sum[j] += (w[0] * a[j] + w[1] * b[j]) + (w[2] * c[j] + w[3] * d[j]);
            }
        }
        let rest = weights.len() / 4 * 4;
        for (i, weight) in fours.remainder().iter().enumerate() {
            let stream = stream(rest + i);
            for j in 0..N {
                sum[j] += weight * stream[j];
            }
        }
        store(h, at, sum);
    });
}
