//! Delta Attention Residuals: the stream stays, and a pool of finished blocks is added to what is read.
//!
//! A junction adds a write to the stream `x` and to the block that is open. Where the block ends, its sum becomes
//! a source. The reader gets, token by token, with `w` and `r` as in the parent module,
//!
//! ```text
//! h = x + gate sum_i w_i v_i,   output = norm * h / sqrt(mean(h^2) + eps)
//! ```
//!
//! With `g` the gradient of `h`, going back gives
//!
//! ```text
//! dx += g,   a_i = g . v_i,   m = sum_i w_i a_i,   dgate = sum over tokens and heads of m
//! slope_i = gate r_i w_i (a_i - m),   and gate w_i for w_i where the sources collect
//! ```
//!
//! So the pool is not computed again. A write's gradient is that of the stream and that of its block's sum,
//! which is collected once, at the junction where the block ended: all its readers come later.
//!
//! # Parameters
//! `[gate (1), where there is one][q (width), where there is one][norm's gain (width)]`.
//!
//! # Kept for the backward pass
//! The sources: writes (a block of one, no copies) or sums of blocks; `h`; and logit and weight for each token,
//! reader, head and source.

mod tile;

#[cfg(test)]
mod tests;

pub(super) use self::tile::{ReadOneDelta, read_one_delta};

use self::tile::{Asked, DeltaPullTile, DeltaReadTile, Pulled, pull, read, sum};
use super::decode::DeltaDecoding;
use super::shape::Shape;
use super::tile::{CollectTile, collect};
use super::{Pull, Reading, Source};
use crate::buffer::unwritten;
use crate::parallel;
use crate::rows::{Rows, sum_of_partials};
use crate::simd::Form;
use crate::streams::tiles::{TILE, split, split_mut, tile_count};
use crate::streams::{DecodeStream, Footprint, Gradient, Held, Stream};
use std::sync::Arc;

/// What is special about one junction of [`DeltaAttnRes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaJunction {
    /// Whether the write is added to the open block instead of opening one.
    pub joins: bool,
    /// Whether the block is finished by the write, and a source for the reader. The embedding always is.
    pub closes: bool,
    /// Whether the reader adds a pool to the stream.
    pub pools: bool,
    /// Whether the reader has a query. A pool without one is a mean.
    pub query: bool,
    /// Whether a gate weighs the pool.
    pub gate: bool,
}

impl DeltaJunction {
    /// How many parameters the junction has.
    pub fn params(&self, width: usize) -> usize {
        usize::from(self.gate) + width * (1 + usize::from(self.query))
    }
}

/// The depth state of Delta Attention Residuals.
#[derive(Debug)]
pub struct DeltaAttnRes {
    pub(super) shape: Shape,
    pub(super) eps: f32,
    pub(super) junctions: Vec<DeltaJunction>,
    keep: bool,
    pub(super) form: Form,
    /// Junctions gone through and not gone back through.
    passed: usize,
    /// `[tokens, width]`; empty before the embedding.
    stream: Vec<f32>,
    /// Finished blocks.
    sources: Vec<Source>,
    open: Option<Open>,
    /// Of the junctions gone through and not gone back through.
    kept: Vec<Kept>,
    /// Of the readers gone back through, the last one first.
    pulls: Vec<Pull>,
    /// Gradient of the stream; empty before the way back.
    d_stream: Vec<f32>,
    /// Gradient of the sum of the block that is gone back through.
    d_block: Option<Vec<f32>>,
}

/// The sum of an open block.
#[derive(Debug)]
enum Open {
    /// One write.
    Write(Rows),
    /// Several.
    Sum(Vec<f32>),
}

/// What the way back through a junction needs.
#[derive(Debug)]
struct Kept {
    /// What was read, before its norm.
    h: Vec<f32>,
    reading: Option<Reading>,
}

/// A junction's parameters, taken apart.
#[derive(Clone, Copy)]
pub(super) struct Params<'a> {
    /// One if there is none.
    pub gate: f32,
    pub query: &'a [f32],
    pub gain: &'a [f32],
}

impl DeltaAttnRes {
    /// A stream that goes through `junctions`, the first of which takes in the embedding.
    ///
    /// # Panics
    /// If the embedding is not a source, a pool is asked for by a query or a gate alone, or `heads` does not divide the
    /// width.
    pub fn new(
        width: usize,
        heads: usize,
        eps: f32,
        junctions: Vec<DeltaJunction>,
        keep: bool,
    ) -> Self {
        let is_source = |first: &DeltaJunction| first.closes && !first.joins;
        assert!(junctions.first().is_none_or(is_source), "the embedding is a source");
        let pools = |step: &DeltaJunction| step.pools || !(step.query || step.gate);
        assert!(junctions.iter().all(pools), "queries and gates belong to pools");
        assert!(heads > 0 && width.is_multiple_of(heads), "heads divide the width");
        Self {
            shape: Shape { width, heads, normed: false },
            eps,
            junctions,
            keep,
            form: Form::best(),
            passed: 0,
            stream: Vec::new(),
            sources: Vec::new(),
            open: None,
            kept: Vec::new(),
            pulls: Vec::new(),
            d_stream: Vec::new(),
            d_block: None,
        }
    }

    /// The same stream with its kernels in another form.
    pub fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// The lengths of a junction's parts.
    fn parts(&self, junction: usize) -> [usize; 3] {
        let (step, width) = (self.junctions[junction], self.shape.width);
        [usize::from(step.gate), usize::from(step.query) * width, width]
    }

    pub(super) fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Params<'a> {
        let count = self.junctions[junction].params(self.shape.width);
        assert_eq!(params.len(), count, "junction {junction}");
        let [gate, query, gain] = split(params, self.parts(junction));
        Params { gate: gate.first().copied().unwrap_or(1.0), query, gain }
    }
}

impl Stream for DeltaAttnRes {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        let (shape, width, eps) = (self.shape, self.shape.width, self.eps);
        let step = self.junctions[self.passed];
        let Params { gate, query, gain } = self.split(self.passed, params);
        let written = write.values();
        let tokens = written.len() / width;
        // SAFETY: `read` writes all that a token has of each.
        let new = |length: usize| unsafe { unwritten(length) };
        let is_first = self.passed == 0;
        if is_first {
            (self.pulls, self.d_stream, self.d_block) = (Vec::new(), Vec::new(), None);
            (self.stream, self.sources, self.open) = (new(written.len()), Vec::new(), None);
        }
        assert!(self.pulls.is_empty(), "forward again, after a part of the way back");
        assert_eq!(written.len(), self.stream.len(), "a row for each token");
        let joined = if step.joins { self.open.take() } else { None };
        let (joined, mut sum) = match joined {
            None => (None, None),
            Some(Open::Write(rows)) => (Some(rows), Some(new(written.len()))),
            Some(Open::Sum(sum)) => (None, Some(sum)),
        };
        let sources = self.sources.len() + usize::from(step.closes);
        let each = shape.heads * sources;
        let mut inverse_rms = step.closes.then(|| new(tokens));
        let reading = || Reading { logits: new(tokens * each), weights: new(tokens * each) };
        let mut reading = step.pools.then(reading);
        let mut h = self.keep.then(|| new(written.len()));
        let mut output = new(written.len());

        let older = self.sources.iter().map(Source::view).collect::<Vec<_>>();
        let joined_rows = joined.as_ref().map(|rows| rows.values());
        let mut sums = sum.as_mut().map(|sum| sum.chunks_mut(TILE * width));
        let mut scales = inverse_rms.as_mut().map(|scales| scales.chunks_mut(TILE));
        let mut tables = reading.as_mut().map(|reading| {
            let weights = reading.weights.chunks_mut(TILE * each);
            reading.logits.chunks_mut(TILE * each).zip(weights)
        });
        let mut hs = h.as_mut().map(|h| h.chunks_mut(TILE * width));
        let tiles =
            output
                .chunks_mut(TILE * width)
                .zip(self.stream.chunks_mut(TILE * width))
                .zip(written.chunks(TILE * width))
                .enumerate()
                .map(|(i, ((output, stream), written))| DeltaReadTile {
                    shape,
                    first: i * TILE,
                    older: &older,
                    written,
                    is_first,
                    stream,
                    joined: joined_rows.map(|rows| &rows[i * TILE * width..][..written.len()]),
                    sum: sums.as_mut().and_then(Iterator::next),
                    inverse_rms: scales.as_mut().and_then(Iterator::next),
                    asked: tables
                        .as_mut()
                        .and_then(Iterator::next)
                        .map(|(logits, weights)| Asked { query, gate, logits, weights }),
                    gain,
                    eps,
                    h: hs.as_mut().and_then(Iterator::next),
                    output,
                });
        parallel::for_each(tiles, |tile| read(self.form, tile));

        let newest = match sum {
            None => Open::Write(write),
            Some(sum) => Open::Sum(sum),
        };
        match inverse_rms {
            Some(inverse_rms) => self.sources.push(Source { rows: newest.rows(), inverse_rms }),
            None => self.open = Some(newest),
        }
        self.kept.extend(h.map(|h| Kept { h, reading }));
        self.passed += 1;
        output
    }

    fn backward(&mut self, d_output: &[f32], params: &[f32]) -> Gradient {
        self.passed -= 1;
        let kept = self.kept.pop().expect("what the backward pass needs was kept");
        assert_eq!(kept.h.len(), d_output.len(), "a row for each token");
        let params = self.pull(d_output, kept, params);
        let step = self.junctions[self.passed];
        if step.closes {
            // Where a block is one write, its gradient starts with the stream's.
            let gradient = self.collect(!step.joins);
            self.sources.pop();
            if !step.joins {
                return Gradient { write: gradient, params };
            }
            self.d_block = Some(gradient);
        }
        let write = self.sum_of_gradients();
        if !step.joins {
            self.d_block = None;
        }
        Gradient { write, params }
    }

    /// Every junction keeps what was read and how it was weighed, and one that closes a block the block's sum.
    fn footprint(&self) -> Footprint {
        let Shape { width, heads, .. } = self.shape;
        let mut sources = 0;
        let held = |step: &DeltaJunction| {
            sources += usize::from(step.closes);
            let source = if step.closes { width + 1 } else { 0 };
            let (tables, pulled) = if step.pools { (heads * sources, width) } else { (0, 0) };
            Held {
                kept: (width + source + 2 * tables) as f64,
                left: (pulled + 3 * tables) as f64,
                working: 0.0,
            }
        };
        let junctions = self.junctions.iter().map(held).collect();
        let joins = self.junctions.iter().any(|step| step.joins);
        let carried = width * (1 + usize::from(joins));
        Footprint { state: width as f64, junctions, carried: carried as f64 }
    }

    fn decode(self: Box<Self>) -> Box<dyn DecodeStream> {
        Box::new(DeltaDecoding::new(*self))
    }
}

impl DeltaAttnRes {
    /// Goes back through the reader: to the stream, to what it pooled and to its parameters.
    fn pull(&mut self, d_output: &[f32], kept: Kept, params: &[f32]) -> Vec<f32> {
        let (shape, width) = (self.shape, self.shape.width);
        let parts = self.parts(self.passed);
        let Params { gate, query, gain } = self.split(self.passed, params);
        let Kept { h, reading } = kept;
        // SAFETY: `pull` writes all that a token has of each.
        let new = |length: usize| unsafe { unwritten(length) };
        let is_first = self.d_stream.is_empty();
        if is_first {
            self.d_stream = new(d_output.len());
        }
        let count = self.sources.len();
        let each = shape.heads * count;
        let mut pulled = reading.map(|Reading { logits, weights }| Pull {
            slopes: new(weights.len()),
            weights,
            turns: logits,
            gradient: new(d_output.len()),
            query: query.to_vec(),
            sources: count,
            heads: shape.heads,
        });
        let mut partials = vec![0.0; params.len() * tile_count(d_output.len() / width)];

        let sources = self.sources.iter().map(Source::view).collect::<Vec<_>>();
        let mut tables = pulled.as_mut().map(|pull| {
            let weights = pull.weights.chunks_mut(TILE * each);
            let tables = pull.slopes.chunks_mut(TILE * each).zip(weights);
            let tables = tables.zip(pull.turns.chunks_mut(TILE * each));
            tables.zip(pull.gradient.chunks_mut(TILE * width))
        });
        let tiles = self
            .d_stream
            .chunks_mut(TILE * width)
            .zip(d_output.chunks(TILE * width))
            .zip(h.chunks(TILE * width))
            .zip(partials.chunks_mut(params.len()))
            .enumerate()
            .map(|(i, (((d_stream, d_output), h), partial))| {
                let [d_gate, d_query, d_gain] = split_mut(partial, parts);
                let tables = tables.as_mut().and_then(Iterator::next);
                DeltaPullTile {
                    shape,
                    first: i * TILE,
                    sources: &sources,
                    gain,
                    eps: self.eps,
                    h,
                    d_output,
                    is_first,
                    d_stream,
                    pulled: tables.map(|(((slopes, weights), turns), gradient)| Pulled {
                        gate,
                        slopes,
                        weights,
                        turns,
                        gradient,
                        d_gate,
                        d_query,
                    }),
                    d_gain,
                }
            });
        parallel::for_each(tiles, |tile| pull(self.form, tile));
        self.pulls.extend(pulled);
        sum_of_partials(&partials, params.len())
    }

    /// The gradient of the newest source, with that of the stream if asked for.
    fn collect(&self, with_stream: bool) -> Vec<f32> {
        let (shape, width) = (self.shape, self.shape.width);
        let position = self.sources.len() - 1;
        let source = self.sources[position].view();
        // SAFETY: `collect` clears the gradient, or copies what it starts with.
        let mut gradient = unsafe { unwritten(source.rows.len()) };
        let tiles = gradient.chunks_mut(TILE * width).enumerate().map(|(i, gradient)| {
            let start = &self.d_stream[i * TILE * width..][..gradient.len()];
            CollectTile {
                first: i * TILE,
                source,
                position,
                pulls: &self.pulls,
                start: with_stream.then_some(start),
                is_carried: false,
                gradient,
                copy: None,
            }
        });
        parallel::for_each(tiles, |tile| collect(self.form, tile, shape));
        gradient
    }

    /// The gradient of the stream, and of the block's sum where it was a source.
    fn sum_of_gradients(&self) -> Vec<f32> {
        let tile = TILE * self.shape.width;
        // SAFETY: `sum` writes all of it.
        let mut write = unsafe { unwritten(self.d_stream.len()) };
        let tiles = write.chunks_mut(tile).zip(self.d_stream.chunks(tile)).enumerate();
        parallel::for_each(tiles, |(i, (write, d_stream))| {
            let d_block = self.d_block.as_ref().map(|block| &block[i * tile..][..write.len()]);
            sum(self.form, write, d_stream, d_block);
        });
        write
    }
}

impl Open {
    fn rows(self) -> Rows {
        match self {
            Self::Write(rows) => rows,
            Self::Sum(sum) => Arc::new(sum),
        }
    }
}
