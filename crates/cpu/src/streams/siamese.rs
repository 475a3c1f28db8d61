//! SiameseNorm: a PostNorm stream `x` and a PreNorm stream `y` that share their sub-layers.
//!
//! A junction finishes the write `z` of the sub-layer before it and then reads for the next one, or for
//! the head:
//!
//! ```text
//! x = x^ + c z    y = y + z             (junction 0: x = y = z, the embedding)
//! x^ = rms(x) * post_gain
//! h = x^ + rms(y) * pre_gain
//! answer = rms(h) * gain
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

mod walk;

use super::norm::{Normed, inverse_rms, multiply_by_gain};
use super::tiles::{TilesMut, sum_of_partials, tile, tile_count};
use super::{Gradient, Stream, Walk};
use crate::rows::{Rows, filled};
use crate::simd::add_scaled;
use crate::team::each_of;
use std::sync::Arc;
use walk::SiameseWalk;

/// Norms at a junction, each with a gain and, for each token, an inverse RMS: of `x`, `y` and `h`.
const NORMS: usize = 3;

/// A PostNorm and a PreNorm stream that share their sub-layers.
#[derive(Debug)]
pub struct Siamese {
    width: usize,
    eps: f32,
    write_scales: Vec<f32>,
    keep: bool,
    /// Junctions gone through and not gone back through.
    passed: usize,
    /// What they left behind, or only the last of them if nothing is kept.
    levels: Vec<Level>,
    /// The gradients of `x` and `y` at the junction last gone back through.
    d_x: Vec<f32>,
    d_y: Vec<f32>,
}

/// What a junction leaves behind.
#[derive(Debug)]
struct Level {
    x: Rows,
    y: Rows,
    /// `[tokens, NORMS]`
    inverse_rms: Vec<f32>,
    post_gain: Vec<f32>,
}

impl Level {
    fn streams(&self, index: usize, width: usize) -> Before<'_> {
        Before {
            x: tile(self.x.values(), index, width),
            y: tile(self.y.values(), index, width),
            inverse_rms: tile(&self.inverse_rms, index, NORMS),
            post_gain: &self.post_gain,
        }
    }
}

/// The gains of a junction's norms.
#[derive(Clone, Copy)]
struct Gains<'a> {
    post: &'a [f32],
    pre: &'a [f32],
    last: &'a [f32],
}

impl<'a> Gains<'a> {
    fn new(params: &'a [f32], width: usize) -> Self {
        let (post, rest) = params.split_at(width);
        let (pre, last) = rest.split_at(width);
        Self { post, pre, last }
    }
}

/// A tile of both streams as the junction before left them.
struct Before<'a> {
    x: &'a [f32],
    y: &'a [f32],
    inverse_rms: &'a [f32],
    post_gain: &'a [f32],
}

struct ForwardTile<'a> {
    before: Option<Before<'a>>,
    write: &'a [f32],
    /// Empty at junction 0, where the write is both streams.
    x: &'a mut [f32],
    y: &'a mut [f32],
    answer: &'a mut [f32],
    inverse_rms: &'a mut [f32],
}

struct BackwardTile<'a> {
    d_input: &'a [f32],
    x: &'a [f32],
    y: &'a [f32],
    inverse_rms: &'a [f32],
    d_x: &'a mut [f32],
    d_y: &'a mut [f32],
    d_write: &'a mut [f32],
    d_params: &'a mut [f32],
}

impl Siamese {
    /// Two streams of this width past as many sub-layers as there are `write_scales`, the constants
    /// `c`; so there is one more junction. Without `keep` there is no way back.
    pub fn new(width: usize, eps: f32, write_scales: Vec<f32>, keep: bool) -> Self {
        assert!(width > 0, "a stream has at least one feature");
        let (levels, d_x, d_y) = (Vec::new(), Vec::new(), Vec::new());
        Self { width, eps, write_scales, keep, passed: 0, levels, d_x, d_y }
    }

    /// What the write of this junction is multiplied by before it is added to `x`. The embedding starts
    /// both streams as it is.
    fn write_scale(&self, junction: usize) -> f32 {
        if junction == 0 { 1.0 } else { self.write_scales[junction - 1] }
    }
}

impl Stream for Siamese {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        let (width, eps, scale) = (self.width, self.eps, self.write_scale(self.passed));
        assert_eq!(params.len(), NORMS * width, "gains of junction {}", self.passed);
        let gains = Gains::new(params, width);
        let before = self.levels.last();
        let rows = write.values();
        let tokens = rows.len() / width;
        let own = before.map_or(0, |_| rows.len());
        let mut inverse_rms = vec![0.0; tokens * NORMS];
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let answer = filled(rows.len(), |answer| {
            x = filled(own, |x| {
                y = filled(own, |y| {
                    let (mut xs, mut ys) = (TilesMut::new(x, width), TilesMut::new(y, width));
                    let mut answers = TilesMut::new(answer, width);
                    let mut inverse_rms = TilesMut::new(&mut inverse_rms, NORMS);
                    let tiles = (0..tile_count(tokens)).map(|index| ForwardTile {
                        before: before.map(|before| before.streams(index, width)),
                        write: tile(rows, index, width),
                        x: xs.take(),
                        y: ys.take(),
                        answer: answers.take(),
                        inverse_rms: inverse_rms.take(),
                    });
                    each_of(tiles, |tile| go_forward(tile, scale, gains, width, eps));
                });
            });
        });
        let (x, y): (Rows, Rows) =
            if before.is_some() { (Arc::new(x), Arc::new(y)) } else { (write.clone(), write) };
        if !self.keep {
            self.levels.clear();
        }
        self.levels.push(Level { x, y, inverse_rms, post_gain: gains.post.to_vec() });
        self.passed += 1;
        answer
    }

    fn backward(&mut self, d_input: &[f32], params: &[f32]) -> Gradient {
        assert!(self.keep, "nothing was kept for the way back");
        let level = self.levels.pop().expect("every junction is gone back through once");
        self.passed -= 1;
        let (width, scale) = (self.width, self.write_scale(self.passed));
        let gains = Gains::new(params, width);
        self.d_x.resize(d_input.len(), 0.0);
        self.d_y.resize(d_input.len(), 0.0);
        let tiles = tile_count(d_input.len() / width);
        let mut partials = vec![0.0; tiles * params.len()];
        let write = filled(d_input.len(), |d_write| {
            let mut d_xs = TilesMut::new(&mut self.d_x, width);
            let mut d_ys = TilesMut::new(&mut self.d_y, width);
            let mut d_writes = TilesMut::new(d_write, width);
            let mut partials = TilesMut::of_partials(&mut partials, params.len());
            let tiles = (0..tiles).map(|index| BackwardTile {
                d_input: tile(d_input, index, width),
                x: tile(level.x.values(), index, width),
                y: tile(level.y.values(), index, width),
                inverse_rms: tile(&level.inverse_rms, index, NORMS),
                d_x: d_xs.take(),
                d_y: d_ys.take(),
                d_write: d_writes.take(),
                d_params: partials.take(),
            });
            each_of(tiles, |tile| go_backward(tile, scale, gains, width));
        });
        Gradient { write, params: sum_of_partials(&partials, params.len()) }
    }

    fn walk(self: Box<Self>) -> Box<dyn Walk> {
        Box::new(SiameseWalk::new(*self))
    }
}

simd! {
    fn go_forward(tile: ForwardTile<'_>, scale: f32, gains: Gains<'_>, width: usize, eps: f32) {
        let writes = tile.write.chunks_exact(width).enumerate();
        let answers = tile.answer.chunks_exact_mut(width);
        let norms = tile.inverse_rms.chunks_exact_mut(NORMS);
        for (((token, write), answer), norms) in writes.zip(answers).zip(norms) {
            let row = token * width..(token + 1) * width;
            let (x, y) = match &tile.before {
                None => (write, write),
                Some(before) => {
                    let (x, y) = (&mut tile.x[row.clone()], &mut tile.y[row.clone()]);
                    let r = before.inverse_rms[token * NORMS];
                    add_normed(x, r, &before.x[row.clone()], before.post_gain, scale, write);
                    add(y, &before.y[row], write);
                    (&*x, &*y)
                }
            };
            let (r_x, r_y) = (inverse_rms(x, eps), inverse_rms(y, eps));
            join(answer, r_x, x, r_y, y, gains);
            let r_h = inverse_rms(answer, eps);
            multiply_by_gain(answer, r_h, gains.last);
            norms.copy_from_slice(&[r_x, r_y, r_h]);
        }
    }
}

simd! {
    fn go_backward(tile: BackwardTile<'_>, scale: f32, gains: Gains<'_>, width: usize) {
        let (d_post_gain, rest) = tile.d_params.split_at_mut(width);
        let (d_pre_gain, d_last_gain) = rest.split_at_mut(width);
        let mut d_h = vec![0.0; width];
        let streams = tile.x.chunks_exact(width).zip(tile.y.chunks_exact(width));
        let streams = streams.zip(tile.inverse_rms.chunks_exact(NORMS));
        let d_streams = tile.d_x.chunks_exact_mut(width).zip(tile.d_y.chunks_exact_mut(width));
        let d_ends = tile.d_input.chunks_exact(width).zip(tile.d_write.chunks_exact_mut(width));
        for ((((x, y), norms), (d_x, d_y)), (d_input, d_write)) in streams.zip(d_streams).zip(d_ends) {
            let (r_x, r_y, r_h) = (norms[0], norms[1], norms[2]);
            // There is room for the joined streams where the write's gradient will be.
            join(d_write, r_x, x, r_y, y, gains);
            let h = Normed { x: d_write, inverse_rms: r_h, scale: 1.0, gain: gains.last };
            d_h.copy_from_slice(d_input);
            h.take_gradient(&mut d_h, d_last_gain);
            add_scaled(d_x, 1.0, &d_h);
            let x = Normed { x, inverse_rms: r_x, scale: 1.0, gain: gains.post };
            x.take_gradient(d_x, d_post_gain);
            let y = Normed { x: y, inverse_rms: r_y, scale: 1.0, gain: gains.pre };
            y.add_gradient(d_y, d_write, 1.0, &d_h, d_pre_gain);
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
fn join(h: &mut [f32], r_x: f32, x: &[f32], r_y: f32, y: &[f32], gains: Gains<'_>) {
    let normed = x.iter().zip(gains.post).zip(y.iter().zip(gains.pre));
    for (h, ((x, post), (y, pre))) in h.iter_mut().zip(normed) {
        *h = r_x * x * post + r_y * y * pre;
    }
}

#[cfg(test)]
mod tests;
