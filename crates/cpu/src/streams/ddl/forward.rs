//! The forward pass of a tile.

use super::{DIRECTION_EPS, DeltaChannels, Lane, Params, Target, gate, read_channels};
use crate::row::{inverse_root, multiply_by_gain, scale_by_gain, seen};
use crate::simd::{add_scaled, dot, square_and_dot};
use crate::streams::driver::Forward;

impl DeltaChannels {
    /// Corrects the channels by the writes, reads, and finds the next gates and targets.
    #[inline(always)]
    pub(super) fn forward_tile(&self, params: &Params<&[f32]>, tile: Forward<'_, ()>) {
        let (n, width, wide) = (self.settings.channels, self.settings.width, self.wide());
        let [state, ..] = tile.state;
        let [copies, lanes, targets, differences] = tile.record;
        let [_, lanes_before, targets_before, _] = tile.before.record;
        let lanes = lanes.as_chunks_mut::<{ Lane::LENGTH }>().0;
        let lanes_before = lanes_before.as_chunks::<{ Lane::LENGTH }>().0;
        let rows = state.chunks_exact_mut(wide).zip(differences.chunks_exact_mut(n)).zip(lanes);
        let ends = tile.write.chunks_exact(width).zip(tile.output.chunks_exact_mut(width));
        for (token, (((channels, differences), lane), (write, output))) in
            rows.zip(ends).enumerate()
        {
            *lane = [0.0; Lane::LENGTH];
            if tile.junction == 0 {
                differences.fill(0.0);
                channels.chunks_exact_mut(width).for_each(|x| x.copy_from_slice(write));
            } else if tile.before.runs.get(token) == Some(&false) {
                differences.fill(0.0);
            } else {
                let targets = &targets_before[token * n..(token + 1) * n];
                let beta = lanes_before[token][Lane::BETA];
                lane[Lane::INVERSE] = correct(channels, differences, write, beta, targets);
            }

            let h: &[f32] = if n == 1 {
                channels
            } else {
                read_channels(output, channels, params.read);
                output
            };
            let (squares, score) = match tile.junction < self.sites {
                true => square_and_dot(h, params.beta_weight),
                false => (dot(h, h), 0.0),
            };
            let r = inverse_root(squares, width, self.settings.eps);
            lane[Lane::NORM] = r;
            if tile.junction < self.sites {
                let targets = &mut targets[token * n..(token + 1) * n];
                for (target, row) in
                    targets.iter_mut().zip(params.target_weight.chunks_exact(width))
                {
                    *target = dot(row, h);
                }
                match self.settings.target {
                    Target::Linear => targets.iter_mut().for_each(|target| *target *= r),
                    Target::Sigmoid => {
                        for (target, bias) in targets.iter_mut().zip(params.target_bias) {
                            *target = 2.0 * gate(*target + bias);
                        }
                    }
                }
                lane[Lane::SCORE] = r * score;
                let beta = gate(r * score + params.beta_bias[0]);
                lane[Lane::BETA] = beta;
                if let Some(skip) = &self.settings.skip {
                    tile.runs[token] = skip.runs(tile.junction, tile.first + token, beta);
                    lane[Lane::BETA] = beta - skip.taken_off(tile.junction, beta);
                }
            }
            if n == 1 {
                scale_by_gain(output, r, channels, params.gain);
            } else {
                multiply_by_gain(output, r, params.gain);
            }
        }
        if self.settings.exact {
            copies.copy_from_slice(state);
        }
    }
}

/// `X_j += beta u_j k`, with `u_j = v_j - k . X_j`, which is kept, and the inverse length of the write, which is returned.
#[inline(always)]
fn correct(
    channels: &mut [f32],
    differences: &mut [f32],
    write: &[f32],
    beta: f32,
    targets: &[f32],
) -> f32 {
    let width = write.len();
    let (squares, first) = square_and_dot(write, &channels[..width]);
    // Of an infinite sum not a number, so that it is seen.
    let inverse = 1.0 / (squares + DIRECTION_EPS).sqrt() + seen(squares);
    let each = channels.chunks_exact_mut(width).zip(differences).zip(targets).enumerate();
    for (j, ((x, difference), target)) in each {
        let along = if j == 0 { first } else { dot(write, x) };
        *difference = target - inverse * along;
        add_scaled(x, beta * inverse * *difference, write);
    }
    inverse
}
