//! One stream to which every sub-layer adds: PreNorm, LayerNorm Scaling, PostNorm, DeepNorm, Mix-LN.
//!
//! A junction takes the write `f` and computes
//!
//! ```text
//! s = skip x + f                      (junction 0: s = f, the embedding)
//! x' = rms(s) * post_gain             where the step has a norm after the sum, otherwise s
//! answer = scale rms(x') * pre_gain   where the step has a norm before the reader, otherwise x'
//! ```
//!
//! with `rms(v) = v / sqrt(mean(v^2) + eps)`.
//!
//! # Parameters of a junction
//! `[post_gain: width, if post][pre_gain: width, if pre]`
//!
//! # What is kept
//! The sum `s` of each junction and one number per token and norm. The normalised stream is never
//! stored: `x'` is a factor per token and a gain away from `s`, wherever it is read. So every policy has
//! the traffic of PreNorm: forward two rows in and two out, backward three in and two out. The embedding
//! is shared, not copied.

mod walk;

use super::norm::{Normed, inverse_rms, multiply_by_gain, scale_by_gain};
use super::tiles::{TilesMut, sum_of_partials, tile, tile_count};
use super::{Gradient, Stream, Walk};
use crate::rows::{Rows, filled};
use crate::team::each_of;
use std::sync::Arc;
use walk::AdditiveWalk;

/// What [`Additive`] does at one junction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdditiveStep {
    /// Weight of the stream when the write is added to it; without effect at junction 0.
    pub skip: f32,
    /// Whether the sum is normalised.
    pub post: bool,
    /// If what is answered is normalised, the constant that it is multiplied by.
    pub pre: Option<f32>,
}

impl AdditiveStep {
    /// How many parameters the junction has.
    pub fn params(&self, width: usize) -> usize {
        width * (usize::from(self.post) + usize::from(self.pre.is_some()))
    }

    fn norms<'a>(&self, params: &'a [f32], width: usize) -> Norms<'a> {
        let (post, pre) = params.split_at(if self.post { width } else { 0 });
        Norms {
            post: self.post.then_some(post),
            pre: self.pre.map(|scale| PreNorm { scale, gain: pre }),
        }
    }
}

/// The norms of a junction: the gain of the one after the sum, and the one before the reader.
#[derive(Clone, Copy)]
struct Norms<'a> {
    post: Option<&'a [f32]>,
    pre: Option<PreNorm<'a>>,
}

#[derive(Clone, Copy)]
struct PreNorm<'a> {
    scale: f32,
    gain: &'a [f32],
}

/// One stream to which every sub-layer adds.
#[derive(Debug)]
pub struct Additive {
    width: usize,
    eps: f32,
    steps: Vec<AdditiveStep>,
    keep: bool,
    /// Junctions gone through and not gone back through.
    passed: usize,
    /// What they left behind, or only the last of them if nothing is kept.
    levels: Vec<Level>,
    /// The gradient of the sum that the junction last gone back through computed.
    d_sum: Vec<f32>,
}

/// What a junction leaves behind.
#[derive(Debug)]
struct Level {
    sum: Rows,
    /// Of each token's sum, if it is normalised.
    post_inverse_rms: Vec<f32>,
    /// Of each token's stream, if what is answered is normalised.
    pre_inverse_rms: Vec<f32>,
    /// Of the norm after the sum, if there is one.
    post_gain: Option<Vec<f32>>,
}

impl Level {
    fn stream(&self, index: usize, width: usize) -> Before<'_> {
        Before {
            sum: tile(self.sum.values(), index, width),
            norm: self
                .post_gain
                .as_ref()
                .map(|gain| (tile(&self.post_inverse_rms, index, 1), gain.as_slice())),
        }
    }
}

/// A tile of the stream as the junction before left it: sums, and how they were normalised.
struct Before<'a> {
    sum: &'a [f32],
    norm: Option<(&'a [f32], &'a [f32])>,
}

struct ForwardTile<'a> {
    before: Option<Before<'a>>,
    write: &'a [f32],
    /// Empty at junction 0, where the write is the sum.
    sum: &'a mut [f32],
    answer: &'a mut [f32],
    post_inverse_rms: &'a mut [f32],
    pre_inverse_rms: &'a mut [f32],
}

struct BackwardTile<'a> {
    d_input: &'a [f32],
    sum: &'a [f32],
    post_inverse_rms: &'a [f32],
    pre_inverse_rms: &'a [f32],
    d_sum: &'a mut [f32],
    d_write: &'a mut [f32],
    d_params: &'a mut [f32],
}

impl Additive {
    /// A stream of this width past `steps`, one for each junction. Without `keep` there is no way back.
    pub fn new(width: usize, eps: f32, steps: Vec<AdditiveStep>, keep: bool) -> Self {
        assert!(width > 0, "a stream has at least one feature");
        Self { width, eps, steps, keep, passed: 0, levels: Vec::new(), d_sum: Vec::new() }
    }
}

impl Stream for Additive {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        let (width, eps, step) = (self.width, self.eps, self.steps[self.passed]);
        assert_eq!(params.len(), step.params(width), "gains of junction {}", self.passed);
        let norms = step.norms(params, width);
        let before = self.levels.last();
        let rows = write.values();
        let tokens = rows.len() / width;
        let mut post_inverse_rms = vec![0.0; if step.post { tokens } else { 0 }];
        let mut pre_inverse_rms = vec![0.0; if step.pre.is_some() { tokens } else { 0 }];
        let mut sum = Vec::new();
        let answer = filled(rows.len(), |answer| {
            sum = filled(before.map_or(0, |_| rows.len()), |sum| {
                let mut sums = TilesMut::new(sum, width);
                let mut answers = TilesMut::new(answer, width);
                let mut post = TilesMut::new(&mut post_inverse_rms, 1);
                let mut pre = TilesMut::new(&mut pre_inverse_rms, 1);
                let tiles = (0..tile_count(tokens)).map(|index| ForwardTile {
                    before: before.map(|before| before.stream(index, width)),
                    write: tile(rows, index, width),
                    sum: sums.take(),
                    answer: answers.take(),
                    post_inverse_rms: post.take(),
                    pre_inverse_rms: pre.take(),
                });
                each_of(tiles, |tile| go_forward(tile, step.skip, norms, width, eps));
            });
        });
        let sum: Rows = if before.is_some() { Arc::new(sum) } else { write };
        if !self.keep {
            self.levels.clear();
        }
        let post_gain = norms.post.map(<[f32]>::to_vec);
        self.levels.push(Level { sum, post_inverse_rms, pre_inverse_rms, post_gain });
        self.passed += 1;
        answer
    }

    fn backward(&mut self, d_input: &[f32], params: &[f32]) -> Gradient {
        assert!(self.keep, "nothing was kept for the way back");
        let level = self.levels.pop().expect("every junction is gone back through once");
        self.passed -= 1;
        let (width, step) = (self.width, self.steps[self.passed]);
        // Zero is only ever multiplied with the zeros that the gradient starts from.
        let carry = self.steps.get(self.passed + 1).map_or(0.0, |next| next.skip);
        self.d_sum.resize(d_input.len(), 0.0);
        let norms = step.norms(params, width);
        let tiles = tile_count(d_input.len() / width);
        let mut partials = vec![0.0; tiles * params.len()];
        let write = filled(d_input.len(), |d_write| {
            let mut d_sums = TilesMut::new(&mut self.d_sum, width);
            let mut d_writes = TilesMut::new(d_write, width);
            let mut partials = TilesMut::of_partials(&mut partials, params.len());
            let tiles = (0..tiles).map(|index| BackwardTile {
                d_input: tile(d_input, index, width),
                sum: tile(level.sum.values(), index, width),
                post_inverse_rms: tile(&level.post_inverse_rms, index, 1),
                pre_inverse_rms: tile(&level.pre_inverse_rms, index, 1),
                d_sum: d_sums.take(),
                d_write: d_writes.take(),
                d_params: partials.take(),
            });
            each_of(tiles, |tile| go_backward(tile, carry, norms, width));
        });
        Gradient { write, params: sum_of_partials(&partials, params.len()) }
    }

    fn walk(self: Box<Self>) -> Box<dyn Walk> {
        Box::new(AdditiveWalk::new(*self))
    }
}

simd! {
    fn go_forward(tile: ForwardTile<'_>, skip: f32, norms: Norms<'_>, width: usize, eps: f32) {
        let writes = tile.write.chunks_exact(width);
        for ((token, write), answer) in writes.enumerate().zip(tile.answer.chunks_exact_mut(width)) {
            let row = token * width..(token + 1) * width;
            let sum = match &tile.before {
                None => write,
                Some(before) => {
                    let (sum, x) = (&mut tile.sum[row.clone()], &before.sum[row]);
                    match before.norm {
                        None => add(sum, skip, x, write),
                        Some((scales, gain)) => add_normed(sum, skip * scales[token], x, gain, write),
                    }
                    sum
                }
            };
            match (norms.post, norms.pre) {
                (None, None) => answer.copy_from_slice(sum),
                (Some(gain), None) => {
                    let r = inverse_rms(sum, eps);
                    tile.post_inverse_rms[token] = r;
                    scale_by_gain(answer, r, sum, gain);
                }
                (None, Some(pre)) => {
                    let r = inverse_rms(sum, eps);
                    tile.pre_inverse_rms[token] = r;
                    scale_by_gain(answer, pre.scale * r, sum, pre.gain);
                }
                (Some(gain), Some(pre)) => {
                    let r = inverse_rms(sum, eps);
                    tile.post_inverse_rms[token] = r;
                    scale_by_gain(answer, r, sum, gain);
                    let r = inverse_rms(answer, eps);
                    tile.pre_inverse_rms[token] = r;
                    multiply_by_gain(answer, pre.scale * r, pre.gain);
                }
            }
        }
    }
}

simd! {
    fn go_backward(tile: BackwardTile<'_>, carry: f32, norms: Norms<'_>, width: usize) {
        let (d_post_gain, d_pre_gain) = tile.d_params.split_at_mut(norms.post.map_or(0, <[f32]>::len));
        let mut normed = vec![0.0; norms.post.and(norms.pre).map_or(0, |_| width)];
        let rows = tile.d_input.chunks_exact(width).zip(tile.sum.chunks_exact(width));
        let d_rows = tile.d_sum.chunks_exact_mut(width).zip(tile.d_write.chunks_exact_mut(width));
        for ((token, (d_input, sum)), (d_sum, d_write)) in rows.enumerate().zip(d_rows) {
            // Of the stream first; of the sum once it went through the norm that may lie between them.
            let d_x = d_sum;
            match norms.pre {
                None => add_to_carried(d_x, d_write, carry, d_input),
                Some(pre) => {
                    let x = match norms.post {
                        None => sum,
                        Some(gain) => {
                            scale_by_gain(&mut normed, tile.post_inverse_rms[token], sum, gain);
                            &normed
                        }
                    };
                    let inverse_rms = tile.pre_inverse_rms[token];
                    Normed { x, inverse_rms, scale: pre.scale, gain: pre.gain }
                        .add_gradient(d_x, d_write, carry, d_input, d_pre_gain);
                }
            }
            if let Some(gain) = norms.post {
                let inverse_rms = tile.post_inverse_rms[token];
                Normed { x: sum, inverse_rms, scale: 1.0, gain }.take_gradient(d_x, d_post_gain);
                d_write.copy_from_slice(d_x);
            }
        }
    }
}

/// `sum = skip x + write`.
#[inline(always)]
fn add(sum: &mut [f32], skip: f32, x: &[f32], write: &[f32]) {
    for ((sum, x), write) in sum.iter_mut().zip(x).zip(write) {
        *sum = skip * x + write;
    }
}

/// `sum = a x gain + write`.
#[inline(always)]
fn add_normed(sum: &mut [f32], a: f32, x: &[f32], gain: &[f32], write: &[f32]) {
    for (((sum, x), gain), write) in sum.iter_mut().zip(x).zip(gain).zip(write) {
        *sum = a * x * gain + write;
    }
}

/// `d_x = carry d_x + d`, also written to `copy`.
#[inline(always)]
fn add_to_carried(d_x: &mut [f32], copy: &mut [f32], carry: f32, d: &[f32]) {
    for ((d_x, copy), d) in d_x.iter_mut().zip(copy).zip(d) {
        *d_x = carry * *d_x + d;
        *copy = *d_x;
    }
}

#[cfg(test)]
mod tests;
