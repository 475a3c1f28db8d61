//! Single heads of rows: norm and rotation on the way in, and the way back out.

use super::Shape;
use super::plan::Places;
use super::table::Table;
use crate::row::inverse_rms;
use crate::rows::Columns;
use crate::simd::{dot, prefetch};

/// How many rows before it is needed a row is asked for.
pub(super) const AHEAD: usize = 8;

simd! {
    /// Copies a head out of rows, the first of which begins with it, normalised and rotated.
    pub(super) fn take_head(
        out: &mut [f32], rows: &[f32], stride: usize, positions: &[u32], shape: &Shape,
        gain: Option<(&[f32], f32)>,
    ) {
        let dim = shape.head_dim;
        for (r, out) in out.chunks_exact_mut(dim).enumerate() {
            // A head is a short piece of each row, too short for the hardware to look ahead.
            if let Some(ahead) = rows.get((r + AHEAD) * stride..(r + AHEAD) * stride + dim) {
                prefetch(ahead);
            }
            let from = &rows[r * stride..r * stride + dim];
            // Indexed: zipped with the positions, the compiler checks at run time whether rows overlap, and
            // leaves narrow heads to a loop that is not vectorised.
            turn(out, from, positions[r] as usize, shape, gain);
        }
    }
}

/// One head of one row, normalised and rotated.
#[inline(always)]
pub(super) fn turn(
    out: &mut [f32],
    from: &[f32],
    t: usize,
    shape: &Shape,
    gain: Option<(&[f32], f32)>,
) {
    match gain {
        None => rotate(out, from, t, shape, 1.0),
        Some((gain, eps)) => {
            let inverse = inverse_rms(from, eps);
            for ((out, x), gain) in out.iter_mut().zip(from).zip(gain) {
                *out = x * inverse * gain;
            }
            rotate_in_place(out, t, shape, 1.0);
        }
    }
}

/// `direction` is 1 to rotate and -1 to rotate back.
#[inline(always)]
fn rotate(out: &mut [f32], x: &[f32], t: usize, shape: &Shape, direction: f32) {
    let half = shape.head_dim / 2;
    let (cos, sin) = (&shape.cos[t * half..][..half], &shape.sin[t * half..][..half]);
    // Lengths that the compiler can see are equal: without them the loop is not vectorised.
    let (a, b) = (&x[..half], &x[half..][..half]);
    let (out_a, out_b) = out.split_at_mut(half);
    let (out_a, out_b) = (&mut out_a[..half], &mut out_b[..half]);
    for j in 0..half {
        let sin = direction * sin[j];
        out_a[j] = a[j] * cos[j] - b[j] * sin;
        out_b[j] = b[j] * cos[j] + a[j] * sin;
    }
}

#[inline(always)]
fn rotate_in_place(x: &mut [f32], t: usize, shape: &Shape, direction: f32) {
    let half = shape.head_dim / 2;
    let (cos, sin) = (&shape.cos[t * half..][..half], &shape.sin[t * half..][..half]);
    let (a, b) = x.split_at_mut(half);
    let (a, b) = (&mut a[..half], &mut b[..half]);
    for j in 0..half {
        let sin = direction * sin[j];
        let (left, right) = (a[j], b[j]);
        a[j] = left * cos[j] - right * sin;
        b[j] = right * cos[j] + left * sin;
    }
}

simd! {
    /// Undoes the rotation and the norm of a head's gradient `d`, which is used up, and writes it to the columns from
    /// `column` on, where `from` has the head. No other task touches these columns of these rows.
    pub(super) fn return_heads(
        to: &Columns, column: usize, places: &Places, d: &mut [f32], from: &Table, shape: &Shape,
        gain: Option<(&[f32], f32)>, d_gain: &mut [f32],
    ) {
        let dim = shape.head_dim;
        for (r, d) in d.chunks_exact_mut(dim).enumerate() {
            let (row, t) = (places.first + r, places.positions[r] as usize);
            // SAFETY: this task's alone, as said above.
            let out = unsafe { to.row(row, column, dim) };
            let Some(gain) = gain else {
                rotate(out, d, t, shape, -1.0);
                continue;
            };
            rotate_in_place(d, t, shape, -1.0);
            leave_norm(out, d, from.row(row, column, dim), gain, d_gain);
        }
    }
}

/// Undoes the norm of one head `x` for its gradient `d`.
#[inline(always)]
fn leave_norm(
    out: &mut [f32],
    d: &mut [f32],
    x: &[f32],
    (gain, eps): (&[f32], f32),
    d_gain: &mut [f32],
) {
    let inverse = inverse_rms(x, eps);
    for (((d, x), gain), d_gain) in d.iter_mut().zip(x).zip(gain).zip(d_gain) {
        *d_gain += *d * x * inverse;
        *d *= gain;
    }
    let along = dot(d, x) * inverse * inverse * inverse / x.len() as f32;
    for ((out, d), x) in out.iter_mut().zip(d).zip(x) {
        *out = *d * inverse - x * along;
    }
}
