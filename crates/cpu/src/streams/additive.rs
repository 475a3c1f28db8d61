//! One stream to which every sub-layer adds: PreNorm, LayerNorm Scaling, PostNorm, DeepNorm, Mix-LN, Sandwich-LN.
//!
//! A junction takes the write `f` and computes
//!
//! ```text
//! y = scale rms(f) * write_gain       where the step has a norm of the write, otherwise f
//! s = carry x + y                     (junction 0: s = f, the embedding)
//! x' = rms(s) * post_gain             where the step has a norm after the sum, otherwise s
//! output = scale rms(x') * pre_gain   where the step has a norm before the reader, otherwise x'
//! ```
//!
//! with `rms(v) = v / sqrt(mean(v^2) + eps)`.
//!
//! # Parameters of a junction
//! `[write_gain: width, if write_norm][post_gain: width, if post][pre_gain: width, if pre]`
//!
//! # What is kept
//! The sum `s` of each junction and one number per token and norm; a write only where it is normalised. The
//! normalised stream is never stored: `x'` is a factor per token and a gain away from `s`, wherever it is read. So
//! every policy has the traffic of PreNorm: forward two rows in and two out, backward three in and two out. The
//! embedding is shared, not copied.

use super::driver::{Backward, Carried, Forward, Parts, Policy};
use super::tiles::{split, split_mut};
use crate::row::{Normed, inverse_rms, multiply_by_gain, scale_by_gain};
use crate::simd::add_scaled;

/// What [`Additive`] does at one junction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdditiveStep {
    /// If the write is normalised, the constant that it is multiplied by; never at junction 0.
    pub write_norm: Option<f32>,
    /// Weight of the stream when the write is added to it; without effect at junction 0.
    pub carry: f32,
    /// Whether the sum is normalised.
    pub post: bool,
    /// If the output is normalised, the constant that it is multiplied by.
    pub pre: Option<f32>,
}

impl Default for AdditiveStep {
    /// Adds the write, without a norm.
    fn default() -> Self {
        Self { write_norm: None, carry: 1.0, post: false, pre: None }
    }
}

impl AdditiveStep {
    /// How many parameters the junction has.
    pub fn params(&self, width: usize) -> usize {
        width * self.norms().iter().sum::<usize>()
    }

    /// One for each norm that is there: of the write, after the sum, before the reader.
    fn norms(&self) -> [usize; 3] {
        [self.write_norm.is_some(), self.post, self.pre.is_some()].map(usize::from)
    }
}

/// One stream to which every sub-layer adds.
pub type Additive = Carried<Adding>;

impl Additive {
    /// A stream of this width past `steps`, one for each junction. Without `keep` there is no way back.
    pub fn new(width: usize, eps: f32, steps: Vec<AdditiveStep>, keep: bool) -> Self {
        assert!(width > 0, "a stream has at least one feature");
        let first = steps.first().and_then(|step| step.write_norm);
        assert!(first.is_none(), "the embedding is normalised as a sum, not as a write");
        Self::by(Adding { width, eps, steps }, keep)
    }
}

/// The policy of [`Additive`].
#[derive(Debug)]
pub struct Adding {
    width: usize,
    eps: f32,
    steps: Vec<AdditiveStep>,
}

/// The gains of a junction's norms, as far as it has them, with their constants.
#[derive(Debug)]
pub struct Norms<'a> {
    write: Option<(f32, &'a [f32])>,
    post: Option<&'a [f32]>,
    pre: Option<(f32, &'a [f32])>,
}

// SAFETY: every row of the output and of `d_write` is written, and so is what the record has of it.
unsafe impl Policy for Adding {
    type Params<'a> = Norms<'a>;
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

    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Norms<'a> {
        let step = &self.steps[junction];
        let [write, post, pre] = split(params, step.norms().map(|norms| norms * self.width));
        Norms {
            write: step.write_norm.map(|scale| (scale, write)),
            post: step.post.then_some(post),
            pre: step.pre.map(|scale| (scale, pre)),
        }
    }

    /// The sums, but for the embedding, then the inverse RMS of write, sum and stream, where there is a norm.
    fn record(&self, junction: usize) -> Parts {
        let [write, post, pre] = self.steps[junction].norms();
        [if junction == 0 { 0 } else { self.width }, write, post, pre]
    }

    fn gradient(&self) -> Parts {
        [self.width, 0, 0, 0]
    }

    fn keeps_write(&self, junction: usize) -> bool {
        junction == 0 || self.steps[junction].write_norm.is_some()
    }

    /// The gain of the norm after the sum: the next junction needs it to find the stream again.
    fn handed_on<'a>(&self, junction: usize, params: &'a [f32]) -> &'a [f32] {
        self.split(junction, params).post.unwrap_or_default()
    }

    #[inline(always)]
    fn forward(&self, norms: &Norms<'_>, tile: Forward<'_, ()>, _: &mut Vec<f32>) {
        let (width, eps, step) = (self.width, self.eps, &self.steps[tile.junction]);
        let [sums, write_rms, post_rms, pre_rms] = tile.record;
        // The sums that the junction before left, and their inverse RMS if the stream is what a norm makes of them.
        let [stream, _, stream_rms, _] = tile.before.record;
        let stream = if tile.junction == 1 { tile.before.write } else { stream };
        let writes = tile.write.chunks_exact(width);
        for ((token, write), output) in writes.enumerate().zip(tile.output.chunks_exact_mut(width))
        {
            let row = token * width..(token + 1) * width;
            let sum: &[f32] = if tile.junction == 0 {
                write
            } else {
                let (sum, x) = (&mut sums[row.clone()], &stream[row]);
                let a = stream_rms.get(token).map_or(step.carry, |r| step.carry * r);
                match (norms.write, stream_rms.is_empty()) {
                    (None, true) => add(sum, a, x, write),
                    (None, false) => add_normed(sum, a, x, tile.handed_on, write),
                    (Some((scale, gain)), plain) => {
                        let r = inverse_rms(write, eps);
                        write_rms[token] = r;
                        scale_by_gain(sum, scale * r, write, gain);
                        if plain {
                            add_scaled(sum, a, x);
                        } else {
                            add_normed_to(sum, a, x, tile.handed_on);
                        }
                    }
                }
                sum
            };
            match (norms.post, norms.pre) {
                (None, None) => output.copy_from_slice(sum),
                (Some(gain), None) => {
                    let r = inverse_rms(sum, eps);
                    post_rms[token] = r;
                    scale_by_gain(output, r, sum, gain);
                }
                (None, Some((scale, gain))) => {
                    let r = inverse_rms(sum, eps);
                    pre_rms[token] = r;
                    scale_by_gain(output, scale * r, sum, gain);
                }
                (Some(post_gain), Some((scale, gain))) => {
                    let r = inverse_rms(sum, eps);
                    post_rms[token] = r;
                    scale_by_gain(output, r, sum, post_gain);
                    let r = inverse_rms(output, eps);
                    pre_rms[token] = r;
                    multiply_by_gain(output, scale * r, gain);
                }
            }
        }
    }

    #[inline(always)]
    fn backward(&self, norms: &Norms<'_>, tile: Backward<'_, ()>, normed: &mut Vec<f32>) {
        let (width, step) = (self.width, &self.steps[tile.junction]);
        // Zero is only ever multiplied with the zeros that the gradient starts from.
        let carry = self.steps.get(tile.junction + 1).map_or(0.0, |next| next.carry);
        let [sums, write_rms, post_rms, pre_rms] = tile.record;
        let [gradient, ..] = tile.gradient;
        let sums = if tile.junction == 0 { tile.write } else { sums };
        let [d_write_gain, d_post_gain, d_pre_gain] =
            split_mut(tile.d_params, step.norms().map(|norms| norms * width));
        normed.resize(width, 0.0);
        let rows = tile.d_output.chunks_exact(width).zip(sums.chunks_exact(width));
        let d_rows = gradient.chunks_exact_mut(width).zip(tile.d_write.chunks_exact_mut(width));
        for ((token, (d_output, sum)), (d_x, d_write)) in rows.enumerate().zip(d_rows) {
            // Of the stream first; of the sum once it went through the norm that may lie between them.
            match norms.pre {
                None => add_to_carried(d_x, d_write, carry, d_output),
                Some((scale, gain)) => {
                    let x = match norms.post {
                        None => sum,
                        Some(post_gain) => {
                            scale_by_gain(normed, post_rms[token], sum, post_gain);
                            &*normed
                        }
                    };
                    Normed { x, inverse_rms: pre_rms[token], scale, gain }
                        .add_gradient(d_x, d_write, carry, d_output, d_pre_gain);
                }
            }
            if let Some(gain) = norms.post {
                Normed { x: sum, inverse_rms: post_rms[token], scale: 1.0, gain }
                    .take_gradient(d_x, d_post_gain);
                d_write.copy_from_slice(d_x);
            }
            if let Some((scale, gain)) = norms.write {
                let x = &tile.write[token * width..(token + 1) * width];
                Normed { x, inverse_rms: write_rms[token], scale, gain }
                    .take_gradient(d_write, d_write_gain);
            }
        }
    }
}

/// `sum = carry x + write`.
#[inline(always)]
fn add(sum: &mut [f32], carry: f32, x: &[f32], write: &[f32]) {
    for ((sum, x), write) in sum.iter_mut().zip(x).zip(write) {
        *sum = carry * x + write;
    }
}

/// `sum = a x gain + write`.
#[inline(always)]
fn add_normed(sum: &mut [f32], a: f32, x: &[f32], gain: &[f32], write: &[f32]) {
    for (((sum, x), gain), write) in sum.iter_mut().zip(x).zip(gain).zip(write) {
        *sum = a * x * gain + write;
    }
}

/// `sum += a x gain`.
#[inline(always)]
fn add_normed_to(sum: &mut [f32], a: f32, x: &[f32], gain: &[f32]) {
    for ((sum, x), gain) in sum.iter_mut().zip(x).zip(gain) {
        *sum += a * x * gain;
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
