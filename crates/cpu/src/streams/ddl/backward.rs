//! The backward pass of a tile: back through the read, then through the write.

use super::{DeltaChannels, Lane, Params, Room, Target, gate, read_channels};
use crate::pieces::{load, store};
use crate::row::triple_dot;
use crate::simd::{add_scaled, dot};
use crate::streams::driver::Backward;
use crate::streams::tiles::split_mut;

impl DeltaChannels {
    #[inline(always)]
    pub(super) fn backward_tile(
        &self,
        params: &Params<&[f32]>,
        tile: Backward<'_, ()>,
        room: &mut Room,
    ) {
        let (n, width, wide) = (self.settings.channels, self.settings.width, self.wide());
        let [taken_back, ..] = tile.state;
        let [copies, lanes, targets, differences] = tile.record;
        let [_, lanes_before, targets_before, _] = tile.before.record;
        let lanes_before = lanes_before.as_chunks::<{ Lane::LENGTH }>().0;
        let [d_state, d_betas, d_targets, _] = tile.gradient;
        let d_params = Params::of(split_mut(tile.d_params, self.lengths(tile.junction)));
        // Copies are not needed any longer, and may be changed as the state is.
        let state = if self.settings.exact { copies } else { taken_back };
        let Room { h, d_h, numbers } = room;
        h.resize(width, 0.0);
        d_h.resize(width, 0.0);
        numbers.resize(n, 0.0);

        let rows = state.chunks_exact_mut(wide).zip(d_state.chunks_exact_mut(wide));
        let carried = d_betas.iter_mut().zip(d_targets.chunks_exact_mut(n));
        let lanes = lanes.as_chunks::<{ Lane::LENGTH }>().0.iter();
        let kept = lanes.zip(differences.chunks_exact(n));
        let ends = tile.d_output.chunks_exact(width).zip(tile.d_write.chunks_exact_mut(width));
        for (token, ((((channels, d_channels), (d_beta, d_targets)), (lane, differences)), ends)) in
            rows.zip(carried).zip(kept).zip(ends).enumerate()
        {
            let (d_output, d_write) = ends;
            let r = lane[Lane::NORM];
            // What the gates and targets of the next site give, along which rows, and how it pulls on the norm.
            let (mut along_beta, mut pull) = (0.0, 0.0);
            numbers.fill(0.0);
            if tile.junction < self.sites {
                let beta = gate(lane[Lane::SCORE] + params.beta_bias[0]);
                let d_score = *d_beta * beta * (1.0 - 0.5 * beta);
                d_params.beta_bias[0] += d_score;
                along_beta = d_score * r;
                pull += d_score * lane[Lane::SCORE];
                let targets = &targets[token * n..(token + 1) * n];
                let each = numbers.iter_mut().zip(&*d_targets).zip(targets);
                match self.settings.target {
                    Target::Sigmoid => {
                        let sums = d_params.target_bias.iter_mut();
                        for (((number, d), target), sum) in each.zip(sums) {
                            *number = d * target * (1.0 - 0.25 * target);
                            *sum += *number;
                        }
                    }
                    Target::Linear => {
                        for ((number, d), target) in each {
                            *number = d * r;
                            pull += d * target;
                        }
                    }
                }
            }
            let h: &[f32] = if n == 1 {
                channels
            } else {
                read_channels(h, channels, params.read);
                h
            };
            let pull = (pull + r * triple_dot(d_output, params.gain, h)) * r * r / width as f32;
            let norm = Norm { r, pull, h, d_output, gain: params.gain };
            if tile.junction == self.sites {
                norm.backward(d_h, d_params.gain);
            } else {
                let beta = (along_beta, params.beta_weight, &mut *d_params.beta_weight);
                let row = (numbers[0], &params.target_weight[..width]);
                let (first, others) = d_params.target_weight.split_at_mut(width);
                norm.backward_of_site(d_h, d_params.gain, beta, (row.0, row.1, first));
                let others = others.chunks_exact_mut(width);
                let rows = params.target_weight[width..].chunks_exact(width);
                for ((d_row, row), number) in others.zip(rows).zip(&numbers[1..]) {
                    add_scaled(d_h, *number, row);
                    add_scaled(d_row, *number, h);
                }
            }
            if n == 1 {
                add_scaled(d_channels, 1.0, d_h);
            } else {
                spread(d_channels, d_params.read, d_h, channels, params.read);
            }

            if tile.junction == 0 {
                d_write.fill(0.0);
                d_channels.chunks_exact(width).for_each(|d| add_scaled(d_write, 1.0, d));
            } else if tile.before.runs.get(token) == Some(&false) {
                d_write.fill(0.0);
                d_targets.fill(0.0);
                *d_beta = 0.0;
            } else {
                let write = Write {
                    f: &tile.write[token * width..(token + 1) * width],
                    inverse: lane[Lane::INVERSE],
                    beta: lanes_before[token][Lane::BETA],
                    targets: &targets_before[token * n..(token + 1) * n],
                    differences,
                };
                *d_beta = write.backward(d_write, channels, d_channels, d_targets);
            }
        }
    }
}

/// The norm before a reader, on its way back.
#[derive(Clone, Copy)]
struct Norm<'a> {
    r: f32,
    /// How strongly the gradient is pulled back along what was read.
    pull: f32,
    h: &'a [f32],
    d_output: &'a [f32],
    gain: &'a [f32],
}

impl Norm<'_> {
    /// `d_h = r d_output gain - pull h`, `d_gain += r d_output h`.
    #[inline(always)]
    fn backward(self, d_h: &mut [f32], d_gain: &mut [f32]) {
        let Self { r, pull, h, d_output, gain } = self;
        let rows = d_h.iter_mut().zip(d_gain).zip(h).zip(d_output).zip(gain);
        for ((((d_h, d_gain), h), d), gain) in rows {
            *d_h = r * d * gain - pull * h;
            *d_gain += r * d * h;
        }
    }

    /// The same, and two rows w with a gradient c of their products with h: `d_h += c w`, `d_w += c h`.
    #[inline(always)]
    fn backward_of_site(
        self,
        d_h: &mut [f32],
        d_gain: &mut [f32],
        (a, first, d_first): (f32, &[f32], &mut [f32]),
        (b, second, d_second): (f32, &[f32], &mut [f32]),
    ) {
        let Self { r, pull, h, d_output, gain } = self;
        pieces!(h.len(), |at| {
            let (h, d, gain): ([f32; N], [f32; N], [f32; N]) =
                (load(h, at), load(d_output, at), load(gain, at));
            let (first, second): ([f32; N], [f32; N]) = (load(first, at), load(second, at));
            let mut sums: [[f32; N]; 3] = [load(d_gain, at), load(d_first, at), load(d_second, at)];
            let mut new = [0.0; N];
            for j in 0..N {
                new[j] = r * d[j] * gain[j] - pull * h[j] + a * first[j] + b * second[j];
                sums[0][j] += r * d[j] * h[j];
                sums[1][j] += a * h[j];
                sums[2][j] += b * h[j];
            }
            store(d_h, at, new);
            store(d_gain, at, sums[0]);
            store(d_first, at, sums[1]);
            store(d_second, at, sums[2]);
        });
    }
}

/// Back through `h = sum_j read_j * X_j`.
#[inline(always)]
fn spread(d_channels: &mut [f32], d_read: &mut [f32], d_h: &[f32], channels: &[f32], read: &[f32]) {
    let width = d_h.len();
    let d_rows = d_channels.chunks_exact_mut(width).zip(d_read.chunks_exact_mut(width));
    let rows = channels.chunks_exact(width).zip(read.chunks_exact(width));
    for ((d_x, d_read), (x, read)) in d_rows.zip(rows) {
        pieces!(width, |at| {
            let (d, x, read): ([f32; N], [f32; N], [f32; N]) =
                (load(d_h, at), load(x, at), load(read, at));
            let (mut new, mut sums): ([f32; N], [f32; N]) = (load(d_x, at), load(d_read, at));
            for j in 0..N {
                new[j] += read[j] * d[j];
                sums[j] += x[j] * d[j];
            }
            store(d_x, at, new);
            store(d_read, at, sums);
        });
    }
}

/// A write that corrected the channels.
struct Write<'a> {
    f: &'a [f32],
    inverse: f32,
    beta: f32,
    targets: &'a [f32],
    differences: &'a [f32],
}

impl Write<'_> {
    /// Takes the channels back, makes of their gradients those of the channels before, and returns that of beta.
    #[inline(always)]
    fn backward(
        &self,
        d_write: &mut [f32],
        channels: &mut [f32],
        d_channels: &mut [f32],
        d_targets: &mut [f32],
    ) -> f32 {
        let Self { f, inverse, beta, targets, differences } = *self;
        let width = f.len();
        // p_j first.
        for (p, d_x) in d_targets.iter_mut().zip(d_channels.chunks_exact(width)) {
            *p = inverse * dot(d_x, f);
        }
        let (mut d_beta, mut along) = (0.0, 0.0);
        for ((p, u), target) in d_targets.iter().zip(differences).zip(targets) {
            d_beta += p * u;
            along += p * (2.0 * u - target);
        }
        let (strength, along) = (beta * inverse, beta * along * inverse * inverse);
        let rows = channels.chunks_exact_mut(width).zip(d_channels.chunks_exact_mut(width));
        let each = rows.zip(d_targets.iter_mut().zip(differences)).enumerate();
        for (j, ((x, d_x), (p, u))) in each {
            let (of_gradient, of_channel) = (strength * u, strength * *p);
            pieces!(width, |at| {
                let f: [f32; N] = load(f, at);
                let (mut x_at, mut d_at): ([f32; N], [f32; N]) = (load(x, at), load(d_x, at));
                let mut sums: [f32; N] = match j {
                    0 => f.map(|f| -along * f),
                    _ => load(d_write, at),
                };
                for i in 0..N {
                    x_at[i] -= of_gradient * f[i];
                    sums[i] += of_gradient * d_at[i] - of_channel * x_at[i];
                    d_at[i] -= of_channel * f[i];
                }
                store(x, at, x_at);
                store(d_x, at, d_at);
                store(d_write, at, sums);
            });
            *p *= beta;
        }
        d_beta
    }
}
