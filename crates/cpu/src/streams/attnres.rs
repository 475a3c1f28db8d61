//! Attention Residuals: every sub-layer reads a softmax pool over all earlier outputs.
//!
//! A junction takes in a write, which becomes a source of its own (full) or is added to the newest
//! source (block), and pools all sources `v_i` for the next reader, token by token:
//!
//! ```text
//! r_i = 1 / sqrt(mean(v_i^2) + eps)        once per source
//! logit_i = r_i q . v_i,   w = softmax(logit),   h = sum_i w_i v_i
//! output = gain * h / sqrt(mean(h^2) + eps)
//! ```
//!
//! With several heads, each group of neighbouring channels has logits and a softmax of its own, of the same
//! `r_i`. In the normed form the values are normalised as the keys are: `h = sum_i w_i r_i v_i`. The delta
//! form is in [`delta`]. An attention that makes queries, keys and values of different inputs pools three times.
//!
//! With `g` the gradient of `h`, going back through a reader gives
//!
//! ```text
//! slope_i = r_i w_i (g . v_i - sum_j w_j g . v_j),   dq = sum over tokens and i of slope_i v_i
//! dv_i = sum over the readers of v_i of ( w_i g + slope_i q - slope_i logit_i r_i / width v_i )
//! normed: with w_i r_i for w_i and a_i = r_i g . v_i,
//! slope_i = w_i r_i (a_i - sum_j w_j a_j),   and slope_i logit_i + w_i r_i a_i for slope_i logit_i
//! ```
//!
//! The last sum is taken when the junction that made `v_i` is gone back through: the readers leave
//! their `g`, which are read once more for every source, as the sources were by the readers. Running
//! gradients of all sources would be read *and written* by every reader. `h` is not kept: the sources
//! have to be read anyway for `dq`, and adding them up again from the cache costs less than a buffer.
//!
//! # Parameters
//! `[q (width), where the junction has a query][gain (width)]`, three of each for an attention with three pools. `q` is
//! what multiplies the normalised sources, so a gain of the keys is already in it; `gain` is that of the norm of the
//! reader.
//!
//! # Kept for the backward pass
//! Every source as it was read: the writes themselves (full, no copies) or each partial sum (block),
//! with one `r` a token; and logit and weight for each token, reader, head and source. Going back, each
//! reader's `g` takes the place of a source.

mod backward;
mod decode;
mod delta;
pub(super) mod shape;
mod tile;

pub use delta::{DeltaAttnRes, DeltaJunction};

#[cfg(test)]
pub(in crate::streams) mod tests;

use self::shape::Shape;
use self::tile::{ReadTile, read};
use super::tiles::TILE;
use super::{DecodeStream, Footprint, Gradient, Held, Stream};
use crate::buffer::unwritten;
use crate::parallel;
use crate::rows::Rows;
use crate::simd::{Form, prefetch_line};
use decode::AttnResDecoding;
use std::sync::Arc;

/// What is special about one junction of [`AttnRes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttnResJunction {
    /// Whether the write is added to the newest source instead of becoming a source of its own: the
    /// write before it belongs to the same block. Where sub-layers are absent, compare the blocks of
    /// the present ones.
    pub joins: bool,
    /// Whether the parameters begin with a query. A reader without one takes the mean, which for a
    /// single source is the source.
    pub query: bool,
    /// Whether the reader is an attention with pools of its own for queries, keys and values; it has three queries.
    pub apart: bool,
}

/// Query, key and value.
const KINDS: usize = 3;

impl AttnResJunction {
    /// How many parameters the junction has.
    pub fn params(&self, width: usize) -> usize {
        width * self.inputs() * (1 + usize::from(self.query))
    }

    /// Pools of the reader, which stand side by side in its input.
    fn inputs(&self) -> usize {
        if self.apart { KINDS } else { 1 }
    }
}

/// The depth state of Attention Residuals, full and block.
#[derive(Debug)]
pub struct AttnRes {
    width: usize,
    heads: usize,
    normed: bool,
    eps: f32,
    junctions: Vec<AttnResJunction>,
    keep: bool,
    form: Form,
    /// Junctions gone through and not gone back through.
    passed: usize,
    /// What the reader of the last of these sees.
    sources: Vec<Source>,
    /// Sources that later writes were added to, as they were before.
    outgrown: Vec<Source>,
    /// Of the junctions gone through and not gone back through.
    readings: Vec<Reading>,
    /// Of the junctions gone back through, the last one first.
    pulls: Vec<Pull>,
    /// Gradient of the newest source so far, where the junction gone back through last joined it.
    carried: Option<Vec<f32>>,
}

/// Something to pool.
#[derive(Debug)]
struct Source {
    /// `[tokens, width]`
    rows: Rows,
    /// `[tokens]`
    inverse_rms: Vec<f32>,
}

/// How a reader weighed its sources, each `[tokens, heads, sources]`.
#[derive(Debug)]
struct Reading {
    logits: Vec<f32>,
    /// What multiplies the sources.
    weights: Vec<f32>,
}

/// What a reader wants of its sources, to be collected by each of them.
#[derive(Debug)]
struct Pull {
    /// What multiplies the gradient, `[tokens, heads, sources]`.
    weights: Vec<f32>,
    /// How far a source is pulled along itself: in the place of the first head's logits.
    turns: Vec<f32>,
    /// Gradients of the logits times the inverse RMS of the sources, `[tokens, heads, sources]`.
    slopes: Vec<f32>,
    /// Gradient of the pooled rows, `[tokens, width]`.
    gradient: Vec<f32>,
    /// Empty for a mean.
    query: Vec<f32>,
    /// How many it pooled.
    sources: usize,
    heads: usize,
}

impl AttnRes {
    /// A stream that goes through `junctions`, the first of which takes in the embedding.
    ///
    /// # Panics
    /// If the embedding is said to join a source, or a reader with three pools to have no query.
    pub fn new(width: usize, eps: f32, junctions: Vec<AttnResJunction>, keep: bool) -> Self {
        assert!(!junctions.first().is_some_and(|first| first.joins), "nothing to join at first");
        let asks = |junction: &AttnResJunction| junction.query || !junction.apart;
        assert!(junctions.iter().all(asks), "three pools have three queries");
        Self {
            width,
            heads: 1,
            normed: false,
            eps,
            junctions,
            keep,
            form: Form::best(),
            passed: 0,
            sources: Vec::new(),
            outgrown: Vec::new(),
            readings: Vec::new(),
            pulls: Vec::new(),
            carried: None,
        }
    }

    /// The same stream with so many softmaxes, each over a group of neighbouring channels.
    ///
    /// # Panics
    /// If the width has no such groups.
    pub fn with_heads(self, heads: usize) -> Self {
        assert!(heads > 0 && self.width.is_multiple_of(heads), "heads divide the width");
        Self { heads, ..self }
    }

    /// The same stream, whose queries read normalised values. A reader without a query reads raw ones.
    pub fn normed(self) -> Self {
        Self { normed: true, ..self }
    }

    /// The same stream with its kernels in another form.
    pub fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// How a reader pools.
    fn shape(&self, query: &[f32]) -> Shape {
        Shape { width: self.width, heads: self.heads, normed: self.normed && !query.is_empty() }
    }

    /// The queries and the gains among the parameters of a junction.
    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> (&'a [f32], &'a [f32]) {
        let step = &self.junctions[junction];
        assert_eq!(params.len(), step.params(self.width), "junction {junction}");
        params.split_at(params.len() - step.inputs() * self.width)
    }

    /// Query and gain of one of the pools.
    fn of_pool<'a>(
        &self,
        (query, gain): (&'a [f32], &'a [f32]),
        pool: usize,
    ) -> (&'a [f32], &'a [f32]) {
        let part = |all: &'a [f32]| match all.is_empty() {
            true => all,
            false => &all[pool * self.width..][..self.width],
        };
        (part(query), part(gain))
    }
}

impl Stream for AttnRes {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        let width = self.width;
        let params = self.split(self.passed, params);
        let written = write.values();
        let tokens = written.len() / width;
        let step = self.junctions[self.passed];
        if self.passed == 0 {
            (self.pulls, self.carried) = (Vec::new(), None);
        }
        // Otherwise some of what is read would not be there, and something would stay unwritten.
        assert!(self.pulls.is_empty(), "forward again, after a part of the way back");
        let older = self.sources.first().map_or(tokens, |source| source.inverse_rms.len());
        assert_eq!(written.len(), older * width, "a row for each token");
        let joined = if step.joins { self.sources.pop() } else { None };

        // SAFETY: `read` writes all that a token has of each.
        let new = |length: usize| unsafe { unwritten(length) };
        let mut sum = joined.as_ref().map(|_| new(written.len()));
        let mut inverse_rms = new(tokens);
        let join = joined.as_ref().map(|source| source.rows.values()).zip(sum.as_mut());
        let first = self.of_pool(params, 0);
        let older = self.sources.iter().map(Source::view).collect::<Vec<_>>();
        let (output, reading) = self.pool(&older, written, join, &mut inverse_rms, first);
        drop(older);

        if self.keep {
            self.outgrown.extend(joined);
            self.readings.push(reading);
        }
        let rows = sum.map_or(write, |sum| Arc::new(sum));
        self.sources.push(Source { rows, inverse_rms });
        let output = match step.apart {
            false => output,
            true => self.pool_others(output, params),
        };
        self.passed += 1;
        output
    }

    fn backward(&mut self, d_output: &[f32], params: &[f32]) -> Gradient {
        self.passed -= 1;
        let params = self.split(self.passed, params);
        let inputs = self.junctions[self.passed].inputs();
        let rows = self.sources.iter().map(|source| source.rows.values().len() * inputs);
        assert!(rows.into_iter().all(|rows| rows == d_output.len()), "a row for each token");

        let (mut d_queries, mut d_gains) = (Vec::new(), Vec::new());
        let readings = self.readings.split_off(self.readings.len() - inputs);
        for (pool, reading) in readings.into_iter().enumerate() {
            let (query, gain) = self.of_pool(params, pool);
            let (pull, gradient) = match inputs {
                1 => self.pull(d_output, reading, query, gain),
                _ => self.pull(&part(d_output, self.width, pool), reading, query, gain),
            };
            self.pulls.push(pull);
            d_queries.extend_from_slice(&gradient[..query.len()]);
            d_gains.extend_from_slice(&gradient[query.len()..]);
        }
        d_queries.extend(d_gains);

        let write = self.collect();
        self.sources.pop();
        if self.junctions[self.passed].joins {
            self.sources.extend(self.outgrown.pop());
        }
        Gradient { write, params: d_queries }
    }

    /// Every junction keeps a source, the write or a sum, and how its reader weighed all of them. On the way back the
    /// gradient of what was pooled takes the place of the source.
    fn footprint(&self) -> Footprint {
        let mut sources = 0;
        let held = |step: &AttnResJunction| {
            sources += usize::from(!step.joins);
            let tables = (step.inputs() * self.heads * sources) as f64;
            let (width, inputs) = (self.width as f64, step.inputs() as f64);
            Held {
                kept: width + 1.0 + 2.0 * tables,
                left: inputs * width + 3.0 * tables,
                working: 0.0,
            }
        };
        let junctions: Vec<Held> = self.junctions.iter().map(held).collect();
        let joins = self.junctions.iter().any(|step| step.joins);
        let carried = if joins { self.width as f64 } else { 0.0 };
        Footprint { state: 0.0, junctions, carried }
    }

    fn decode(self: Box<Self>) -> Box<dyn DecodeStream> {
        Box::new(AttnResDecoding::new(*self))
    }
}

impl AttnRes {
    /// Takes in the write and pools the sources.
    fn pool(
        &self,
        older: &[View<'_>],
        written: &[f32],
        join: Option<(&[f32], &mut Vec<f32>)>,
        inverse_rms: &mut [f32],
        (query, gain): (&[f32], &[f32]),
    ) -> (Vec<f32>, Reading) {
        let (width, eps) = (self.width, self.eps);
        let (tokens, shape) = (inverse_rms.len(), self.shape(query));
        let each = self.heads * (older.len() + 1);
        // SAFETY: `read` writes all that a token has of each.
        let new = |length: usize| unsafe { unwritten(length) };
        let (mut logits, mut weights) = (new(tokens * each), new(tokens * each));
        let mut output = new(written.len());

        let (joined, sum) = join.unzip();
        let mut sums = sum.map(|sum| sum.chunks_mut(TILE * width));
        let tiles = output
            .chunks_mut(TILE * width)
            .zip(inverse_rms.chunks_mut(TILE))
            .zip(logits.chunks_mut(TILE * each))
            .zip(weights.chunks_mut(TILE * each))
            .enumerate()
            .map(|(i, (((output, inverse_rms), logits), weights))| ReadTile {
                shape,
                first: i * TILE,
                older,
                written,
                join: joined.zip(sums.as_mut().and_then(Iterator::next)),
                inverse_rms,
                query,
                gain,
                eps,
                logits,
                weights,
                output,
            });
        parallel::for_each(tiles, |tile| read(self.form, tile));
        (output, Reading { logits, weights })
    }

    /// The pools of keys and values beside that of queries, once the newest source is there.
    fn pool_others(&mut self, queries: Vec<f32>, params: (&[f32], &[f32])) -> Vec<f32> {
        let tokens = queries.len() / self.width;
        let mut outputs = vec![queries];
        for pool in 1..KINDS {
            let mut views = self.sources.iter().map(Source::view).collect::<Vec<_>>();
            let newest = views.pop().map_or(&[] as &[f32], |newest| newest.rows);
            let own = self.of_pool(params, pool);
            // The newest source has it already.
            let mut inverse_rms = vec![0.0; tokens];
            let (output, reading) = self.pool(&views, newest, None, &mut inverse_rms, own);
            outputs.push(output);
            if self.keep {
                self.readings.push(reading);
            }
        }
        side_by_side(&outputs, self.width)
    }
}

impl Pull {
    /// Where in its tables a token's source stands for the first head; the others follow at a distance of `sources`.
    #[inline(always)]
    fn index(&self, token: usize, source: usize) -> usize {
        token * self.heads * self.sources + source
    }

    /// Asks for what a table has some tokens further on, where this token's first number is at an index: a token is about a
    /// line of the cache, so that each would be waited for.
    #[inline(always)]
    fn ask_for(&self, table: &[f32], at: usize, heads: usize) {
        let next = at + tile::RUN * self.heads * self.sources;
        for head in 0..heads {
            prefetch_line(table.as_ptr().wrapping_add(next + head * self.sources));
        }
    }
}

impl Source {
    fn view(&self) -> View<'_> {
        View { rows: self.rows.values(), inverse_rms: &self.inverse_rms }
    }
}

/// Rows of several pools side by side.
fn side_by_side(pools: &[Vec<f32>], width: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(pools.iter().map(Vec::len).sum());
    for first in (0..pools[0].len()).step_by(width) {
        pools.iter().for_each(|pool| rows.extend_from_slice(&pool[first..first + width]));
    }
    rows
}

/// What belongs to one of the pools.
fn part(rows: &[f32], width: usize, pool: usize) -> Vec<f32> {
    let mut own = Vec::with_capacity(rows.len() / KINDS);
    for row in rows.chunks_exact(KINDS * width) {
        own.extend_from_slice(&row[pool * width..][..width]);
    }
    own
}

/// A [`Source`] that tasks can share.
#[derive(Clone, Copy, Debug)]
struct View<'a> {
    rows: &'a [f32],
    inverse_rms: &'a [f32],
}
