//! The last junction, where no weights are found: it writes and reads out, without ever forming the streams after the
//! write.
//!
//! With weights `r` of the streams in the read-out (one, `1 / n`, or what the last site handed on) and `E` of the last
//! site, `out = sum_j (sum_i r_i E_ij) row_j`, where the rows are the streams before the write and the write.

use super::block::weighted_sum;
use super::tile::{Params, Room, handed_on, normalise_backward};
use super::{Mixed, MixingReadOut};
use crate::row::normalise;
use crate::simd::add_scaled;
use crate::streams::driver::{Backward, Forward};
use crate::streams::tiles::split_mut;

impl Mixed {
    /// The weight of each stream in the read-out of token `t`, given the weights of the last site.
    #[inline(always)]
    fn weigh(&self, weights: &mut [f32], mixing: &[f32], t: usize) {
        match self.form.readout {
            MixingReadOut::Mean => weights.fill(1.0 / weights.len() as f32),
            MixingReadOut::HandedOn => handed_on(weights, mixing, t),
            MixingReadOut::Sum | MixingReadOut::Gated => weights.fill(1.0),
        }
    }

    #[inline(always)]
    pub(super) fn close(&self, params: &Params<&[f32]>, tile: Forward<'_, ()>, room: &mut Room) {
        let (shape, n, width) = (&self.shape, self.shape.n, self.shape.width);
        let [out, ..] = tile.record;
        let [streams, _, _, mixing] = tile.before.record;
        let Room { shares, weights, .. } = room;
        shares.resize(n + 1, 0.0);
        weights.resize(n, 0.0);
        let mut sources =
            streams.chunks_exact(shape.state()).zip(mixing.chunks_exact(shape.weights()));
        let rows = out.chunks_exact_mut(width).zip(tile.output.chunks_exact_mut(width));
        for (t, ((out, output), write)) in rows.zip(tile.write.chunks_exact(width)).enumerate() {
            self.weigh(weights, mixing, t);
            match sources.next() {
                None => {
                    out.fill(0.0);
                    shares[n] = weights.iter().sum();
                }
                Some((streams, edge)) => {
                    find_shares(shares, edge, weights);
                    weighted_sum(out, streams, shares, 1);
                }
            }
            if params.scale.is_empty() {
                add_scaled(out, shares[n], write);
            } else {
                for (scale, weight) in params.scale.chunks_exact(width).zip(&*weights) {
                    for j in 0..width {
                        out[j] += weight * scale[j] * write[j];
                    }
                }
            }
            output.copy_from_slice(out);
            normalise(output, params.gain, self.eps);
        }
    }

    /// The way back from [`Mixed::close`].
    #[inline(always)]
    pub(super) fn close_backward(
        &self,
        params: &Params<&[f32]>,
        tile: Backward<'_, ()>,
        room: &mut Room,
    ) {
        let (shape, n, width) = (&self.shape, self.shape.n, self.shape.width);
        let [d_gain, _, _, d_scale] = split_mut(tile.d_params, self.lengths(tile.junction));
        let Room { shares, weights, products, d_read: d_out, .. } = room;
        shares.resize(n + 1, 0.0);
        weights.resize(2 * n + 1, 0.0);
        d_out.resize(width, 0.0);
        let [gradient, d_handed_on, ..] = tile.gradient;
        let [out, ..] = tile.record;
        let [streams, _, _, mixing] = tile.before.record;
        for t in 0..tile.tokens {
            let row = t * width..(t + 1) * width;
            d_out.copy_from_slice(&tile.d_output[row.clone()]);
            normalise_backward(d_out, d_gain, &out[row.clone()], params.gain, self.eps);
            let (weights, dots) = weights.split_at_mut(n);
            self.weigh(weights, mixing, t);
            let gradient = &mut gradient[t * shape.state()..(t + 1) * shape.state()];
            for (gradient, weight) in gradient.chunks_exact_mut(width).zip(&*weights) {
                for (gradient, d_out) in gradient.iter_mut().zip(&*d_out) {
                    *gradient = weight * d_out;
                }
            }
            let d_write = &mut tile.d_write[row.clone()];
            let Some(edge) = mixing.get(t * shape.weights()..(t + 1) * shape.weights()) else {
                shares[n] = weights.iter().sum();
                scale_into(d_write, shares[n], d_out);
                if !params.scale.is_empty() {
                    let write = &tile.write[row];
                    scaled_backward(d_write, d_scale, d_out, [write, params.scale, weights]);
                }
                continue;
            };
            find_shares(shares, edge, weights);
            scale_into(d_write, shares[n], d_out);
            if self.hands_on() {
                // d_pre_i = d_out . H'_i, and H'_i is a sum of rows.
                let streams = &streams[t * shape.state()..(t + 1) * shape.state()];
                products.find(dots, 1, streams, d_out, width);
                products.find(&mut dots[n..], 1, &tile.write[row], d_out, width);
                let d_pre = &mut d_handed_on[t * n..(t + 1) * n];
                for (d_pre, edge) in d_pre.iter_mut().zip(edge.chunks_exact(n + 1)) {
                    *d_pre = edge.iter().zip(&*dots).map(|(edge, dot)| edge * dot).sum();
                }
            }
        }
    }
}

#[inline(always)]
fn scale_into(out: &mut [f32], share: f32, row: &[f32]) {
    for (out, x) in out.iter_mut().zip(row) {
        *out = share * x;
    }
}

/// The way back where no sub-layer is between the scaled embedding and the read-out.
#[inline(always)]
fn scaled_backward(
    d_write: &mut [f32],
    d_scale: &mut [f32],
    d_out: &[f32],
    [write, scale, weights]: [&[f32]; 3],
) {
    d_write.fill(0.0);
    let width = write.len();
    let streams = scale.chunks_exact(width).zip(d_scale.chunks_exact_mut(width));
    for ((scale, d_scale), weight) in streams.zip(weights) {
        for j in 0..width {
            d_write[j] += weight * scale[j] * d_out[j];
            d_scale[j] += weight * write[j] * d_out[j];
        }
    }
}

/// What each source gives to the read-out after a write: the n streams before it, then the write.
#[inline(always)]
fn find_shares(shares: &mut [f32], edge: &[f32], weights: &[f32]) {
    shares.fill(0.0);
    for (row, weight) in edge.chunks_exact(shares.len()).zip(weights) {
        add_scaled(shares, *weight, row);
    }
}
