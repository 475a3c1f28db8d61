//! Forward through a junction.

use super::super::driver::Forward;
use super::rows::{
    add, add_normed, add_normed_to, add_twice_normed_to, mix, multiply, scaled_copy,
};
use super::{Adding, AdditiveStep, Gains};
use crate::row::{inverse_rms, multiply_by_gain, scale_by_gain};
use crate::simd::add_scaled;

/// How the junction before makes its stream of its sum: `x = scale (r s * post_gain) + share source`.
#[derive(Clone, Copy)]
struct Left<'a> {
    post: Option<&'a [f32]>,
    scale: f32,
    share: f32,
    source: Option<usize>,
}

impl<'a> Left<'a> {
    /// At the junction before `junction`, of what it handed on.
    #[inline(always)]
    fn before(adding: &Adding, junction: usize, handed_on: &'a [f32]) -> Self {
        let none = Self { post: None, scale: 1.0, share: 0.0, source: None };
        let Some(step) = junction.checked_sub(1).map(|before| &adding.steps[before]) else {
            return none;
        };
        let (post, numbers) = handed_on.split_at(if step.post { adding.width } else { 0 });
        let (scale, share) = numbers.split_at(usize::from(step.scaled));
        Self {
            post: step.post.then_some(post),
            scale: scale.first().copied().unwrap_or(1.0),
            share: share.first().copied().unwrap_or_default(),
            source: step.source,
        }
    }
}

/// See [`Policy::forward`](super::super::driver::Policy::forward).
#[inline(always)]
pub(super) fn forward(adding: &Adding, gains: &Gains<'_>, tile: Forward<'_, ()>) {
    let Adding { width, eps, steps, .. } = adding;
    let (width, eps, step) = (*width, *eps, &steps[tile.junction]);
    let [sums, write_rms, post_rms, pre_rms] = tile.record;
    let [first, second, ..] = tile.state;
    let sources = [first, second];
    // The sums that the junction before left, and their inverse RMS if the stream is what a norm makes of them.
    let [stream, _, stream_rms, _] = tile.before.record;
    let stream = if tile.junction == 1 { tile.before.write } else { stream };
    let left = Left::before(adding, tile.junction, tile.handed_on);
    let writes = tile.write.chunks_exact(width);
    for ((token, write), output) in writes.enumerate().zip(tile.output.chunks_exact_mut(width)) {
        let row = token * width..(token + 1) * width;
        let sum: &[f32] = if tile.junction == 0 {
            write
        } else {
            let (sum, x) = (&mut sums[row.clone()], &stream[row.clone()]);
            let a = stream_rms.get(token).map_or(step.carry, |r| step.carry * r) * left.scale;
            if let Some(r) = write_rms.get_mut(token) {
                *r = inverse_rms(write, eps);
            }
            let r = write_rms.get(token).copied();
            take_in(sum, step, gains, write, r, a, x, left.post);
            if let Some(source) = left.source {
                let (b, source) = (step.carry * left.share, &sources[source][row.clone()]);
                match gains.carry {
                    None => add_scaled(sum, b, source),
                    Some(gain) => add_normed_to(sum, b, source, gain),
                }
            }
            sum
        };
        if step.mixes() || step.hold.is_some() {
            match gains.post {
                None => output.copy_from_slice(sum),
                Some(gain) => {
                    let r = inverse_rms(sum, eps);
                    post_rms[token] = r;
                    scale_by_gain(output, r, sum, gain);
                }
            }
            if let Some(hold) = step.hold {
                sources[hold][row.clone()].copy_from_slice(output);
            }
            match step.source {
                Some(source) => mix(output, gains.scale, gains.share, &sources[source][row]),
                None if step.scaled => multiply(output, gains.scale),
                None => {}
            }
            if let Some((scale, gain)) = gains.pre {
                let r = inverse_rms(output, eps);
                pre_rms[token] = r;
                multiply_by_gain(output, scale * r, gain);
            }
            continue;
        }
        match (gains.post, gains.pre) {
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

/// `sum = a x * post_gain * carry_gain + y`, as far as there are gains; `r` is the inverse RMS of the write.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn take_in(
    sum: &mut [f32],
    step: &AdditiveStep,
    gains: &Gains<'_>,
    write: &[f32],
    r: Option<f32>,
    a: f32,
    x: &[f32],
    post: Option<&[f32]>,
) {
    match (gains.write.zip(r), gains.carry) {
        (None, None) => {
            return match post {
                None => add(sum, a, x, step.factor, write),
                Some(gain) => add_normed(sum, a, x, gain, step.factor, write),
            };
        }
        (Some((gain, r)), _) => scale_by_gain(sum, step.factor * r, write, gain),
        (None, Some(_)) => scaled_copy(sum, step.factor, write),
    }
    match (gains.carry, post) {
        (None, None) => add_scaled(sum, a, x),
        (Some(gain), None) | (None, Some(gain)) => add_normed_to(sum, a, x, gain),
        (Some(gain), Some(post)) => add_twice_normed_to(sum, a, x, gain, post),
    }
}
