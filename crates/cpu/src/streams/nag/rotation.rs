//! How a direction arrives at a junction, and how it leaves for the head. All functions work on the
//! rows of a tile.

use crate::row::{inverse_root, seen};
use crate::simd::{add_scaled, dot, square_and_dot, total};

/// Keeps the direction of a vanishing write finite.
const DIRECTION_EPS: f32 = 1e-12;
/// Only matters to an all-zero embedding, which has no direction to keep.
const SMALLEST_NORM: f32 = 1e-18;

/// What the way back needs to know of one token's turn.
#[derive(Clone, Copy, Debug)]
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

impl Turn {
    /// As numbers of a record. Of an embedding, the first one is its norm.
    pub(super) const LENGTH: usize = 5;

    #[inline(always)]
    fn of(&[mean, along, inverse_square, inverse_part, inverse_turned]: &[f32; 5]) -> Self {
        Self { mean, along, inverse_square, inverse_part, inverse_turned }
    }

    #[inline(always)]
    fn numbers(self) -> [f32; 5] {
        let Self { mean, along, inverse_square, inverse_part, inverse_turned } = self;
        [mean, along, inverse_square, inverse_part, inverse_turned]
    }
}

/// What a token carries beside its direction, as numbers of a record.
#[derive(Debug)]
pub(super) struct Lane;

impl Lane {
    /// s.
    pub(super) const LOG_NORM: usize = 0;
    /// S of the site that follows, without the floor.
    pub(super) const MODULATION: usize = 1;
    /// `max(S, 1e-6)^beta`
    pub(super) const POWER: usize = 2;
    /// g, or what a [`Skip`](crate::streams::Skip) leaves of it.
    pub(super) const GAIN: usize = 3;
    pub(super) const LENGTH: usize = 4;
}

type Turns = [f32; Turn::LENGTH];
type Lanes = [f32; Lane::LENGTH];

/// The tokens as they left the junction before.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) lanes: &'a [Lanes],
    /// Which are turned; empty if all are.
    pub(super) runs: &'a [bool],
}

impl Before<'_> {
    #[inline(always)]
    fn runs(&self, token: usize) -> bool {
        self.runs.get(token) != Some(&false)
    }
}

/// Splits embeddings into directions and log norms.
#[inline(always)]
pub(super) fn enter(
    direction: &mut [f32],
    turns: &mut [Turns],
    lanes: &mut [Lanes],
    embedding: &[f32],
    log_gain: f32,
) {
    let width = embedding.len() / lanes.len();
    let rows = direction.chunks_exact_mut(width).zip(embedding.chunks_exact(width));
    for ((r, e), (turn, lane)) in rows.zip(turns.iter_mut().zip(lanes)) {
        let squares = dot(e, e);
        let norm = (squares / width as f32).sqrt() + seen(squares);
        *turn = [norm, 0.0, 0.0, 0.0, 0.0];
        *lane = [floored(norm).ln() + log_gain, 0.0, 0.0, 0.0];
        scale_into(r, e, 1.0 / floored(norm));
    }
}

/// The directions of [`enter`] once more.
#[inline(always)]
pub(super) fn enter_again(direction: &mut [f32], embedding: &[f32], turns: &[Turns]) {
    let width = embedding.len() / turns.len();
    let embeddings = embedding.chunks_exact(width);
    for ((r, e), turn) in direction.chunks_exact_mut(width).zip(embeddings).zip(turns) {
        scale_into(r, e, 1.0 / floored(turn[0]));
    }
}

/// From the gradients of the lanes to that of the embeddings.
#[inline(always)]
pub(super) fn enter_back(
    d_embedding: &mut [f32],
    d_direction: &[f32],
    d_log_norm: &[f32],
    direction: &[f32],
    turns: &[Turns],
) {
    let width = direction.len() / turns.len();
    let gradients = d_embedding.chunks_exact_mut(width).zip(d_direction.chunks_exact(width));
    let rows = gradients.zip(d_log_norm).zip(direction.chunks_exact(width)).zip(turns);
    for ((((d_e, d_r), d_s), r), turn) in rows {
        let norm = turn[0];
        let at_the_floor = norm < SMALLEST_NORM;
        let radial = if at_the_floor { 0.0 } else { (dot(d_r, r) - d_s) / width as f32 };
        let inverse = 1.0 / floored(norm);
        for ((d_e, d_r), r) in d_e.iter_mut().zip(d_r).zip(r) {
            *d_e = (d_r - radial * r) * inverse;
        }
    }
}

/// Turns the directions by the writes; where a token skips, both lanes stay as they are.
#[inline(always)]
pub(super) fn turn(
    after: &mut [f32],
    turns: &mut [Turns],
    lanes: &mut [Lanes],
    write: &[f32],
    from: &[f32],
    before: Before<'_>,
) {
    let width = write.len() / lanes.len();
    let rows = after.chunks_exact_mut(width).zip(write.chunks_exact(width));
    let rows = rows.zip(from.chunks_exact(width)).zip(before.lanes);
    let numbers = turns.iter_mut().zip(lanes).enumerate();
    for ((((after, f), r), lane_before), (token, (turn, lane))) in rows.zip(numbers) {
        *lane = *lane_before;
        if before.runs(token) {
            let gain = lane_before[Lane::GAIN];
            *turn = turn_one(after, f, r, gain).numbers();
            lane[Lane::LOG_NORM] += 0.5 * (gain * gain).ln_1p();
        } else {
            *turn = [0.0; Turn::LENGTH];
            after.copy_from_slice(r);
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
    let inverse_part = inverse_root(dot(after, after), f.len(), DIRECTION_EPS);
    for (q, r) in after.iter_mut().zip(r) {
        *q = r + gain * (*q * inverse_part);
    }
    // The measured norm: dividing by the predicted sqrt(1 + g^2) would let rounding drift.
    let inverse_turned = inverse_root(dot(after, after), f.len(), 0.0);
    for v in after.iter_mut() {
        *v *= inverse_turned;
    }
    Turn { mean, along, inverse_square: 1.0 / square, inverse_part, inverse_turned }
}

/// The directions of [`turn`] once more, and the unit parts of the writes that turned them.
#[inline(always)]
pub(super) fn turn_again(
    after: &mut [f32],
    part: &mut [f32],
    write: &[f32],
    from: &[f32],
    before: Before<'_>,
    turns: &[Turns],
) {
    let width = write.len() / turns.len();
    let rows = after.chunks_exact_mut(width).zip(part.chunks_exact_mut(width));
    let rows = rows.zip(write.chunks_exact(width)).zip(from.chunks_exact(width));
    let numbers = before.lanes.iter().zip(turns).enumerate();
    for ((((after, u), f), r), (token, (lane, turn))) in rows.zip(numbers) {
        if !before.runs(token) {
            after.copy_from_slice(r);
            continue;
        }
        let (gain, turn) = (lane[Lane::GAIN], Turn::of(turn));
        for (((after, u), f), r) in after.iter_mut().zip(u).zip(f).zip(r) {
            *u = (f - turn.mean - turn.along * r) * turn.inverse_part;
            *after = (r + gain * *u) * turn.inverse_turned;
        }
    }
}

/// From the gradient of the lanes after a turn to that of the gains and, in place, to that of the direction before it.
/// The gradient of the writes takes the place of the directions before, and `after` is used up.
#[inline(always)]
pub(super) fn turn_back(
    from: &mut [f32],
    (d_direction, d_gains, d_log_norm): (&mut [f32], &mut [f32], &[f32]),
    after: &mut [f32],
    part: &[f32],
    before: Before<'_>,
    turns: &[Turns],
) {
    let width = from.len() / turns.len();
    let rows = from.chunks_exact_mut(width).zip(d_direction.chunks_exact_mut(width));
    let rows = rows.zip(after.chunks_exact_mut(width)).zip(part.chunks_exact(width));
    let numbers = d_gains.iter_mut().zip(d_log_norm).zip(before.lanes).zip(turns).enumerate();
    for ((((r, d_r), after), u), (token, (((d_gain, d_s), lane), turn))) in rows.zip(numbers) {
        if before.runs(token) {
            let gain = lane[Lane::GAIN];
            let d_angle = turn_one_back(r, d_r, after, u, gain, Turn::of(turn));
            *d_gain = d_angle + d_s * gain / (1.0 + gain * gain);
        } else {
            r.fill(0.0);
            *d_gain = 0.0;
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

/// `r exp(s) / d`.
#[inline(always)]
pub(super) fn read_out(output: &mut [f32], direction: &[f32], lanes: &[Lanes]) {
    let width = direction.len() / lanes.len();
    let rows = output.chunks_exact_mut(width).zip(direction.chunks_exact(width));
    for ((output, r), lane) in rows.zip(lanes) {
        scale_into(output, r, lane[Lane::LOG_NORM].exp() / width as f32);
    }
}

/// The first gradients of the lanes.
#[inline(always)]
pub(super) fn read_out_back(
    d_direction: &mut [f32],
    d_log_norm: &mut [f32],
    d_output: &[f32],
    direction: &[f32],
    lanes: &[Lanes],
) {
    let width = direction.len() / lanes.len();
    let rows = d_direction.chunks_exact_mut(width).zip(d_output.chunks_exact(width));
    let rows = rows.zip(direction.chunks_exact(width));
    for (((d_r, d_output), r), (d_s, lane)) in rows.zip(d_log_norm.iter_mut().zip(lanes)) {
        let scale = lane[Lane::LOG_NORM].exp() / width as f32;
        *d_s = dot(d_output, r) * scale;
        scale_into(d_r, d_output, scale);
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
