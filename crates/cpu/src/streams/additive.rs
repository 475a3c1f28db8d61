//! One stream to which every sub-layer adds: PreNorm, LayerNorm Scaling, PostNorm, DeepNorm, Mix-LN, Sandwich-LN, OLMo's
//! output norms, KEEL, nanochat's lambdas.
//!
//! A junction takes the write `f` and computes
//!
//! ```text
//! y = factor rms(f) * write_gain      where the step has a norm of the write, otherwise factor f
//! s = carry x * carry_gain + y        carry_gain only where the step is weighted (junction 0: s = f, the embedding)
//! n = rms(s) * post_gain              where the step has a norm after the sum, otherwise s
//! x' = scale n + share source         scale and share where the step has them
//! output = pre rms(x') * pre_gain     where the step has a norm before the reader, otherwise x'
//! ```
//!
//! with `rms(v) = v / sqrt(mean(v^2) + eps)`. A source is the `n` of an earlier junction, or of this one, that was held.
//!
//! # Parameters of a junction
//! `[write_gain: width, if write_norm][carry_gain: width, if weighted][post_gain: width, if post][scale: 1, if scaled]`
//! `[share: 1, if source][pre_gain: width, if pre]`
//!
//! # What is kept
//! The sum `s` of each junction and one number per token and norm; a write only where it is normalised or the step is
//! weighted; a source once. The stream is never stored: `x'` is a factor per token, a gain and a share of a source away
//! from `s`, wherever it is read. So every policy has the traffic of PreNorm: forward two rows in and two out, backward
//! three in and two out; with a source one more forward and two more backward. The embedding is shared, not copied.

mod backward;
mod forward;
mod rows;
#[cfg(test)]
mod tests;

use super::driver::{Backward, Carried, Forward, Parts, Policy};
use super::tiles::split;

/// How many sources there can be.
const SOURCES: usize = 2;

/// What [`Additive`] does at one junction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdditiveStep {
    /// What the write is multiplied by, once it is normalised if it is; one at junction 0.
    pub factor: f32,
    /// Whether the write is normalised; never at junction 0.
    pub write_norm: bool,
    /// Weight of the stream when the write is added to it; without effect at junction 0.
    pub carry: f32,
    /// Whether each channel of the stream has a weight of its own besides; never at junction 0. The weights are parameters,
    /// and none of them is zero.
    pub weighted: bool,
    /// Whether the sum is normalised.
    pub post: bool,
    /// The source that the stream becomes here, before it is scaled.
    pub hold: Option<usize>,
    /// Whether the stream is multiplied by a parameter.
    pub scaled: bool,
    /// The source of which a share is added to the stream. The share is a parameter.
    pub source: Option<usize>,
    /// If the output is normalised, the constant that it is multiplied by.
    pub pre: Option<f32>,
}

impl Default for AdditiveStep {
    /// Adds the write, without a norm.
    fn default() -> Self {
        Self {
            factor: 1.0,
            write_norm: false,
            carry: 1.0,
            weighted: false,
            post: false,
            hold: None,
            scaled: false,
            source: None,
            pre: None,
        }
    }
}

impl AdditiveStep {
    /// How many parameters the junction has.
    pub fn params(&self, width: usize) -> usize {
        self.lengths(width).iter().sum()
    }

    /// Of the gains of write and carry, of the gain after the sum, scale and share, of the gain before the reader.
    fn lengths(&self, width: usize) -> [usize; 6] {
        let gain = |exists: bool| if exists { width } else { 0 };
        [
            gain(self.write_norm),
            gain(self.weighted),
            gain(self.post),
            usize::from(self.scaled),
            usize::from(self.source.is_some()),
            gain(self.pre.is_some()),
        ]
    }

    /// Whether the stream is more than the sum and its norm.
    fn mixes(&self) -> bool {
        self.scaled || self.source.is_some()
    }
}

/// One stream to which every sub-layer adds.
pub type Additive = Carried<Adding>;

impl Additive {
    /// A stream of this width past `steps`, one for each junction. Without `keep` there is no way back.
    pub fn new(width: usize, eps: f32, steps: Vec<AdditiveStep>, keep: bool) -> Self {
        assert!(width > 0, "a stream has at least one feature");
        let bare = |step: &AdditiveStep| !step.write_norm && !step.weighted && step.factor == 1.0;
        assert!(
            steps.first().is_none_or(bare),
            "the embedding is normalised as a sum, not as a write"
        );
        let mut held = [false; SOURCES];
        for step in &steps {
            if let Some(source) = step.hold {
                assert!(!std::mem::replace(&mut held[source], true), "a source is held once");
            }
            assert!(
                step.source.is_none_or(|source| held[source]),
                "a source is held before it is added"
            );
        }
        Self::by(Adding { width, eps, steps, held }, keep)
    }
}

/// The policy of [`Additive`].
#[derive(Debug)]
pub struct Adding {
    width: usize,
    eps: f32,
    steps: Vec<AdditiveStep>,
    /// Which sources there are.
    held: [bool; SOURCES],
}

/// A junction's parameters, as far as it has them, and the constant of the norm before the reader.
#[derive(Debug)]
pub struct Gains<'a> {
    write: Option<&'a [f32]>,
    carry: Option<&'a [f32]>,
    post: Option<&'a [f32]>,
    scale: f32,
    share: f32,
    pre: Option<(f32, &'a [f32])>,
}

impl Adding {
    /// Floats of each source for each token.
    fn sources(&self) -> [usize; SOURCES] {
        self.held.map(|held| if held { self.width } else { 0 })
    }
}

// SAFETY: every row of the output and of `d_write` is written, and so is what the record has of it. A source is written
// when it is held, which is before it is read.
unsafe impl Policy for Adding {
    type Params<'a> = Gains<'a>;
    type Kept = ();
    /// A row.
    type Scratch = Vec<f32>;

    fn width(&self) -> usize {
        self.width
    }

    fn junctions(&self) -> usize {
        self.steps.len()
    }

    fn params(&self, junction: usize) -> usize {
        self.steps[junction].params(self.width)
    }

    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Gains<'a> {
        let step = &self.steps[junction];
        let [write, carry, post, scale, share, pre] = split(params, step.lengths(self.width));
        Gains {
            write: step.write_norm.then_some(write),
            carry: step.weighted.then_some(carry),
            post: step.post.then_some(post),
            scale: scale.first().copied().unwrap_or(1.0),
            share: share.first().copied().unwrap_or_default(),
            pre: step.pre.map(|scale| (scale, pre)),
        }
    }

    /// The sums, but for the embedding, then the inverse RMS of write, sum and stream, where there is a norm.
    fn record(&self, junction: usize) -> Parts {
        let step = &self.steps[junction];
        let [write, post, pre] = [step.write_norm, step.post, step.pre.is_some()].map(usize::from);
        [if junction == 0 { 0 } else { self.width }, write, post, pre]
    }

    /// The sources.
    fn state(&self) -> Parts {
        let [first, second] = self.sources();
        [first, second, 0, 0]
    }

    /// Of the stream and of the sources.
    fn gradient(&self) -> Parts {
        let [first, second] = self.sources();
        [self.width, first, second, 0]
    }

    fn keeps_write(&self, junction: usize) -> bool {
        let step = &self.steps[junction];
        junction == 0 || step.write_norm || step.weighted
    }

    /// What the next junction needs to find the stream again: the gain of the norm after the sum, scale and share.
    fn handed_on<'a>(&self, junction: usize, params: &'a [f32]) -> &'a [f32] {
        let [write, carry, post, scale, share, _] = self.steps[junction].lengths(self.width);
        &params[write + carry..][..post + scale + share]
    }

    #[inline(always)]
    fn forward(&self, gains: &Gains<'_>, tile: Forward<'_, ()>, _: &mut Vec<f32>) {
        forward::forward(self, gains, tile);
    }

    #[inline(always)]
    fn backward(&self, gains: &Gains<'_>, tile: Backward<'_, ()>, row: &mut Vec<f32>) {
        backward::backward(self, gains, tile, row);
    }
}
