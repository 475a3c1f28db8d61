//! Back through a junction.

use super::super::driver::Backward;
use super::super::tiles::split_mut;
use super::rows::{add_to_carried, mix, multiply, scaled_copy, take_carry};
use super::{Adding, Gains};
use crate::row::{Normed, scale_by_gain, triple_dot};
use crate::simd::{add_scaled, dot};

/// See [`Policy::backward`](super::super::driver::Policy::backward); `room` is for a row.
#[inline(always)]
pub(super) fn backward(
    adding: &Adding,
    gains: &Gains<'_>,
    tile: Backward<'_, ()>,
    room: &mut Vec<f32>,
) {
    let (width, step) = (adding.width, &adding.steps[tile.junction]);
    // Zero is only ever multiplied with the zeros that the gradient starts from.
    let carry = adding.steps.get(tile.junction + 1).map_or(0.0, |next| next.carry);
    let [sums, write_rms, post_rms, pre_rms] = tile.record;
    let [gradient, d_first, d_second, _] = tile.gradient;
    let d_sources = [d_first, d_second];
    let [first, second, ..] = tile.state.map(|part| &*part);
    let sources = [first, second];
    let sums = if tile.junction == 0 { tile.write } else { sums };
    let [d_write_gain, d_carry_gain, d_post_gain, d_scale, d_share, d_pre_gain] =
        split_mut(tile.d_params, step.lengths(width));
    room.resize(width, 0.0);
    let rows = tile.d_output.chunks_exact(width).zip(sums.chunks_exact(width));
    let d_rows = gradient.chunks_exact_mut(width).zip(tile.d_write.chunks_exact_mut(width));
    for ((token, (d_output, sum)), (d_x, d_write)) in rows.enumerate().zip(d_rows) {
        let row = token * width..(token + 1) * width;
        // Of the stream first; of the sum once it went through what may lie between them.
        match gains.pre {
            None => add_to_carried(d_x, d_write, carry, d_output),
            Some((scale, gain)) => {
                match gains.post {
                    None if step.mixes() => room.copy_from_slice(sum),
                    None => {}
                    Some(post_gain) => scale_by_gain(room, post_rms[token], sum, post_gain),
                }
                match step.source {
                    Some(source) => {
                        mix(room, gains.scale, gains.share, &sources[source][row.clone()]);
                    }
                    None if step.scaled => multiply(room, gains.scale),
                    None => {}
                }
                let x = if step.mixes() || step.post { &**room } else { sum };
                Normed { x, inverse_rms: pre_rms[token], scale, gain }
                    .add_gradient(d_x, d_write, carry, d_output, d_pre_gain);
            }
        }
        if let Some(d_scale) = d_scale.first_mut() {
            *d_scale += match gains.post {
                None => dot(d_x, sum),
                Some(gain) => post_rms[token] * triple_dot(d_x, sum, gain),
            };
        }
        if let Some((source, d_share)) = step.source.zip(d_share.first_mut()) {
            *d_share += dot(d_x, &sources[source][row.clone()]);
            add_scaled(&mut d_sources[source][row.clone()], gains.share, d_x);
        }
        if step.scaled {
            multiply(d_x, gains.scale);
        }
        if let Some(hold) = step.hold {
            add_scaled(d_x, 1.0, &d_sources[hold][row.clone()]);
        }
        if let Some(gain) = gains.post {
            Normed { x: sum, inverse_rms: post_rms[token], scale: 1.0, gain }
                .take_gradient(d_x, d_post_gain);
        }
        if step.post || step.scaled || step.hold.is_some() {
            d_write.copy_from_slice(d_x);
        }
        if let Some(weights) = gains.carry {
            let write = &tile.write[row.clone()];
            match gains.write {
                Some(gain) => scale_by_gain(room, step.factor * write_rms[token], write, gain),
                None => scaled_copy(room, step.factor, write),
            }
            take_carry(d_x, d_carry_gain, weights, sum, room);
        }
        if let Some(gain) = gains.write {
            let (x, inverse_rms) = (&tile.write[row], write_rms[token]);
            Normed { x, inverse_rms, scale: step.factor, gain }
                .take_gradient(d_write, d_write_gain);
        } else if step.factor != 1.0 {
            multiply(d_write, step.factor);
        }
    }
}
