//! What is done with single rows.

/// `sum = a x + factor write`.
#[inline(always)]
pub(super) fn add(sum: &mut [f32], a: f32, x: &[f32], factor: f32, write: &[f32]) {
    for ((sum, x), write) in sum.iter_mut().zip(x).zip(write) {
        *sum = a * x + factor * write;
    }
}

/// `sum = a x gain + factor write`.
#[inline(always)]
pub(super) fn add_normed(
    sum: &mut [f32],
    a: f32,
    x: &[f32],
    gain: &[f32],
    factor: f32,
    write: &[f32],
) {
    for (((sum, x), gain), write) in sum.iter_mut().zip(x).zip(gain).zip(write) {
        *sum = a * x * gain + factor * write;
    }
}

/// `sum += a x gain`.
#[inline(always)]
pub(super) fn add_normed_to(sum: &mut [f32], a: f32, x: &[f32], gain: &[f32]) {
    for ((sum, x), gain) in sum.iter_mut().zip(x).zip(gain) {
        *sum += a * x * gain;
    }
}

/// `sum += a x gain post_gain`.
#[inline(always)]
pub(super) fn add_twice_normed_to(sum: &mut [f32], a: f32, x: &[f32], gain: &[f32], post: &[f32]) {
    for (((sum, x), gain), post) in sum.iter_mut().zip(x).zip(gain).zip(post) {
        *sum += a * x * gain * post;
    }
}

/// `y = factor x`.
#[inline(always)]
pub(super) fn scaled_copy(y: &mut [f32], factor: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = factor * x;
    }
}

/// `x *= factor`.
#[inline(always)]
pub(super) fn multiply(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

/// `x = scale x + share source`.
#[inline(always)]
pub(super) fn mix(x: &mut [f32], scale: f32, share: f32, source: &[f32]) {
    for (x, source) in x.iter_mut().zip(source) {
        *x = scale * *x + share * source;
    }
}

/// `d_x = carry d_x + d`, also written to `copy`.
#[inline(always)]
pub(super) fn add_to_carried(d_x: &mut [f32], copy: &mut [f32], carry: f32, d: &[f32]) {
    for ((d_x, copy), d) in d_x.iter_mut().zip(copy).zip(d) {
        *d_x = carry * *d_x + d;
        *copy = *d_x;
    }
}

/// Back through `sum = x weights + y`, where x is not known, but what of it is in the sum: `d_weights += d (sum - y) / weights`,
/// then `d *= weights`.
#[inline(always)]
pub(super) fn take_carry(
    d: &mut [f32],
    d_weights: &mut [f32],
    weights: &[f32],
    sum: &[f32],
    y: &[f32],
) {
    let known = sum.iter().zip(y).zip(weights);
    for ((d, d_weight), ((sum, y), weight)) in d.iter_mut().zip(d_weights).zip(known) {
        *d_weight += *d * (sum - y) / weight;
        *d *= weight;
    }
}
