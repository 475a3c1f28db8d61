//! The same number of several tokens side by side, for what is too small to be vectorised token by
//! token.

use crate::simd::exp;

/// Tokens side by side: an AVX2 register.
pub(super) const LANES: usize = 8;

/// One number of each of them.
pub(super) type Lane = [f32; LANES];

/// From token by token, `lanes.len()` numbers each, to number by number. Lanes without a token are zero.
#[inline(always)]
pub(super) fn load(lanes: &mut [Lane], tokens: &[f32]) {
    let count = lanes.len();
    if tokens.len() < count * LANES {
        lanes.fill([0.0; LANES]);
    }
    for (l, token) in tokens.chunks_exact(count).enumerate() {
        for (lane, x) in lanes.iter_mut().zip(token) {
            lane[l] = *x;
        }
    }
}

/// The way back from [`load`].
#[inline(always)]
pub(super) fn store(tokens: &mut [f32], lanes: &[Lane]) {
    for (l, token) in tokens.chunks_exact_mut(lanes.len()).enumerate() {
        for (x, lane) in token.iter_mut().zip(lanes) {
            *x = lane[l];
        }
    }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(super) fn sigmoid(x: &Lane) -> Lane {
    let mut y = [0f32; LANES];
    for l in 0..LANES {
        y[l] = 1.0 / (1.0 + exp(-x[l]));
    }
    y
}

/// The hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh(x: &Lane) -> Lane {
    let mut y = [0f32; LANES];
    for l in 0..LANES {
        y[l] = 2.0 / (1.0 + exp(-2.0 * x[l])) - 1.0;
    }
    y
}
