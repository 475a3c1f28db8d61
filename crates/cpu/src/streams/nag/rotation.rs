//! How a direction arrives at a junction, and how it leaves for the head. All functions work on the
//! rows of a tile.

use super::modulator::Gain;
use crate::simd::{add_scaled, dot, square_and_dot, total};

/// Keeps the direction of a vanishing write finite.
const DIRECTION_EPS: f32 = 1e-12;
/// Only matters to an all-zero embedding, which has no direction to keep.
const SMALLEST_NORM: f32 = 1e-18;

/// What the way back needs to know of one token's turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Of f.
    mean: f32,
    /// `c.r / r.r`
    along: f32,
    /// `1 / r.r`
    inverse_square: f32,
    /// `1 / sqrt(mean(q^2) + eps)`
    inverse_part: f32,
    /// `1 / sqrt(mean((r + g u)^2))`
    inverse_turned: f32,
}

simd! {
    /// Splits embeddings into directions and log norms.
    pub(super) fn enter(
        direction: &mut [f32],
        log_norm: &mut [f32],
        norms: &mut [f32],
        embedding: &[f32],
        log_gain: f32,
    ) {
        let width = embedding.len() / norms.len();
        let lanes = direction.chunks_exact_mut(width).zip(log_norm).zip(norms);
        for (((r, s), norm), e) in lanes.zip(embedding.chunks_exact(width)) {
            *norm = (dot(e, e) / width as f32).sqrt();
            *s = floored(*norm).ln() + log_gain;
            scale_into(r, e, 1.0 / floored(*norm));
        }
    }
}

simd! {
    /// The directions of [`enter`] once more.
    pub(super) fn enter_again(direction: &mut [f32], embedding: &[f32], norms: &[f32]) {
        let width = embedding.len() / norms.len();
        let embeddings = embedding.chunks_exact(width);
        for ((r, e), &norm) in direction.chunks_exact_mut(width).zip(embeddings).zip(norms) {
            scale_into(r, e, 1.0 / floored(norm));
        }
    }
}

simd! {
    /// From the gradients of the lanes to that of the embeddings.
    pub(super) fn enter_back(
        d_embedding: &mut [f32],
        d_direction: &[f32],
        d_log_norm: &[f32],
        direction: &[f32],
        norms: &[f32],
    ) {
        let width = direction.len() / norms.len();
        let gradients = d_embedding.chunks_exact_mut(width).zip(d_direction.chunks_exact(width));
        let rows = gradients.zip(d_log_norm).zip(direction.chunks_exact(width)).zip(norms);
        for ((((d_e, d_r), d_s), r), &norm) in rows {
            let at_the_floor = norm < SMALLEST_NORM;
            let radial = if at_the_floor { 0.0 } else { (dot(d_r, r) - d_s) / width as f32 };
            let inverse = 1.0 / floored(norm);
            for ((d_e, d_r), r) in d_e.iter_mut().zip(d_r).zip(r) {
                *d_e = (d_r - radial * r) * inverse;
            }
        }
    }
}

simd! {
    /// Turns the directions `before` by the writes; where a token skips, both lanes stay as they are.
    pub(super) fn turn(
        after: &mut [f32],
        log_norm: &mut [f32],
        turns: &mut [Turn],
        write: &[f32],
        before: &[f32],
        gains: &[Gain],
    ) {
        let width = write.len() / gains.len();
        let rows = after.chunks_exact_mut(width).zip(write.chunks_exact(width));
        let rows = rows.zip(before.chunks_exact(width)).zip(gains);
        for ((((after, f), r), gain), (s, turn)) in rows.zip(log_norm.iter_mut().zip(turns)) {
            if gain.runs {
                *turn = turn_one(after, f, r, gain.value);
                *s += 0.5 * (gain.value * gain.value).ln_1p();
            } else {
                after.copy_from_slice(r);
            }
        }
    }
}

/// Every intermediate result takes the place of the one before it in `after`. The sums are those of
/// the centred and of the orthogonal write, not differences of larger ones, which would cancel.
#[inline(always)]
fn turn_one(after: &mut [f32], f: &[f32], r: &[f32], gain: f32) -> Turn {
    let width = f.len() as f32;
    let mean = sum(f) / width;
    for (c, f) in after.iter_mut().zip(f) {
        *c = f - mean;
    }
    let (square, product) = square_and_dot(r, after);
    let along = product / square;
    add_scaled(after, -along, r);
    let inverse_part = 1.0 / (dot(after, after) / width + DIRECTION_EPS).sqrt();
    for (q, r) in after.iter_mut().zip(r) {
        *q = r + gain * (*q * inverse_part);
    }
    // The measured norm: dividing by the predicted sqrt(1 + g^2) would let rounding drift.
    let inverse_turned = 1.0 / (dot(after, after) / width).sqrt();
    for v in after.iter_mut() {
        *v *= inverse_turned;
    }
    Turn { mean, along, inverse_square: 1.0 / square, inverse_part, inverse_turned }
}

simd! {
    /// The directions of [`turn`] once more, and the unit parts of the writes that turned them.
    pub(super) fn turn_again(
        after: &mut [f32],
        part: &mut [f32],
        write: &[f32],
        before: &[f32],
        gains: &[Gain],
        turns: &[Turn],
    ) {
        let width = write.len() / gains.len();
        let rows = after.chunks_exact_mut(width).zip(part.chunks_exact_mut(width));
        let rows = rows.zip(write.chunks_exact(width)).zip(before.chunks_exact(width));
        for ((((after, u), f), r), (gain, turn)) in rows.zip(gains.iter().zip(turns)) {
            if !gain.runs {
                after.copy_from_slice(r);
                continue;
            }
            let gain = gain.value;
            for (((after, u), f), r) in after.iter_mut().zip(u).zip(f).zip(r) {
                *u = (f - turn.mean - turn.along * r) * turn.inverse_part;
                *after = (r + gain * *u) * turn.inverse_turned;
            }
        }
    }
}

simd! {
    /// From the gradient of the lanes after a turn to that of the gains and, in place, to that of the
    /// direction before it. The gradient of the writes takes the place of the directions before, which
    /// are not needed any longer, and `after` is used up.
    pub(super) fn turn_back(
        before: &mut [f32],
        d_direction: &mut [f32],
        d_gains: &mut [f32],
        d_log_norm: &[f32],
        after: &mut [f32],
        part: &[f32],
        gains: &[Gain],
        turns: &[Turn],
    ) {
        let width = before.len() / gains.len();
        let rows = before.chunks_exact_mut(width).zip(d_direction.chunks_exact_mut(width));
        let rows = rows.zip(after.chunks_exact_mut(width)).zip(part.chunks_exact(width));
        let numbers = d_gains.iter_mut().zip(d_log_norm).zip(gains).zip(turns);
        for ((((r, d_r), after), u), (((d_gain, d_s), gain), turn)) in rows.zip(numbers) {
            if gain.runs {
                let gain = gain.value;
                let d_angle = turn_one_back(r, d_r, after, u, gain, *turn);
                *d_gain = d_angle + d_s * gain / (1.0 + gain * gain);
            } else {
                r.fill(0.0);
                *d_gain = 0.0;
            }
        }
    }
}

/// Returns what the direction alone gives back to the gain.
#[inline(always)]
fn turn_one_back(
    r: &mut [f32],
    d_r: &mut [f32],
    after: &mut [f32],
    u: &[f32],
    gain: f32,
    turn: Turn,
) -> f32 {
    let width = r.len() as f32;
    // r' = v / rms(v); the gradient of v = r + g u takes the place of that of r'.
    let radial = dot(d_r, after) / width;
    for (d, after) in d_r.iter_mut().zip(after.iter()) {
        *d = (*d - radial * after) * turn.inverse_turned;
    }
    // u = q / sqrt(mean(q^2) + eps); the gradient of q takes the place of r'.
    let d_gain = dot(d_r, u);
    let (scale, shrink) = (gain * turn.inverse_part, d_gain / width);
    let d_q = after;
    for ((d_q, d_v), u) in d_q.iter_mut().zip(d_r.iter()).zip(u) {
        *d_q = (d_v - shrink * u) * scale;
    }
    // q = c - a r with a = c.r / r.r, whose gradient in r is (c - 2 a r) / r.r = (q - a r) / r.r. Its
    // part along r is left out: r was normalised and has none to give back.
    let d_along = -dot(d_q, r) * turn.inverse_square;
    let part_share = d_along / turn.inverse_part;
    let d_f = r;
    for (((d_r, d_q), r), u) in d_r.iter_mut().zip(d_q.iter()).zip(d_f.iter_mut()).zip(u) {
        *d_r += part_share * u - turn.along * d_q;
        *r = d_q + d_along * *r;
    }
    // c = f - mean(f).
    let mean = sum(d_f) / width;
    for d in d_f.iter_mut() {
        *d -= mean;
    }
    d_gain
}

simd! {
    /// `r exp(s) / d`.
    pub(super) fn read_out(answer: &mut [f32], direction: &[f32], log_norm: &[f32]) {
        let width = direction.len() / log_norm.len();
        let rows = answer.chunks_exact_mut(width).zip(direction.chunks_exact(width));
        for ((answer, r), s) in rows.zip(log_norm) {
            scale_into(answer, r, s.exp() / width as f32);
        }
    }
}

simd! {
    /// The first gradients of the lanes.
    pub(super) fn read_out_back(
        d_direction: &mut [f32],
        d_log_norm: &mut [f32],
        d_answer: &[f32],
        direction: &[f32],
        log_norm: &[f32],
    ) {
        let width = direction.len() / log_norm.len();
        let rows = d_direction.chunks_exact_mut(width).zip(d_answer.chunks_exact(width));
        let rows = rows.zip(direction.chunks_exact(width));
        for (((d_r, d_answer), r), (d_s, s)) in rows.zip(d_log_norm.iter_mut().zip(log_norm)) {
            let scale = s.exp() / width as f32;
            *d_s = dot(d_answer, r) * scale;
            scale_into(d_r, d_answer, scale);
        }
    }
}

/// `max(norm, 1e-18)`, but NaN for NaN.
#[inline(always)]
fn floored(norm: f32) -> f32 {
    if norm < SMALLEST_NORM { SMALLEST_NORM } else { norm }
}

/// `y_j = a x_j`.
#[inline(always)]
fn scale_into(y: &mut [f32], x: &[f32], a: f32) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = a * x;
    }
}

/// `sum_j x_j`.
#[inline(always)]
fn sum(x: &[f32]) -> f32 {
    const LANES: usize = 32;
    let mut sums = [0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest: f32 = chunks.remainder().iter().sum();
    for x in chunks {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += x;
        }
    }
    total(sums) + rest
}
