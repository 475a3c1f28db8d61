//! What [`AttnRes`](super::AttnRes) does with a few tokens, whose rows stay in the cache.

use super::{Pull, View};
use crate::row::{inverse_rms, normalise};
use crate::simd::{add_scaled, dot, exp};

/// Tokens of which one source is read before the next one is turned to: about a page, which is as far
/// as the processor fetches ahead.
const RUN: usize = 4;

/// Readers from which a source collects at the same time: more would be too many rows to fetch ahead.
const GROUP: usize = 4;

/// A few tokens of one reader.
pub(super) struct ReadTile<'a> {
    /// Number of the first token; rows that are not cut to the tile start at token 0.
    pub first: usize,
    /// All sources but the newest.
    pub older: &'a [View<'a>],
    /// All of the write.
    pub written: &'a [f32],
    /// What the write is added to, all of it, and the tile of the sum; otherwise the write is the
    /// newest source.
    pub join: Option<(&'a [f32], &'a mut [f32])>,
    /// Of the newest source.
    pub inverse_rms: &'a mut [f32],
    /// Empty for a mean.
    pub query: &'a [f32],
    pub gain: &'a [f32],
    pub eps: f32,
    pub logits: &'a mut [f32],
    pub weights: &'a mut [f32],
    pub output: &'a mut [f32],
}

simd! {
    /// Takes in the write and pools the sources.
    pub(super) fn read(form: Form, tile: ReadTile<'_>) {
        let width = tile.gain.len();
        let (tokens, count) = (tile.inverse_rms.len(), tile.older.len() + 1);
        let written = &tile.written[tile.first * width..][..tokens * width];
        let newest = match tile.join {
            None => written,
            Some((joined, sum)) => {
                add(sum, &joined[tile.first * width..][..tokens * width], written);
                sum
            }
        };
        let zeros = vec![0.0; if tile.query.is_empty() { width } else { 0 }];
        let query = if tile.query.is_empty() { &zeros } else { tile.query };

        let mut terms = Vec::with_capacity(count);
        for start in (0..tokens).step_by(RUN) {
            let run = start..tokens.min(start + RUN);
            for (i, source) in tile.older.iter().enumerate() {
                for t in run.clone() {
                    let token = tile.first + t;
                    let product = dot(row(source.rows, token, width), query);
                    tile.logits[t * count + i] = product * source.inverse_rms[token];
                }
            }
            for t in run.clone() {
                let newest = row(newest, t, width);
                tile.inverse_rms[t] = inverse_rms(newest, tile.eps);
                tile.logits[(t + 1) * count - 1] = dot(newest, query) * tile.inverse_rms[t];
            }
            for t in run {
                let weights = row_mut(tile.weights, t, count);
                softmax(weights, row(tile.logits, t, count));
                terms.clear();
                for (weight, source) in weights.iter().zip(tile.older) {
                    terms.push((*weight, row(source.rows, tile.first + t, width)));
                }
                terms.push((weights[count - 1], row(newest, t, width)));
                let output = row_mut(tile.output, t, width);
                output.fill(0.0);
                add_terms(output, terms.iter().copied());
                normalise(output, tile.gain, tile.eps);
            }
        }
    }
}

/// One reader of a single token.
pub(super) struct ReadOne<'a> {
    /// `[sources, width]`, the newest last.
    pub sources: &'a [f32],
    /// Of each source; that of the newest is computed here.
    pub inverse_rms: &'a mut [f32],
    pub query: &'a [f32],
    pub gain: &'a [f32],
    pub eps: f32,
    pub logits: &'a mut [f32],
    pub weights: &'a mut [f32],
    pub output: &'a mut [f32],
}

simd! {
    /// Pools the sources of a single token: the same sums as in [`read`], in the same order.
    pub(super) fn read_one(form: Form, one: ReadOne<'_>) {
        let (width, newest) = (one.gain.len(), one.logits.len() - 1);
        one.inverse_rms[newest] = inverse_rms(row(one.sources, newest, width), one.eps);
        let sources = one.sources.chunks_exact(width);
        for ((logit, source), r) in one.logits.iter_mut().zip(sources.clone()).zip(one.inverse_rms) {
            *logit = dot(source, one.query) * *r;
        }
        softmax(one.weights, one.logits);
        one.output.fill(0.0);
        add_terms(one.output, one.weights.iter().copied().zip(sources));
        normalise(one.output, one.gain, one.eps);
    }
}

simd! {
    /// `y += x`.
    pub(super) fn add_to(form: Form, y: &mut [f32], x: &[f32]) {
        add_scaled(y, 1.0, x);
    }
}

/// A few tokens of the way back through one reader.
pub(super) struct PullTile<'a> {
    /// Number of the first token.
    pub first: usize,
    pub sources: &'a [View<'a>],
    pub gain: &'a [f32],
    pub eps: f32,
    pub weights: &'a [f32],
    /// Gradient of the output.
    pub d_output: &'a [f32],
    /// Of the pooled rows.
    pub gradient: &'a mut [f32],
    pub slopes: &'a mut [f32],
    /// This tile's part; empty for a mean.
    pub d_query: &'a mut [f32],
    /// This tile's part.
    pub d_gain: &'a mut [f32],
}

simd! {
    /// Goes back to what was pooled and to the parameters.
    pub(super) fn pull(form: Form, tile: PullTile<'_>) {
        let (width, count) = (tile.gain.len(), tile.sources.len());
        let mut pooled = vec![0.0; width];
        let mut terms = Vec::with_capacity(count);
        for (t, d_output) in tile.d_output.chunks_exact(width).enumerate() {
            let token = tile.first + t;
            terms.clear();
            for (weight, source) in row(tile.weights, t, count).iter().zip(tile.sources) {
                terms.push((*weight, row(source.rows, token, width)));
            }
            pooled.fill(0.0);
            add_terms(&mut pooled, terms.iter().copied());
            let gradient = row_mut(tile.gradient, t, width);
            norm_backward(gradient, tile.d_gain, d_output, &pooled, tile.gain, tile.eps);

            let slopes = row_mut(tile.slopes, t, count);
            let mut mean = 0.0;
            for (slope, (weight, row)) in slopes.iter_mut().zip(&terms) {
                *slope = dot(gradient, row);
                mean += weight * *slope;
            }
            for ((slope, term), source) in slopes.iter_mut().zip(&mut terms).zip(tile.sources) {
                *slope = source.inverse_rms[token] * term.0 * (*slope - mean);
                term.0 = *slope;
            }
            if !tile.d_query.is_empty() {
                add_terms(tile.d_query, terms.iter().copied());
            }
        }
    }
}

/// A few tokens of the gradient of one source.
pub(super) struct CollectTile<'a> {
    /// Number of the first token.
    pub first: usize,
    pub source: View<'a>,
    /// Which source it is to its readers.
    pub position: usize,
    /// Of its readers.
    pub pulls: &'a [Pull],
    /// Whether `gradient` holds a part of the sum already.
    pub is_carried: bool,
    pub gradient: &'a mut [f32],
    /// Written too, where there is one.
    pub copy: Option<&'a mut [f32]>,
}

simd! {
    /// Adds up what the readers of a source want of it.
    pub(super) fn collect(form: Form, tile: CollectTile<'_>, width: usize) {
        let mut terms = Vec::with_capacity(2 * GROUP);
        for (run, gradients) in tile.gradient.chunks_mut(RUN * width).enumerate() {
            let first = tile.first + run * RUN;
            for (t, gradient) in gradients.chunks_exact_mut(width).enumerate() {
                let mut sum = 0.0;
                for pull in tile.pulls {
                    let at = pull.index(first + t, tile.position);
                    sum += pull.slopes[at] * pull.reading.logits[at];
                }
                if !tile.is_carried {
                    gradient.fill(0.0);
                }
                let along_source = -sum * tile.source.inverse_rms[first + t] / width as f32;
                add_scaled(gradient, along_source, row(tile.source.rows, first + t, width));
            }
            for pulls in tile.pulls.chunks(GROUP) {
                for (t, gradient) in gradients.chunks_exact_mut(width).enumerate() {
                    terms.clear();
                    for pull in pulls {
                        let at = pull.index(first + t, tile.position);
                        terms.push((pull.reading.weights[at], row(&pull.gradient, first + t, width)));
                        if !pull.query.is_empty() {
                            terms.push((pull.slopes[at], &pull.query));
                        }
                    }
                    add_terms(gradient, terms.iter().copied());
                }
            }
        }
        if let Some(copy) = tile.copy {
            copy.copy_from_slice(tile.gradient);
        }
    }
}

/// `d_x` of `gain * x / rms(x)`, and what it adds to `d_gain`.
#[inline(always)]
fn norm_backward(
    d_x: &mut [f32],
    d_gain: &mut [f32],
    d_y: &[f32],
    x: &[f32],
    gain: &[f32],
    eps: f32,
) {
    for ((d_x, d_y), gain) in d_x.iter_mut().zip(d_y).zip(gain) {
        *d_x = d_y * gain;
    }
    let scale = inverse_rms(x, eps);
    let along = dot(x, d_x) * scale * scale / x.len() as f32;
    for (((d_x, d_gain), d_y), x) in d_x.iter_mut().zip(d_gain).zip(d_y).zip(x) {
        *d_gain += d_y * x * scale;
        *d_x = scale * (*d_x - along * x);
    }
}

/// `y = a + b`.
#[inline(always)]
fn add(y: &mut [f32], a: &[f32], b: &[f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = a + b;
    }
}

/// Columns that [`add_terms`] keeps in registers.
const COLUMNS: usize = 64;

/// `y += sum_i a_i x_i`.
#[inline(always)]
fn add_terms<'a>(y: &mut [f32], terms: impl Iterator<Item = (f32, &'a [f32])> + Clone) {
    let mut chunks = y.chunks_exact_mut(COLUMNS);
    let mut start = 0;
    for y in &mut chunks {
        let mut sums = [0.0; COLUMNS];
        for (a, x) in terms.clone() {
            let x = &x[start..start + COLUMNS];
            for j in 0..COLUMNS {
                sums[j] += a * x[j];
            }
        }
        for j in 0..COLUMNS {
            y[j] += sums[j];
        }
        start += COLUMNS;
    }
    let rest = chunks.into_remainder();
    for (a, x) in terms {
        add_scaled(rest, a, &x[start..]);
    }
}

/// `weights = softmax(logits)`.
#[inline(always)]
fn softmax(weights: &mut [f32], logits: &[f32]) {
    let most = logits.iter().fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
    for (weight, logit) in weights.iter_mut().zip(logits) {
        *weight = exp(logit - most);
    }
    let sum: f32 = weights.iter().sum();
    for weight in weights {
        *weight /= sum;
    }
}

/// The row of a token.
#[inline(always)]
fn row(rows: &[f32], index: usize, width: usize) -> &[f32] {
    &rows[index * width..][..width]
}

/// The row of a token, to be written.
#[inline(always)]
fn row_mut(rows: &mut [f32], index: usize, width: usize) -> &mut [f32] {
    &mut rows[index * width..][..width]
}
