//! What the delta form does with a few tokens, whose rows stay in the cache.

use super::super::View;
use super::super::shape::{Shape, row, row_mut};
use super::super::tile::{RUN, add_heads, norm_backward};
use super::Params;
use crate::row::{inverse_rms, normalise};
use crate::simd::{add_scaled, dot, prefetch_behind};

/// A few tokens of one reader.
pub(super) struct DeltaReadTile<'a> {
    pub shape: Shape,
    /// Number of the first token; sources are not cut to the tile.
    pub first: usize,
    /// All sources but the one that is finished here.
    pub older: &'a [View<'a>],
    pub written: &'a [f32],
    /// Whether there is no stream yet.
    pub is_first: bool,
    pub stream: &'a mut [f32],
    /// What the write is added to, unless `sum` holds it.
    pub joined: Option<&'a [f32]>,
    /// The block's sum, if it has several writes.
    pub sum: Option<&'a mut [f32]>,
    /// Of the source that is finished here.
    pub inverse_rms: Option<&'a mut [f32]>,
    /// Where the reader pools.
    pub asked: Option<Asked<'a>>,
    pub gain: &'a [f32],
    pub eps: f32,
    /// What is read, if it is kept.
    pub h: Option<&'a mut [f32]>,
    pub output: &'a mut [f32],
}

/// A pool.
pub(super) struct Asked<'a> {
    /// Empty for a mean.
    pub query: &'a [f32],
    pub gate: f32,
    pub logits: &'a mut [f32],
    pub weights: &'a mut [f32],
}

simd! {
    /// Takes in the write and reads the stream with a pool of the sources.
    pub(super) fn read(form: Form, tile: DeltaReadTile<'_>) {
        let mut tile = tile;
        let (shape, width) = (tile.shape, tile.gain.len());
        let tokens = tile.written.len() / width;
        if tile.is_first {
            tile.stream.copy_from_slice(tile.written);
        } else {
            add_scaled(tile.stream, 1.0, tile.written);
        }
        let newest = match tile.sum {
            None => tile.written,
            Some(sum) => {
                if let Some(joined) = tile.joined {
                    sum.copy_from_slice(joined);
                }
                add_scaled(sum, 1.0, tile.written);
                sum
            }
        };
        if let Some(scales) = &mut tile.inverse_rms {
            for (scale, newest) in scales.iter_mut().zip(newest.chunks_exact(width)) {
                *scale = inverse_rms(newest, tile.eps);
            }
        }
        match tile.asked {
            None => tile.output.copy_from_slice(tile.stream),
            Some(asked) => {
                let count = tile.older.len() + usize::from(tile.inverse_rms.is_some());
                let each = shape.heads * count;
                let zeros = vec![0.0; if asked.query.is_empty() { width } else { 0 }];
                let query = if asked.query.is_empty() { &zeros } else { asked.query };
                let mut rows = Vec::with_capacity(count);
                let mut terms = Vec::with_capacity(count);
                for start in (0..tokens).step_by(RUN) {
                    let run = start..tokens.min(start + RUN);
                    for (i, source) in tile.older.iter().enumerate() {
                        for t in run.clone() {
                            let logits = &mut row_mut(asked.logits, t, each)[i..];
                            let values = row(source.rows, tile.first + t, width);
                            prefetch_behind(values, RUN * width);
                            let r = source.inverse_rms[tile.first + t];
                            shape.ask(logits, count, values, query, r);
                        }
                    }
                    if let Some(scales) = &tile.inverse_rms {
                        for t in run.clone() {
                            let logits = &mut row_mut(asked.logits, t, each)[count - 1..];
                            shape.ask(logits, count, row(newest, t, width), query, scales[t]);
                        }
                    }
                    for t in run {
                        let weights = row_mut(asked.weights, t, each);
                        shape.weigh(weights, row(asked.logits, t, each), std::iter::empty());
                        rows.clear();
                        let older = tile.older.iter();
                        rows.extend(older.map(|source| row(source.rows, tile.first + t, width)));
                        if tile.inverse_rms.is_some() {
                            rows.push(row(newest, t, width));
                        }
                        let output = row_mut(tile.output, t, width);
                        output.fill(0.0);
                        shape.add_pool(output, weights, &rows, &mut terms);
                        add_stream(output, asked.gate, row(tile.stream, t, width));
                    }
                }
            }
        }
        if let Some(h) = tile.h {
            h.copy_from_slice(tile.output);
        }
        for output in tile.output.chunks_exact_mut(width) {
            normalise(output, tile.gain, tile.eps);
        }
    }
}

/// One reader of a single token.
pub(in crate::streams::attnres) struct ReadOneDelta<'a> {
    pub shape: Shape,
    pub params: Params<'a>,
    pub eps: f32,
    pub write: &'a [f32],
    /// Zero before the embedding.
    pub stream: &'a mut [f32],
    /// Zero at the beginning of a block.
    pub open: &'a mut [f32],
    /// `[sources, width]`, with room for the one that is finished here.
    pub sources: &'a mut [f32],
    pub inverse_rms: &'a mut [f32],
    pub closes: bool,
    /// `[heads, sources]`; empty where the reader does not pool.
    pub logits: &'a mut [f32],
    pub weights: &'a mut [f32],
    pub output: &'a mut [f32],
}

simd! {
    /// The same sums as in [`read`] for a single token, in the same order.
    pub(in crate::streams::attnres) fn read_one_delta(form: Form, one: ReadOneDelta<'_>) {
        let Params { gate, query, gain } = one.params;
        let (shape, width, count) = (one.shape, gain.len(), one.inverse_rms.len());
        add_scaled(one.stream, 1.0, one.write);
        add_scaled(one.open, 1.0, one.write);
        if one.closes {
            one.inverse_rms[count - 1] = inverse_rms(one.open, one.eps);
            row_mut(one.sources, count - 1, width).copy_from_slice(one.open);
        }
        if one.logits.is_empty() {
            one.output.copy_from_slice(one.stream);
        } else {
            let sources = one.sources.chunks_exact(width);
            for (i, (source, r)) in sources.clone().zip(one.inverse_rms.iter()).enumerate() {
                shape.ask(&mut one.logits[i..], count, source, query, *r);
            }
            shape.weigh(one.weights, one.logits, std::iter::empty());
            one.output.fill(0.0);
            shape.add_pool_of_one(one.output, one.weights, sources);
            add_stream(one.output, gate, one.stream);
        }
        normalise(one.output, gain, one.eps);
    }
}

/// `y = x + gate y`.
#[inline(always)]
fn add_stream(y: &mut [f32], gate: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x + gate * *y;
    }
}

/// A few tokens of the way back through one reader.
pub(super) struct DeltaPullTile<'a> {
    pub shape: Shape,
    /// Number of the first token; sources are not cut to the tile.
    pub first: usize,
    pub sources: &'a [View<'a>],
    pub gain: &'a [f32],
    pub eps: f32,
    /// What was read.
    pub h: &'a [f32],
    /// Gradient of the output.
    pub d_output: &'a [f32],
    /// Whether `d_stream` was not written yet.
    pub is_first: bool,
    /// To be added to.
    pub d_stream: &'a mut [f32],
    /// Where the reader pooled.
    pub pulled: Option<Pulled<'a>>,
    /// This tile's part.
    pub d_gain: &'a mut [f32],
}

/// The tables of a [`Pull`](super::Pull).
pub(super) struct Pulled<'a> {
    pub gate: f32,
    pub slopes: &'a mut [f32],
    /// As they were; afterwards times the gate.
    pub weights: &'a mut [f32],
    /// The logits; afterwards how far sources are pulled along themselves.
    pub turns: &'a mut [f32],
    /// Of what was read.
    pub gradient: &'a mut [f32],
    /// This tile's part; empty where there is no gate.
    pub d_gate: &'a mut [f32],
    /// This tile's part; empty for a mean.
    pub d_query: &'a mut [f32],
}

simd! {
    /// Goes back to the stream, to what was pooled and to the parameters.
    pub(super) fn pull(form: Form, tile: DeltaPullTile<'_>) {
        let mut tile = tile;
        let (shape, width, count) = (tile.shape, tile.gain.len(), tile.sources.len());
        let mut alone = vec![0.0; if tile.pulled.is_none() { width } else { 0 }];
        let mut rows = Vec::with_capacity(count);
        let mut terms = Vec::with_capacity(count);
        for (t, d_output) in tile.d_output.chunks_exact(width).enumerate() {
            let gradient = match &mut tile.pulled {
                Some(pulled) => row_mut(pulled.gradient, t, width),
                None => &mut alone,
            };
            let h = row(tile.h, t, width);
            norm_backward(gradient, tile.d_gain, d_output, h, tile.gain, tile.eps);
            let d_stream = row_mut(tile.d_stream, t, width);
            if tile.is_first {
                d_stream.copy_from_slice(gradient);
            } else {
                add_scaled(d_stream, 1.0, gradient);
            }
            if let Some(pulled) = &mut tile.pulled {
                let token = tile.first + t;
                rows.clear();
                rows.extend(tile.sources.iter().map(|source| row(source.rows, token, width)));
                let scales = tile.sources.iter().map(|source| source.inverse_rms[token]);
                pull_sources(shape, t, &rows, scales, pulled, &mut terms);
            }
        }
    }
}

/// What one token wants of its sources, query and gate.
#[inline(always)]
fn pull_sources<'a>(
    shape: Shape,
    t: usize,
    rows: &[&'a [f32]],
    scales: impl Iterator<Item = f32> + Clone,
    pulled: &mut Pulled<'_>,
    terms: &mut Vec<(f32, &'a [f32])>,
) {
    let (group, count) = (shape.group(), rows.len());
    let each = shape.heads * count;
    let gradient = row(pulled.gradient, t, shape.width);
    let slopes = row_mut(pulled.slopes, t, each);
    let weights = row_mut(pulled.weights, t, each);
    let turns = row_mut(pulled.turns, t, each);
    for head in 0..shape.heads {
        let gradient = row(gradient, head, group);
        let slopes = row_mut(slopes, head, count);
        let weights = row_mut(weights, head, count);
        let mut mean = 0.0;
        for ((slope, weight), source) in slopes.iter_mut().zip(weights.iter()).zip(rows) {
            prefetch_behind(row(source, head, group), RUN * shape.width);
            *slope = dot(gradient, row(source, head, group));
            mean += weight * *slope;
        }
        for d_gate in pulled.d_gate.iter_mut() {
            *d_gate += mean;
        }
        terms.clear();
        let tables = slopes.iter_mut().zip(weights).zip(row_mut(turns, head, count));
        for (((slope, weight), turn), (r, source)) in tables.zip(scales.clone().zip(rows)) {
            *weight *= pulled.gate;
            *slope = r * *weight * (*slope - mean);
            *turn *= *slope;
            terms.push((*slope, row(source, head, group)));
        }
        if !pulled.d_query.is_empty() {
            shape.add_terms(row_mut(pulled.d_query, head, group), terms.iter().copied());
        }
    }
    add_heads(turns, count);
}

simd! {
    /// `y = a + b`.
    pub(super) fn sum(form: Form, y: &mut [f32], a: &[f32], b: Option<&[f32]>) {
        y.copy_from_slice(a);
        if let Some(b) = b {
            add_scaled(y, 1.0, b);
        }
    }
}
