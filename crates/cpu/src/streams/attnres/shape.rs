//! How a token's sources are weighed and added up: one softmax, or one for each head.

use crate::simd::{add_scaled, dot, exp};

/// How a reader pools its sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub width: usize,
    /// Softmaxes, each over a group of neighbouring channels.
    pub heads: usize,
    /// Whether values are normalised.
    pub normed: bool,
}

impl Shape {
    /// Channels of a head.
    #[inline(always)]
    pub(super) fn group(self) -> usize {
        self.width / self.heads
    }

    /// The logits of one source, one for each head, at a distance of `count`.
    #[inline(always)]
    pub(super) fn ask(
        self,
        logits: &mut [f32],
        count: usize,
        source: &[f32],
        query: &[f32],
        r: f32,
    ) {
        let group = self.group();
        let heads = source.chunks_exact(group).zip(query.chunks_exact(group));
        for (logits, (source, query)) in logits.chunks_mut(count).zip(heads) {
            logits[0] = dot(source, query) * r;
        }
    }

    /// `weights = softmax(logits)` of each head, and for normed values times the inverse RMS of the sources.
    #[inline(always)]
    pub(super) fn weigh(
        self,
        weights: &mut [f32],
        logits: &[f32],
        inverse_rms: impl Iterator<Item = f32>,
    ) {
        let count = weights.len() / self.heads;
        for (weights, logits) in weights.chunks_exact_mut(count).zip(logits.chunks_exact(count)) {
            softmax(weights, logits);
        }
        if self.normed {
            for (weight, r) in weights.iter_mut().zip(inverse_rms) {
                *weight *= r;
            }
        }
    }

    /// `y += sum_i a_i x_i` over the channels of one head.
    #[inline(always)]
    pub(super) fn add_terms<'a>(
        self,
        y: &mut [f32],
        terms: impl Iterator<Item = (f32, &'a [f32])> + Clone,
    ) {
        if self.heads > 1 && !y.len().is_multiple_of(COLUMNS) {
            add_columns::<NARROW>(y, terms);
        } else {
            add_columns::<COLUMNS>(y, terms);
        }
    }

    /// `y += sum_i a_i x_i`, where each head has weights of its own. The list is working memory.
    #[inline(always)]
    pub(super) fn add_pool<'a>(
        self,
        y: &mut [f32],
        weights: &[f32],
        sources: &[&'a [f32]],
        terms: &mut Vec<(f32, &'a [f32])>,
    ) {
        let (group, count) = (self.group(), sources.len());
        let heads = y.chunks_exact_mut(group).zip(weights.chunks_exact(count));
        for (head, (y, weights)) in heads.enumerate() {
            terms.clear();
            for (weight, source) in weights.iter().zip(sources) {
                terms.push((*weight, row(source, head, group)));
            }
            self.add_terms(y, terms.iter().copied());
        }
    }

    /// [`Shape::add_pool`] without working memory.
    #[inline(always)]
    pub(super) fn add_pool_of_one<'a>(
        self,
        y: &mut [f32],
        weights: &[f32],
        sources: impl Iterator<Item = &'a [f32]> + Clone,
    ) {
        let (group, count) = (self.group(), weights.len() / self.heads);
        let heads = y.chunks_exact_mut(group).zip(weights.chunks_exact(count));
        for (head, (y, weights)) in heads.enumerate() {
            let sources = sources.clone().map(|source| row(source, head, group));
            self.add_terms(y, weights.iter().copied().zip(sources));
        }
    }
}

/// `y += sum_i a_i x_i`.
#[inline(always)]
pub(in crate::streams) fn add_terms<'a>(
    y: &mut [f32],
    terms: impl Iterator<Item = (f32, &'a [f32])> + Clone,
) {
    add_columns::<COLUMNS>(y, terms);
}

/// Columns that [`add_columns`] keeps in registers.
const COLUMNS: usize = 64;

/// The same for the narrow groups of several heads.
const NARROW: usize = 16;

/// `y += sum_i a_i x_i`, so many columns at a time.
#[inline(always)]
fn add_columns<'a, const COLUMNS: usize>(
    y: &mut [f32],
    terms: impl Iterator<Item = (f32, &'a [f32])> + Clone,
) {
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
pub(super) fn softmax(weights: &mut [f32], logits: &[f32]) {
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
pub(super) fn row(rows: &[f32], index: usize, width: usize) -> &[f32] {
    &rows[index * width..][..width]
}

/// The row of a token, to be written.
#[inline(always)]
pub(super) fn row_mut(rows: &mut [f32], index: usize, width: usize) -> &mut [f32] {
    &mut rows[index * width..][..width]
}
