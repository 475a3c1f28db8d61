//! SiameseNorm: a PostNorm stream `x` and a PreNorm stream `y` that share their sub-layers.
//!
//! A junction finishes the write `z` of the sub-layer before it and then reads for the next one, or for
//! the head:
//!
//! ```text
//! x = x^ + c z    y = y + z             (junction 0: x = y = z, the embedding)
//! x^ = rms(x) * post_gain
//! h = x^ + rms(y) * pre_gain
//! output = rms(h) * gain
//! ```
//!
//! with `rms(v) = v / sqrt(mean(v^2) + eps)` and a constant `c` for each sub-layer.
//!
//! # Parameters of a junction
//! `[post_gain: width][pre_gain: width][gain: width]`; the last junction has the two read-out norms
//! and the final one.
//!
//! # What is kept
//! `x` and `y` of each junction and three numbers per token. Neither `x^` nor `h` is ever stored: both
//! are factors per token and gains away from `x` and `y`. The embedding is shared, not copied.

use super::driver::{Backward, Carried, Forward, Parts, Policy};
use super::tiles::{split, split_mut};
use crate::row::{Normed, inverse_rms, multiply_by_gain};
use crate::simd::add_scaled;

/// Norms at a junction, each with a gain and, for each token, an inverse RMS: of `x`, `y` and `h`.
const NORMS: usize = 3;

/// A PostNorm and a PreNorm stream that share their sub-layers.
pub type Siamese = Carried<Twins>;

impl Siamese {
    /// Two streams of this width past as many sub-layers as there are `write_scales`, the constants
    /// `c`; so there is one more junction. Without `keep` there is no way back.
    pub fn new(width: usize, eps: f32, write_scales: Vec<f32>, keep: bool) -> Self {
        assert!(width > 0, "a stream has at least one feature");
        Self::by(Twins { width, eps, write_scales }, keep)
    }
}

/// The policy of [`Siamese`].
#[derive(Debug)]
pub struct Twins {
    width: usize,
    eps: f32,
    write_scales: Vec<f32>,
}

/// The gains of a junction's norms.
#[derive(Clone, Copy, Debug)]
pub struct Gains<'a> {
    post: &'a [f32],
    pre: &'a [f32],
    last: &'a [f32],
}

impl Twins {
    /// What the write of this junction is multiplied by before it is added to `x`. The embedding starts
    /// both streams as it is.
    fn write_scale(&self, junction: usize) -> f32 {
        if junction == 0 { 1.0 } else { self.write_scales[junction - 1] }
    }
}

// SAFETY: every row of the output and of `d_write` is written, and so is what the record has of it.
unsafe impl Policy for Twins {
    type Params<'a> = Gains<'a>;
    type Kept = ();
    /// A row.
    type Scratch = Vec<f32>;

    fn width(&self) -> usize {
        self.width
    }

    fn junctions(&self) -> usize {
        self.write_scales.len() + 1
    }

    fn params(&self, _: usize) -> usize {
        NORMS * self.width
    }

    fn split<'a>(&self, _: usize, params: &'a [f32]) -> Gains<'a> {
        let [post, pre, last] = split(params, [self.width; NORMS]);
        Gains { post, pre, last }
    }

    /// `x`, `y` and the norms. The embedding is both streams of junction 0.
    fn record(&self, junction: usize) -> Parts {
        let stream = if junction == 0 { 0 } else { self.width };
        [stream, stream, NORMS, 0]
    }

    /// Of `x` and of `y`.
    fn gradient(&self) -> Parts {
        [self.width, self.width, 0, 0]
    }

    fn keeps_write(&self, junction: usize) -> bool {
        junction == 0
    }

    fn handed_on<'a>(&self, junction: usize, params: &'a [f32]) -> &'a [f32] {
        self.split(junction, params).post
    }

    #[inline(always)]
    fn forward(&self, gains: &Gains<'_>, tile: Forward<'_, ()>, _: &mut Vec<f32>) {
        let (width, eps, scale) = (self.width, self.eps, self.write_scale(tile.junction));
        let [xs, ys, norms, _] = tile.record;
        let [mut before_x, mut before_y, before_norms, _] = tile.before.record;
        if tile.junction == 1 {
            (before_x, before_y) = (tile.before.write, tile.before.write);
        }
        let writes = tile.write.chunks_exact(width).enumerate();
        let outputs = tile.output.chunks_exact_mut(width);
        let norms = norms.chunks_exact_mut(NORMS);
        for (((token, write), output), norms) in writes.zip(outputs).zip(norms) {
            let row = token * width..(token + 1) * width;
            let (x, y) = if tile.junction == 0 {
                (write, write)
            } else {
                let (x, y) = (&mut xs[row.clone()], &mut ys[row.clone()]);
                let r = before_norms[token * NORMS];
                add_normed(x, r, &before_x[row.clone()], tile.handed_on, scale, write);
                add(y, &before_y[row], write);
                (&*x, &*y)
            };
            let (r_x, r_y) = (inverse_rms(x, eps), inverse_rms(y, eps));
            join(output, r_x, x, r_y, y, gains);
            let r_h = inverse_rms(output, eps);
            multiply_by_gain(output, r_h, gains.last);
            norms.copy_from_slice(&[r_x, r_y, r_h]);
        }
    }

    #[inline(always)]
    fn backward(&self, gains: &Gains<'_>, tile: Backward<'_, ()>, d_h: &mut Vec<f32>) {
        let (width, scale) = (self.width, self.write_scale(tile.junction));
        let [d_post_gain, d_pre_gain, d_last_gain] = split_mut(tile.d_params, [width; NORMS]);
        let [xs, ys, norms, _] = tile.record.map(|part| &*part);
        let (xs, ys) = if tile.junction == 0 { (tile.write, tile.write) } else { (xs, ys) };
        let [d_xs, d_ys, ..] = tile.gradient;
        d_h.resize(width, 0.0);
        let streams = xs.chunks_exact(width).zip(ys.chunks_exact(width));
        let streams = streams.zip(norms.chunks_exact(NORMS));
        let d_streams = d_xs.chunks_exact_mut(width).zip(d_ys.chunks_exact_mut(width));
        let d_ends = tile.d_output.chunks_exact(width).zip(tile.d_write.chunks_exact_mut(width));
        for ((((x, y), norms), (d_x, d_y)), (d_output, d_write)) in
            streams.zip(d_streams).zip(d_ends)
        {
            let (r_x, r_y, r_h) = (norms[0], norms[1], norms[2]);
            // There is room for the joined streams where the write's gradient will be.
            join(d_write, r_x, x, r_y, y, gains);
            let h = Normed { x: d_write, inverse_rms: r_h, scale: 1.0, gain: gains.last };
            d_h.copy_from_slice(d_output);
            h.take_gradient(d_h, d_last_gain);
            add_scaled(d_x, 1.0, d_h);
            let x = Normed { x, inverse_rms: r_x, scale: 1.0, gain: gains.post };
            x.take_gradient(d_x, d_post_gain);
            let y = Normed { x: y, inverse_rms: r_y, scale: 1.0, gain: gains.pre };
            y.add_gradient(d_y, d_write, 1.0, d_h, d_pre_gain);
            add_scaled(d_write, scale, d_x);
        }
    }
}

/// `x = a before gain + scale write`.
#[inline(always)]
fn add_normed(x: &mut [f32], a: f32, before: &[f32], gain: &[f32], scale: f32, write: &[f32]) {
    for (((x, before), gain), write) in x.iter_mut().zip(before).zip(gain).zip(write) {
        *x = a * before * gain + scale * write;
    }
}

/// `y = before + write`.
#[inline(always)]
fn add(y: &mut [f32], before: &[f32], write: &[f32]) {
    for ((y, before), write) in y.iter_mut().zip(before).zip(write) {
        *y = before + write;
    }
}

/// `h = r_x x post_gain + r_y y pre_gain`.
#[inline(always)]
fn join(h: &mut [f32], r_x: f32, x: &[f32], r_y: f32, y: &[f32], gains: &Gains<'_>) {
    let normed = x.iter().zip(gains.post).zip(y.iter().zip(gains.pre));
    for (h, ((x, post), (y, pre))) in h.iter_mut().zip(normed) {
        *h = r_x * x * post + r_y * y * pre;
    }
}

#[cfg(test)]
mod tests;
