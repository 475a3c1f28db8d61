//! The backward pass of a tile.

use super::MultiGate;
use super::forward::pool;
use super::layout::{Numbers, ParamGradients, Params};
use super::saved::Saved;
use super::sums::{REGISTER, dot_difference};
use crate::simd::{add_scaled, dot, prefetch_behind, total};
use crate::streams::decision::Rule;
use crate::streams::driver::Backward;
use std::array::from_fn;

/// One token's part of a tile.
struct Token<'a> {
    write: &'a [f32],
    /// Only those present after the write.
    streams: &'a mut [f32],
    d_streams: &'a mut [f32],
    inverse_rms: &'a mut [f32],
    numbers: Numbers<'a>,
    d_write: &'a mut [f32],
    /// How far the next token's streams are: they are asked for while this one's are worked on.
    next: usize,
}

impl MultiGate {
    /// Goes back through the read, then through the write, which obeyed the rule of the junction before.
    #[inline(always)]
    pub(super) fn backward_tile(&self, params: &Params<'_>, tile: Backward<'_, Saved>) {
        let (shape, junction, width) = (&self.shape, params.junction, self.shape.width);
        let site = tile.junction.checked_sub(1);
        let rule = site.and_then(|site| Rule::of(&self.skip, shape.junction(site).decides, site));
        let mut d_params = ParamGradients::split(tile.d_params, shape, junction);
        let (mut h, mut g) = (vec![0.0; width], vec![0.0; width]);
        let mut d_scores = vec![0.0; junction.after];
        let mut gates = vec![0.0; if rule.is_some() { junction.after } else { 0 }];
        let mut saved = tile.kept.iter(width).peekable();
        let mut writes = tile.write.chunks_exact(width);
        let [streams, inverse_rms, ..] = tile.state;
        let ([d_streams, ..], [numbers, ..]) = (tile.gradient, tile.record);
        let tokens = (streams.chunks_exact_mut(shape.slots * width))
            .zip(d_streams.chunks_exact_mut(shape.slots * width))
            .zip(inverse_rms.chunks_exact_mut(shape.slots))
            .zip(numbers.chunks_exact_mut(junction.numbers()))
            .zip(tile.d_output.chunks_exact(width))
            .zip(tile.d_write.chunks_exact_mut(width))
            .enumerate();
        for (t, (((((streams, d_streams), inverse_rms), numbers), d_output), d_write)) in tokens {
            let mut token = Token {
                write: writes.next().unwrap_or_default(),
                streams: &mut streams[..junction.after * width],
                d_streams: &mut d_streams[..junction.after * width],
                inverse_rms,
                numbers: Numbers::split(numbers, junction),
                d_write,
                next: shape.slots * width,
            };
            pool(token.streams, token.numbers.weights, &mut h);
            let r = *token.numbers.reading_rms;
            back_through_norm(params.gain, &h, r, d_output, &mut g, d_params.gain);
            if junction.pools() {
                back_through_softmax(token.streams, token.numbers.weights, &g, &mut d_scores);
            }
            if !junction.gates {
                undo_append(params, &mut token, &g, &d_scores, &mut d_params);
                continue;
            }
            let saved = |i| saved.next_if(|(row, _)| *row == t * shape.slots + i);
            if tile.before.runs.get(t) == Some(&false) {
                undo_nothing(params, &mut token, &g, &d_scores, saved, &mut d_params);
                continue;
            }
            undo_lerps(params, &mut token, &g, &mut d_scores, saved, &mut d_params);
            let opened = match rule {
                Some(rule) => {
                    // Cheaper than to keep them next to what is left of them.
                    shape.gate.open(token.numbers.gate_scores, params.gate_bias, &mut gates);
                    rule.backward(&gates, &mut d_scores);
                    &*gates
                }
                None => token.numbers.gates,
            };
            shape.gate.backward(opened, &mut d_scores, d_params.gate_bias);
            undo_gates(params, &mut token, &d_scores, &mut d_params);
        }
    }
}

/// Goes back through the reading, then hands the last stream's gradient to the write it was.
#[inline(always)]
fn undo_append(
    params: &Params<'_>,
    token: &mut Token<'_>,
    g: &[f32],
    d_scores: &[f32],
    d_params: &mut ParamGradients<'_>,
) {
    let width = g.len();
    if params.pool_query.is_empty() {
        add_scaled(token.d_streams, 1.0, g);
    } else {
        undo_reading(params, token, g, d_scores, d_params);
    }
    let last = token.d_streams.len() - width;
    token.d_write.copy_from_slice(&token.d_streams[last..]);
}

/// Goes back through the reading alone: the token did not write.
#[inline(always)]
fn undo_nothing<'s>(
    params: &Params<'_>,
    token: &mut Token<'_>,
    g: &[f32],
    d_scores: &[f32],
    mut saved: impl FnMut(usize) -> Option<(usize, &'s [f32])>,
    d_params: &mut ParamGradients<'_>,
) {
    undo_reading(params, token, g, d_scores, d_params);
    token.d_write.fill(0.0);
    for (i, stream) in token.streams.chunks_exact_mut(g.len()).enumerate() {
        // Whatever later writes did to it when they were undone, it counts as exact from here on.
        if let Some((_, before)) = saved(i) {
            stream.copy_from_slice(before);
        }
    }
}

/// Goes back through a reading of several streams.
#[inline(always)]
fn undo_reading(
    params: &Params<'_>,
    token: &mut Token<'_>,
    g: &[f32],
    d_scores: &[f32],
    d_params: &mut ParamGradients<'_>,
) {
    let width = g.len();
    let rows = token.streams.chunks_exact(width).zip(token.d_streams.chunks_exact_mut(width));
    for (i, (stream, d_stream)) in rows.enumerate() {
        prefetch_behind(stream, token.next);
        prefetch_behind(d_stream, token.next);
        let (weight, score) = (token.numbers.weights[i], token.numbers.scores[i]);
        let slope = Slope::of(score, d_scores[i], token.inverse_rms[i], width);
        let d_query = &mut *d_params.pool_query;
        back_through_pool(weight, slope, g, params.pool_query, stream, d_stream, d_query);
    }
}

/// Goes back through the reading and the write of all streams, up to the gates, whose gradient
/// replaces that of the reader's scores.
#[inline(always)]
fn undo_lerps<'s>(
    params: &Params<'_>,
    token: &mut Token<'_>,
    g: &[f32],
    d_scores: &mut [f32],
    mut saved: impl FnMut(usize) -> Option<(usize, &'s [f32])>,
    d_params: &mut ParamGradients<'_>,
) {
    let (width, f) = (g.len(), token.write);
    token.d_write.fill(0.0);
    let rows = token.streams.chunks_exact_mut(width).zip(token.d_streams.chunks_exact_mut(width));
    for (i, (stream, d_stream)) in rows.enumerate() {
        prefetch_behind(stream, token.next);
        prefetch_behind(d_stream, token.next);
        let slope = Slope::of(token.numbers.scores[i], d_scores[i], token.inverse_rms[i], width);
        let lerp = Lerp { weight: token.numbers.weights[i], slope, gate: token.numbers.gates[i] };
        let (d_query, d_write) = (&mut *d_params.pool_query, &mut *token.d_write);
        d_scores[i] = lerp.undo(g, params.pool_query, f, stream, d_stream, d_query, d_write);
        if let Some((_, before)) = saved(i) {
            stream.copy_from_slice(before);
            d_scores[i] = dot_difference(d_stream, f, stream);
        }
    }
}

/// Goes back to the streams before the write, from their gates' scores and from what they kept of
/// themselves.
#[inline(always)]
fn undo_gates(
    params: &Params<'_>,
    token: &mut Token<'_>,
    d_scores: &[f32],
    d_params: &mut ParamGradients<'_>,
) {
    let width = params.gate_query.len();
    token.inverse_rms.copy_from_slice(token.numbers.rms_before);
    let rows = token.streams.chunks_exact(width).zip(token.d_streams.chunks_exact_mut(width));
    for (i, (stream, d_stream)) in rows.enumerate() {
        let (score, keep) = (token.numbers.gate_scores[i], 1.0 - token.numbers.gates[i]);
        let slope = Slope::of(score, d_scores[i], token.inverse_rms[i], width);
        back_through_gate(keep, slope, params.gate_query, stream, d_stream, d_params.gate_query);
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
    d_output: &[f32],
    g: &mut [f32],
    d_gain: &mut [f32],
) {
    let width = gain.len();
    let (h, d_output, g, d_gain) =
        (&h[..width], &d_output[..width], &mut g[..width], &mut d_gain[..width]);
    for j in 0..width {
        g[j] = r * d_output[j] * gain[j];
        d_gain[j] += r * d_output[j] * h[j];
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

/// A gated write into one stream, and the reading after it.
#[derive(Clone, Copy)]
struct Lerp {
    /// alpha.
    weight: f32,
    /// Of the reader's score.
    slope: Slope,
    /// beta.
    gate: f32,
}

impl Lerp {
    /// Goes back through the reading like [`back_through_pool`], takes the stream back to what it was
    /// before the write, and adds what the write gets. Returns the gradient of the gate.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn undo(
        self,
        g: &[f32],
        query: &[f32],
        f: &[f32],
        stream: &mut [f32],
        d_stream: &mut [f32],
        d_query: &mut [f32],
        d_write: &mut [f32],
    ) -> f32 {
        let whole = g.len() / REGISTER * REGISTER;
        let (stream, stream_rest) = stream.split_at_mut(whole);
        let (d_stream, d_stream_rest) = d_stream.split_at_mut(whole);
        let (d_query, d_query_rest) = d_query.split_at_mut(whole);
        let (d_write, d_write_rest) = d_write.split_at_mut(whole);
        let (inputs, rest) =
            ([g, query, f].map(|x| &x[..whole]), [g, query, f].map(|x| &x[whole..]));
        let sums = self.undo_lanes::<REGISTER>(inputs, stream, d_stream, d_query, d_write);
        let [sum] =
            self.undo_lanes::<1>(rest, stream_rest, d_stream_rest, d_query_rest, d_write_rest);
        total(sums) + sum
    }

    /// [`Lerp::undo`] for a whole number of lanes, with a partial sum for each.
    #[inline(always)]
    fn undo_lanes<const N: usize>(
        self,
        [g, query, f]: [&[f32]; 3],
        stream: &mut [f32],
        d_stream: &mut [f32],
        d_query: &mut [f32],
        d_write: &mut [f32],
    ) -> [f32; N] {
        let Self { weight, slope: Slope { along_query, along_stream }, gate } = self;
        let away = gate / (1.0 - gate);
        let inputs = g.as_chunks::<N>().0.iter().zip(query.as_chunks::<N>().0);
        let inputs = inputs.zip(f.as_chunks::<N>().0);
        let streams = stream.as_chunks_mut::<N>().0.iter_mut().zip(d_stream.as_chunks_mut::<N>().0);
        let sums = d_query.as_chunks_mut::<N>().0.iter_mut().zip(d_write.as_chunks_mut::<N>().0);
        let mut d_gate = [0.0; N];
        for ((((g, query), f), (s, d_s)), (d_query, d_write)) in inputs.zip(streams).zip(sums) {
            // All loads before all stores, or the compiler fears that they overlap.
            let d: [f32; N] = from_fn(|j| {
                d_s[j] + (weight * g[j] + (along_query * query[j] - along_stream * s[j]))
            });
            let before: [f32; N] = from_fn(|j| s[j] + away * (s[j] - f[j]));
            let d_query_sum: [f32; N] = from_fn(|j| d_query[j] + along_query * s[j]);
            let d_write_sum: [f32; N] = from_fn(|j| d_write[j] + gate * d[j]);
            for j in 0..N {
                d_gate[j] += d[j] * (f[j] - before[j]);
            }
            *s = before;
            *d_s = d;
            *d_query = d_query_sum;
            *d_write = d_write_sum;
        }
        d_gate
    }
}
