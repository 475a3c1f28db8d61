//! What [`AttnRes`](super::AttnRes) does with a few tokens, whose rows stay in the cache.

use super::shape::{Shape, row, row_mut};
use super::{Pull, View};
use crate::row::{inverse_rms, normalise};
use crate::simd::{add_scaled, dot, prefetch_behind};

/// Tokens of which one source is read before the next one is turned to: about a page, which is as far
/// as the processor fetches ahead. Rows are asked for so many tokens before they are needed: one page of each source is too
/// little for the processor to see where it goes.
pub(super) const RUN: usize = 4;

/// Readers from which a source collects at the same time: more would be too many rows to fetch ahead.
const GROUP: usize = 4;

/// A few tokens of one reader.
pub(super) struct ReadTile<'a> {
    pub shape: Shape,
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
        let (shape, width) = (tile.shape, tile.gain.len());
        let (tokens, count) = (tile.inverse_rms.len(), tile.older.len() + 1);
        let each = shape.heads * count;
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

        let mut rows = Vec::with_capacity(count);
        let mut terms = Vec::with_capacity(count);
        for start in (0..tokens).step_by(RUN) {
            let run = start..tokens.min(start + RUN);
            for (i, source) in tile.older.iter().enumerate() {
                for t in run.clone() {
                    let token = tile.first + t;
                    let logits = &mut row_mut(tile.logits, t, each)[i..];
                    let source_row = row(source.rows, token, width);
                    prefetch_behind(source_row, RUN * width);
                    shape.ask(logits, count, source_row, query, source.inverse_rms[token]);
                }
            }
            for t in run.clone() {
                let newest = row(newest, t, width);
                tile.inverse_rms[t] = inverse_rms(newest, tile.eps);
                let logits = &mut row_mut(tile.logits, t, each)[count - 1..];
                shape.ask(logits, count, newest, query, tile.inverse_rms[t]);
            }
            for t in run {
                let token = tile.first + t;
                let weights = row_mut(tile.weights, t, each);
                let older = tile.older.iter().map(|source| source.inverse_rms[token]);
                let scales = older.chain([tile.inverse_rms[t]]).cycle();
                shape.weigh(weights, row(tile.logits, t, each), scales);
                rows.clear();
                rows.extend(tile.older.iter().map(|source| row(source.rows, token, width)));
                rows.push(row(newest, t, width));
                let output = row_mut(tile.output, t, width);
                output.fill(0.0);
                shape.add_pool(output, weights, &rows, &mut terms);
                normalise(output, tile.gain, tile.eps);
            }
        }
    }
}

/// One reader of a single token.
pub(super) struct ReadOne<'a> {
    pub shape: Shape,
    /// `[sources, width]`, the newest last.
    pub sources: &'a [f32],
    /// Of each source; that of the newest is computed here.
    pub inverse_rms: &'a mut [f32],
    pub query: &'a [f32],
    pub gain: &'a [f32],
    pub eps: f32,
    /// `[heads, sources]`
    pub logits: &'a mut [f32],
    pub weights: &'a mut [f32],
    pub output: &'a mut [f32],
}

simd! {
    /// Pools the sources of a single token: the same sums as in [`read`], in the same order.
    pub(super) fn read_one(form: Form, one: ReadOne<'_>) {
        let (shape, width, count) = (one.shape, one.gain.len(), one.inverse_rms.len());
        one.inverse_rms[count - 1] = inverse_rms(row(one.sources, count - 1, width), one.eps);
        let sources = one.sources.chunks_exact(width);
        for (i, (source, r)) in sources.clone().zip(one.inverse_rms.iter()).enumerate() {
            shape.ask(&mut one.logits[i..], count, source, one.query, *r);
        }
        shape.weigh(one.weights, one.logits, one.inverse_rms.iter().copied().cycle());
        one.output.fill(0.0);
        shape.add_pool_of_one(one.output, one.weights, sources);
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
    pub shape: Shape,
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
    /// The logits; afterwards see [`Pull`].
    pub turns: &'a mut [f32],
    /// This tile's part; empty for a mean.
    pub d_query: &'a mut [f32],
    /// This tile's part.
    pub d_gain: &'a mut [f32],
}

simd! {
    /// Goes back to what was pooled and to the parameters.
    pub(super) fn pull(form: Form, tile: PullTile<'_>) {
        let (shape, width, count) = (tile.shape, tile.gain.len(), tile.sources.len());
        let (group, each) = (shape.group(), shape.heads * count);
        let mut pooled = vec![0.0; width];
        let mut rows = Vec::with_capacity(count);
        let mut terms = Vec::with_capacity(count);
        for (t, d_output) in tile.d_output.chunks_exact(width).enumerate() {
            let token = tile.first + t;
            let weights = row(tile.weights, t, each);
            rows.clear();
            rows.extend(tile.sources.iter().map(|source| row(source.rows, token, width)));
            pooled.fill(0.0);
            shape.add_pool(&mut pooled, weights, &rows, &mut terms);
            let gradient = row_mut(tile.gradient, t, width);
            norm_backward(gradient, tile.d_gain, d_output, &pooled, tile.gain, tile.eps);

            let slopes = row_mut(tile.slopes, t, each);
            let turns = row_mut(tile.turns, t, each);
            for head in 0..shape.heads {
                let gradient = row(gradient, head, group);
                let weights = row(weights, head, count);
                terms.clear();
                terms.extend(weights.iter().zip(&rows).map(|(a, x)| (*a, row(x, head, group))));
                let slopes = row_mut(slopes, head, count);
                let mut mean = 0.0;
                for (slope, (weight, row)) in slopes.iter_mut().zip(&terms) {
                    prefetch_behind(row, RUN * width);
                    *slope = dot(gradient, row);
                    mean += weight * *slope;
                }
                let scales = tile.sources.iter().map(|source| source.inverse_rms[token]);
                let head_turns = row_mut(turns, head, count).iter_mut();
                let all = slopes.iter_mut().zip(head_turns).zip(&mut terms).zip(scales);
                for (((slope, turn), term), r) in all {
                    if shape.normed {
                        let product = r * *slope;
                        *slope = term.0 * (product - mean);
                        *turn = *slope * *turn + term.0 * product;
                    } else {
                        *slope = r * term.0 * (*slope - mean);
                        *turn *= *slope;
                    }
                    term.0 = *slope;
                }
                if !tile.d_query.is_empty() {
                    shape.add_terms(row_mut(tile.d_query, head, group), terms.iter().copied());
                }
            }
            add_heads(turns, count);
        }
    }
}

/// Adds what all heads have to the first one's.
#[inline(always)]
pub(super) fn add_heads(turns: &mut [f32], count: usize) {
    let (first, others) = turns.split_at_mut(count);
    for other in others.chunks_exact(count) {
        add_scaled(first, 1.0, other);
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
    /// The tile of what the sum begins with, where that is not zero.
    pub start: Option<&'a [f32]>,
    /// Whether `gradient` holds a part of the sum already.
    pub is_carried: bool,
    pub gradient: &'a mut [f32],
    /// Written too, where there is one.
    pub copy: Option<&'a mut [f32]>,
}

simd! {
    /// Adds up what the readers of a source want of it.
    pub(super) fn collect(form: Form, tile: CollectTile<'_>, shape: Shape) {
        let (width, group) = (shape.width, shape.group());
        let mut terms = Vec::with_capacity(2 * GROUP);
        for (run, gradients) in tile.gradient.chunks_mut(RUN * width).enumerate() {
            let first = tile.first + run * RUN;
            for (t, gradient) in gradients.chunks_exact_mut(width).enumerate() {
                let mut sum = 0.0;
                for pull in tile.pulls {
                    let at = pull.index(first + t, tile.position);
                    pull.ask_for(&pull.turns, at, 1);
                    sum += pull.turns[at];
                }
                match tile.start {
                    Some(start) => gradient.copy_from_slice(row(start, run * RUN + t, width)),
                    None if !tile.is_carried => gradient.fill(0.0),
                    None => {}
                }
                let along_source = -sum * tile.source.inverse_rms[first + t] / width as f32;
                add_scaled(gradient, along_source, row(tile.source.rows, first + t, width));
            }
            for pulls in tile.pulls.chunks(GROUP) {
                for (t, gradient) in gradients.chunks_exact_mut(width).enumerate() {
                    for pull in pulls {
                        prefetch_behind(row(&pull.gradient, first + t, width), RUN * width);
                        let at = pull.index(first + t, tile.position);
                        pull.ask_for(&pull.weights, at, shape.heads);
                        if !pull.query.is_empty() {
                            pull.ask_for(&pull.slopes, at, shape.heads);
                        }
                    }
                    for (head, gradient) in gradient.chunks_exact_mut(group).enumerate() {
                        terms.clear();
                        for pull in pulls {
                            let at = pull.index(first + t, tile.position) + head * pull.sources;
                            let wanted = row(&pull.gradient, first + t, width);
                            terms.push((pull.weights[at], row(wanted, head, group)));
                            if !pull.query.is_empty() {
                                terms.push((pull.slopes[at], row(&pull.query, head, group)));
                            }
                        }
                        shape.add_terms(gradient, terms.iter().copied());
                    }
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
pub(super) fn norm_backward(
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
