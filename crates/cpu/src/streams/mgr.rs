//! Multi-Gate Residuals: n streams, gated writes, attention-pooled reads. arXiv 2605.23259.
//!
//! Junction 0 makes the embedding the first stream, and the next n-1 writes are appended as they are.
//! From then on every stream moves towards the write `f` by its own gate,
//!
//! ```text
//! u_i = w1 . rms(s_i)      beta = gate(u, b)      s'_i = s_i + beta_i (f - s_i)
//! independent: beta_i = 1 / (1 + exp(-u_i - b_i))
//! competitive: beta_i = exp(u_i + b_i) / (exp(b_0) + sum_j exp(u_j + b_j))
//! ```
//!
//! and after every write the next reader is given
//!
//! ```text
//! v_i = w2 . rms(s'_i)     alpha = softmax(v)     h = sum_i alpha_i s'_i     answer = gain rms(h)
//! ```
//!
//! except that the reader of junction 0 is given `gain rms(embedding)`. `rms(x) = x / sqrt(mean(x^2) +
//! eps)`.
//!
//! # Parameters of a junction
//!
//! Those of width d carry the policy's `1/sqrt(d)` already. In this order, without gaps:
//!
//! | part | length | present |
//! |---|---|---|
//! | w1 | d | where the junction gates: from junction n on |
//! | b | n, or n+1 (b_0 first) if competitive | where the junction gates |
//! | w2 | d | everywhere but at junction 0 |
//! | gain | d | everywhere |
//! | w1, b of the next junction | as above | where tokens may skip the site in between |
//!
//! # Skipping
//!
//! The gates of a write depend on nothing but the streams that its site reads, so with a [`Skip`] they are
//! opened one junction earlier, by the last part of that junction's parameters, and handed on. A token
//! whose widest gate `b = max_i beta_i` is below the threshold skips the site: its streams stay as they
//! are, which moves stream i by `beta_i |f - s_i|` less. Who runs writes with `beta_i (b - t) / b`, where t
//! is what the rule takes off. Where streams are still appended nobody skips. The gradient of w1 and b is
//! that of the junction that writes; of the last part it is zero.
//!
//! # Backward
//!
//! The streams exist once, `[tokens, n, d]`, and are taken back in place: an append by dropping the last
//! stream, a gated write by `s_i = s'_i + beta_i / (1 - beta_i) (s'_i - f)`. That needs the write and the
//! gates, and where gates are wide open it would lose digits, so `saved` keeps some rows as they were.
//! With `g = dh` and `G_i = ds'_i`,
//!
//! ```text
//! dv_i = alpha_i (g . s'_i - g . h)       G_i += alpha_i g + r'_i dv_i (w2 - rms(s'_i) v_i / d)
//! dbeta_i = G_i . (f - s_i)               df = sum_i beta_i G_i
//! ds_i = (1 - beta_i) G_i + r_i du_i (w1 - rms(s_i) u_i / d)
//! dw1 = sum_i du_i rms(s_i)               dw2 = sum_i dv_i rms(s'_i)
//! ```
//!
//! with `r = 1 / sqrt(mean(s^2) + eps)`, and du as in `gate`. G replaces the gradient of the streams in
//! place, too.

mod backward;
mod decision;
mod forward;
mod gate;
mod layout;
mod saved;
mod sums;
#[cfg(test)]
mod tests;
mod walk;

pub use gate::Gate;
pub use saved::Memory;

use super::tiles::{TILE, sum_of_partials, tile, tile_count};
use super::{DecodeStream, Gradient, Skip, Stream};
use crate::route::Route;
use crate::rows::{Rows, filled};
use crate::team::{each_of, results_of};
use backward::{BackwardTile, backward_tile};
use decision::{Opened, Rule};
use forward::{ForwardTile, forward_tile};
use layout::{Junction, Params, Shape};
use saved::{Saved, Saving};
use walk::MgrWalk;

/// Settings of [`Mgr`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Features of a token.
    pub width: usize,
    /// What is added to a mean of squares.
    pub eps: f32,
    /// Number of streams when all are there.
    pub streams: usize,
    /// How gates relate to each other.
    pub gate: Gate,
    /// How the backward pass gets back what the forward pass overwrote.
    pub memory: Memory,
    /// Which tokens skip which sub-layers, in the order in which the stream goes past them.
    pub skip: Option<Skip>,
}

/// n streams and how they are carried past the sub-layers.
#[derive(Debug)]
pub struct Mgr {
    shape: Shape,
    memory: Memory,
    skip: Option<Skip>,
    keep: bool,
    /// Junctions gone through.
    passed: usize,
    /// `[tokens, slots, width]`; a slot is written when its stream is appended.
    streams: Vec<f32>,
    /// `r` of every stream, `[tokens, slots]`.
    inverse_rms: Vec<f32>,
    /// How far [`saved`] let errors grow, `[tokens, slots]`.
    drift: Vec<f32>,
    /// The gates of the next write, one for each tile; none if the next junction has to open them.
    opened: Vec<Opened>,
    /// Who runs the next site.
    route: Option<Route>,
    /// Gradient of the streams, laid out as they are; empty before the backward pass.
    d_streams: Vec<f32>,
    kept: Vec<Kept>,
}

/// What a junction keeps for the backward pass.
#[derive(Debug)]
struct Kept {
    /// As [`Junction::numbers`] has it, `[tokens, ..]`.
    numbers: Vec<f32>,
    /// Where the junction gates.
    write: Option<Rows>,
    /// One for each tile.
    saved: Vec<Saved>,
    /// Who ran the site that wrote, for each tile; none if that was not asked.
    runs: Vec<Vec<bool>>,
}

impl Mgr {
    /// No streams yet. There will be `junctions` junctions, one more than sub-layers; without `keep` they
    /// keep nothing for a backward pass.
    pub fn new(settings: Settings, junctions: usize, keep: bool) -> Self {
        let Settings { width, eps, streams, gate, memory, skip } = settings;
        assert!(width > 0 && streams > 0, "{streams} streams of width {width} hold nothing");
        let sites = junctions.saturating_sub(1);
        let rules = skip.as_ref().map_or(sites, |skip| skip.thresholds.len());
        assert_eq!(rules, sites, "thresholds, one for each site");
        let slots = streams.min(junctions);
        let shape = Shape { width, eps, streams, slots, gate, junctions, skips: skip.is_some() };
        Self {
            shape,
            memory,
            skip,
            keep,
            passed: 0,
            streams: Vec::new(),
            inverse_rms: Vec::new(),
            drift: Vec::new(),
            opened: Vec::new(),
            route: None,
            d_streams: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// How many parameters a junction takes.
    pub fn parameters(&self, junction: usize) -> usize {
        self.shape.lengths(self.shape.junction(junction)).iter().sum()
    }

    fn allocate(&mut self, tokens: usize) {
        let rows = tokens * self.shape.slots;
        self.streams = filled(rows * self.shape.width, |_| ());
        self.inverse_rms = filled(rows, |_| ());
        self.drift = vec![1.0; rows];
    }

    /// The rows to save, tile by tile, at a junction.
    fn saving(&self, junction: Junction) -> Saving {
        if self.keep && junction.gates { self.memory.saving() } else { Saving::Nothing }
    }
}

impl Stream for Mgr {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        let junctions = self.shape.junctions;
        assert!(self.passed < junctions, "there are only {junctions} junctions");
        let junction = self.shape.junction(self.passed);
        let params = Params::split(params, &self.shape, junction);
        let values = write.values();
        let tokens = values.len() / self.shape.width;
        if self.passed == 0 {
            self.allocate(tokens);
        }
        let (shape, saving) = (self.shape, self.saving(junction));
        let rows = TILE * shape.slots;
        let rule = Rule::of(&self.skip, junction, self.passed);
        let opened = std::mem::take(&mut self.opened);
        let (mut numbers, mut tiles) = (Vec::new(), Vec::new());
        let answer = filled(values.len(), |answer| {
            numbers = filled(tokens * junction.numbers(), |numbers| {
                let parts = (answer.chunks_mut(TILE * shape.width))
                    .zip(values.chunks(TILE * shape.width))
                    .zip(self.streams.chunks_mut(rows * shape.width))
                    .zip(self.inverse_rms.chunks_mut(rows))
                    .zip(self.drift.chunks_mut(rows))
                    .zip(numbers.chunks_mut(TILE * junction.numbers()))
                    .enumerate();
                tiles = results_of(
                    parts,
                    |(i, (((((answer, write), streams), inverse_rms), drift), numbers))| {
                        let quota = saving.quota(i * rows..i * rows + drift.len());
                        let opened = opened.get(i);
                        let first = i * TILE;
                        let tile = ForwardTile {
                            write,
                            streams,
                            inverse_rms,
                            drift,
                            numbers,
                            opened,
                            first,
                            answer,
                        };
                        forward_tile(
                            crate::simd::Form::best(),
                            &shape,
                            junction,
                            params,
                            rule,
                            quota,
                            tile,
                        )
                    },
                );
            });
        });
        self.passed += 1;
        let (saved, next): (Vec<Saved>, Vec<Option<Opened>>) = tiles.into_iter().unzip();
        self.opened = next.into_iter().flatten().collect();
        let runs = || self.opened.iter().flat_map(|tile| tile.runs.iter().copied());
        self.route = junction.decides.then(|| Route::of(runs())).flatten();
        if self.keep {
            let write = junction.gates.then_some(write);
            let runs = opened.into_iter().map(|tile| tile.runs).collect();
            self.kept.push(Kept { numbers, write, saved, runs });
        }
        answer
    }

    fn backward(&mut self, d_input: &[f32], params: &[f32]) -> Gradient {
        let Kept { mut numbers, write, saved, runs } =
            self.kept.pop().expect("the stream keeps what its backward pass needs");
        self.passed -= 1;
        let shape = self.shape;
        let junction = shape.junction(self.passed);
        let length = params.len();
        let params = Params::split(params, &shape, junction);
        let fresh = self.d_streams.is_empty();
        if fresh {
            self.d_streams = filled(self.streams.len(), |_| ());
        }
        let write = write.as_ref().map_or(&[][..], |write| write.values());
        let site = self.passed.checked_sub(1);
        let rule = site.and_then(|site| Rule::of(&self.skip, shape.junction(site), site));
        let rows = TILE * shape.slots;
        let mut partials = vec![0.0; tile_count(d_input.len() / shape.width) * length];
        let d_write = filled(d_input.len(), |d_write| {
            let parts = (d_write.chunks_mut(TILE * shape.width))
                .zip(d_input.chunks(TILE * shape.width))
                .zip(self.streams.chunks_mut(rows * shape.width))
                .zip(self.d_streams.chunks_mut(rows * shape.width))
                .zip(self.inverse_rms.chunks_mut(rows))
                .zip(numbers.chunks_mut(TILE * junction.numbers()))
                .zip(saved.iter())
                .zip(partials.chunks_mut(length))
                .enumerate();
            each_of(parts, |(i, (tensors, d_params))| {
                let ((tensors, numbers), saved) = tensors;
                let ((((d_write, d_answer), streams), d_streams), inverse_rms) = tensors;
                let write = tile(write, i, shape.width);
                let tile = BackwardTile {
                    d_answer,
                    write,
                    streams,
                    d_streams,
                    inverse_rms,
                    numbers,
                    saved,
                    runs: runs.get(i).map_or(&[], |runs| runs),
                    d_write,
                };
                backward_tile(
                    crate::simd::Form::best(),
                    &shape,
                    junction,
                    params,
                    rule,
                    fresh,
                    tile,
                    d_params,
                );
            });
        });
        Gradient { write: d_write, params: sum_of_partials(&partials, length) }
    }

    fn route(&self) -> Option<Route> {
        self.route.clone()
    }

    fn decode(self: Box<Self>) -> Box<dyn DecodeStream> {
        Box::new(MgrWalk::new(self.shape, self.skip))
    }
}
