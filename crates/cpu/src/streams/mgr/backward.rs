//! The backward pass of a tile.

use super::forward::pool;
use super::saved::Saved;
use super::sums::{dot, dot_difference};
use super::{Junction, Numbers, ParamGradients, Params, Shape};
use crate::simd::add_scaled;

/// The part of the tensors that a tile of tokens owns.
pub(super) struct BackwardTile<'a> {
    pub(super) d_answer: &'a [f32],
    /// Empty where the junction does not gate.
    pub(super) write: &'a [f32],
    pub(super) streams: &'a mut [f32],
    pub(super) d_streams: &'a mut [f32],
    pub(super) inverse_rms: &'a mut [f32],
    pub(super) numbers: &'a mut [f32],
    pub(super) saved: &'a Saved,
    pub(super) d_write: &'a mut [f32],
}

simd! {
    /// Goes back through the read, then through the write. Adds to `d_params`; if `fresh`, the gradient
    /// of the streams is zero and was not written yet.
    pub(super) fn backward_tile(
        shape: &Shape,
        junction: Junction,
        params: Params<'_>,
        fresh: bool,
        tile: BackwardTile<'_>,
        d_params: &mut [f32],
    ) {
        let BackwardTile {
            d_answer, write, streams, d_streams, inverse_rms, numbers, saved, d_write,
        } = tile;
        let width = shape.width;
        let d_params = ParamGradients::split(d_params, shape, junction);
        let (mut h, mut g) = (vec![0.0; width], vec![0.0; width]);
        let mut d_scores = vec![0.0; junction.after];
        let mut saved = saved.iter(width).peekable();
        let tokens = streams
            .chunks_exact_mut(shape.slots * width)
            .zip(d_streams.chunks_exact_mut(shape.slots * width))
            .zip(inverse_rms.chunks_exact_mut(shape.slots))
            .zip(numbers.chunks_exact_mut(junction.numbers()))
            .zip(d_answer.chunks_exact(width))
            .zip(d_write.chunks_exact_mut(width))
            .enumerate();
        for (token, (((((streams, d_streams), inverse_rms), numbers), d_answer), d_write)) in tokens {
            let streams = &mut streams[..junction.after * width];
            let d_streams = &mut d_streams[..junction.after * width];
            let numbers = Numbers::split(numbers, junction);
            if fresh {
                d_streams.fill(0.0);
            }

            pool(streams, numbers.weights, &mut h);
            let r = *numbers.reading_rms;
            back_through_norm(params.gain, &h, r, d_answer, &mut g, d_params.gain);
            if junction.pools() {
                back_through_softmax(streams, numbers.weights, &g, &mut d_scores);
            } else {
                add_scaled(d_streams, 1.0, &g);
            }

            if !junction.gates {
                if junction.pools() {
                    for i in 0..junction.after {
                        let row = i * width..(i + 1) * width;
                        let slope = Slope::of(numbers.scores[i], d_scores[i], inverse_rms[i], width);
                        back_through_pool(
                            numbers.weights[i], slope, &g, params.pool_query, &streams[row.clone()],
                            &mut d_streams[row], d_params.pool_query,
                        );
                    }
                }
                d_write.copy_from_slice(&d_streams[junction.before * width..]);
                continue;
            }

            let f = &write[token * width..(token + 1) * width];
            d_write.fill(0.0);
            for i in 0..junction.after {
                let row = i * width..(i + 1) * width;
                let (stream, d_stream) = (&mut streams[row.clone()], &mut d_streams[row]);
                let slope = Slope::of(numbers.scores[i], d_scores[i], inverse_rms[i], width);
                back_through_pool(
                    numbers.weights[i], slope, &g, params.pool_query, stream, d_stream,
                    d_params.pool_query,
                );
                let beta = numbers.gates[i];
                match saved.next_if(|(row, _)| *row == token * shape.slots + i) {
                    Some((_, before)) => stream.copy_from_slice(before),
                    None => undo_lerp(stream, beta, f),
                }
                add_scaled(d_write, beta, d_stream);
                d_scores[i] = dot_difference(d_stream, f, stream);
            }
            shape.gate.backward(numbers.gates, &mut d_scores, d_params.gate_bias);
            for i in 0..junction.after {
                let row = i * width..(i + 1) * width;
                let r = numbers.rms_before[i];
                let slope = Slope::of(numbers.gate_scores[i], d_scores[i], r, width);
                back_through_gate(
                    1.0 - numbers.gates[i], slope, params.gate_query, &streams[row.clone()],
                    &mut d_streams[row], d_params.gate_query,
                );
                inverse_rms[i] = r;
            }
        }
    }
}

/// How a score `w . rms(s)` hands its gradient on: `ds += along_query w - along_stream s`, and
/// `dw += along_query s`.
#[derive(Clone, Copy)]
struct Slope {
    along_query: f32,
    along_stream: f32,
}

impl Slope {
    #[inline(always)]
    fn of(score: f32, d_score: f32, inverse_rms: f32, width: usize) -> Self {
        let along_query = inverse_rms * d_score;
        Self { along_query, along_stream: along_query * inverse_rms * score / width as f32 }
    }
}

/// From the gradient of `gain rms(h)` to that of h, `g`.
#[inline(always)]
fn back_through_norm(
    gain: &[f32],
    h: &[f32],
    r: f32,
    d_answer: &[f32],
    g: &mut [f32],
    d_gain: &mut [f32],
) {
    let width = gain.len();
    let (h, d_answer, g, d_gain) =
        (&h[..width], &d_answer[..width], &mut g[..width], &mut d_gain[..width]);
    for j in 0..width {
        g[j] = r * d_answer[j] * gain[j];
        d_gain[j] += r * d_answer[j] * h[j];
    }
    let along_h = dot(g, h) * r * r / width as f32;
    add_scaled(g, -along_h, h);
}

/// The gradient of the reader's scores.
#[inline(always)]
fn back_through_softmax(streams: &[f32], weights: &[f32], g: &[f32], d_scores: &mut [f32]) {
    let mut mean = 0.0;
    let rows = streams.chunks_exact(g.len()).zip(weights);
    for (d_score, (stream, weight)) in d_scores.iter_mut().zip(rows) {
        *d_score = dot(stream, g);
        mean += weight * *d_score;
    }
    for (d_score, weight) in d_scores.iter_mut().zip(weights) {
        *d_score = weight * (*d_score - mean);
    }
}

/// Adds what a stream gets from the reading.
#[inline(always)]
fn back_through_pool(
    weight: f32,
    slope: Slope,
    g: &[f32],
    query: &[f32],
    stream: &[f32],
    d_stream: &mut [f32],
    d_query: &mut [f32],
) {
    let width = query.len();
    let (g, stream) = (&g[..width], &stream[..width]);
    let (d_stream, d_query) = (&mut d_stream[..width], &mut d_query[..width]);
    for j in 0..width {
        d_stream[j] +=
            weight * g[j] + (slope.along_query * query[j] - slope.along_stream * stream[j]);
        d_query[j] += slope.along_query * stream[j];
    }
}

/// From the gradient of a stream after the write to that before it.
#[inline(always)]
fn back_through_gate(
    keep: f32,
    slope: Slope,
    query: &[f32],
    stream: &[f32],
    d_stream: &mut [f32],
    d_query: &mut [f32],
) {
    let width = query.len();
    let stream = &stream[..width];
    let (d_stream, d_query) = (&mut d_stream[..width], &mut d_query[..width]);
    for j in 0..width {
        d_stream[j] =
            keep * d_stream[j] + (slope.along_query * query[j] - slope.along_stream * stream[j]);
        d_query[j] += slope.along_query * stream[j];
    }
}

/// The stream before `s + beta (f - s)`.
#[inline(always)]
fn undo_lerp(stream: &mut [f32], beta: f32, f: &[f32]) {
    let away = beta / (1.0 - beta);
    for (s, f) in stream.iter_mut().zip(f) {
        *s += away * (*s - f);
    }
}
