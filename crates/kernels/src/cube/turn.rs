//! NAG's rotation: the part of a write `f` that is centred and orthogonal to the direction `r` turns it by a gain `g`.
//!
//! ```text
//! c = f - mean(f)      a = c . r / r . r      w = c - a r      u = w / sqrt(mean(w^2) + eps)
//! z = r + g u          r' = z / sqrt(mean(z^2))
//! ```
//!
//! Backward, with `p`, `q` the inverse RMS of `w` and `z`:
//!
//! ```text
//! dz = q (dr' - r' mean(dr' r'))      dg = dz . u      dw = p g (dz - u mean(dz u))
//! da = -dw . r                        dc = dw + da r / r . r      df = dc - mean(dc)
//! dr = dz - a dw + da (c / r . r - 2 a r / r . r)
//! ```
//!
//! What a token keeps is `[g, mean(f), a, r . r, p, q]`.

use super::launch::{Layout, cubes, empty, in_order};
use super::sums::{cube_sum, inverse_root, room};
use crate::path::Planes;
use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// What is kept of a token.
pub(super) const KEPT: usize = 6;

/// One cube for each token.
#[cube(launch)]
fn turn_forward(
    direction: &Tensor<f32>,
    write: &Tensor<f32>,
    gain: &Tensor<f32>,
    after: &mut Tensor<f32>,
    kept: &mut Tensor<f32>,
    epsilon: f32,
    share: f32,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= gain.len() {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let start = token * width;
    let g = gain[token];

    let mut writes = 0.0f32;
    let mut squares = 0.0f32;
    let mut c = UNIT_POS as usize;
    while c < width {
        let r = direction[start + c];
        writes += write[start + c];
        squares += r * r;
        c += units;
    }
    let mean = cube_sum(writes, &mut parts, units, planes) * share;
    let length = cube_sum(squares, &mut parts, units, planes);

    let mut along = 0.0f32;
    c = UNIT_POS as usize;
    while c < width {
        along += (write[start + c] - mean) * direction[start + c];
        c += units;
    }
    let a = cube_sum(along, &mut parts, units, planes) / length;

    squares = 0.0f32;
    c = UNIT_POS as usize;
    while c < width {
        let w = write[start + c] - mean - a * direction[start + c];
        squares += w * w;
        c += units;
    }
    let size = cube_sum(squares, &mut parts, units, planes) * share;
    let p = inverse_root(size, epsilon);

    squares = 0.0f32;
    c = UNIT_POS as usize;
    while c < width {
        let r = direction[start + c];
        let z = r + g * ((write[start + c] - mean - a * r) * p);
        squares += z * z;
        c += units;
    }
    // Measured, not predicted: rounding would drift.
    let turned = cube_sum(squares, &mut parts, units, planes) * share;
    let q = inverse_root(turned, 0.0f32);

    c = UNIT_POS as usize;
    while c < width {
        let r = direction[start + c];
        let z = r + g * ((write[start + c] - mean - a * r) * p);
        after[start + c] = z * q;
        c += units;
    }
    if UNIT_POS == 0 {
        let at = token * comptime!(KEPT);
        kept[at] = g;
        kept[at + 1] = mean;
        kept[at + 2] = a;
        kept[at + 3] = length;
        kept[at + 4] = p;
        kept[at + 5] = q;
    }
}

#[cube(launch)]
fn turn_backward(
    direction: &Tensor<f32>,
    write: &Tensor<f32>,
    kept: &Tensor<f32>,
    d_after: &Tensor<f32>,
    d_direction: &mut Tensor<f32>,
    d_write: &mut Tensor<f32>,
    d_gain: &mut Tensor<f32>,
    share: f32,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= d_gain.len() {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let start = token * width;
    let at = token * comptime!(KEPT);
    let g = kept[at];
    let mean = kept[at + 1];
    let a = kept[at + 2];
    let length = kept[at + 3];
    let p = kept[at + 4];
    let q = kept[at + 5];

    let mut sum = 0.0f32;
    // The mean of dc needs that of r.
    let mut rs = 0.0f32;
    let mut c = UNIT_POS as usize;
    while c < width {
        let r = direction[start + c];
        let z = r + g * ((write[start + c] - mean - a * r) * p);
        rs += r;
        sum += d_after[start + c] * z * q;
        c += units;
    }
    let level = cube_sum(sum, &mut parts, units, planes) * share;
    let directions = cube_sum(rs, &mut parts, units, planes);

    sum = 0.0f32;
    c = UNIT_POS as usize;
    while c < width {
        let r = direction[start + c];
        let u = (write[start + c] - mean - a * r) * p;
        let dz = q * (d_after[start + c] - (r + g * u) * q * level);
        sum += dz * u;
        c += units;
    }
    let dg = cube_sum(sum, &mut parts, units, planes);
    let pull = dg * share;

    sum = 0.0f32;
    let mut changes = 0.0f32;
    c = UNIT_POS as usize;
    while c < width {
        let r = direction[start + c];
        let u = (write[start + c] - mean - a * r) * p;
        let dz = q * (d_after[start + c] - (r + g * u) * q * level);
        let dw = p * g * (dz - u * pull);
        sum += dw * r;
        changes += dw;
        c += units;
    }
    let da = 0.0f32 - cube_sum(sum, &mut parts, units, planes);
    let change = cube_sum(changes, &mut parts, units, planes);

    let shift = (change + da / length * directions) * share;

    c = UNIT_POS as usize;
    while c < width {
        let r = direction[start + c];
        let centred = write[start + c] - mean;
        let u = (centred - a * r) * p;
        let dz = q * (d_after[start + c] - (r + g * u) * q * level);
        let dw = p * g * (dz - u * pull);
        d_write[start + c] = dw + da / length * r - shift;
        d_direction[start + c] = dz - a * dw + da / length * (centred - 2.0f32 * a * r);
        c += units;
    }
    if UNIT_POS == 0 {
        d_gain[token] = dg;
    }
}

/// The direction after the write, and what is kept.
pub(super) fn forward(
    direction: CubeTensor,
    write: CubeTensor,
    gain: CubeTensor,
    epsilon: f32,
    planes: Planes,
) -> (CubeTensor, CubeTensor) {
    let [direction, write, gain] = in_order([direction, write, gain]);
    let tokens = gain.shape().num_elements();
    let width = direction.shape().num_elements() / tokens;
    let after = empty(&direction, direction.shape());
    let kept = empty(&direction, Shape::new([tokens, KEPT]));
    let layout = Layout::of(&direction, width);
    turn_forward::launch(
        &direction.client.clone(),
        cubes(tokens),
        layout.dim(),
        direction.into_tensor_arg(),
        write.into_tensor_arg(),
        gain.into_tensor_arg(),
        after.clone().into_tensor_arg(),
        kept.clone().into_tensor_arg(),
        epsilon,
        1.0 / width as f32,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (after, kept)
}

/// Gradients of direction, write and gain.
pub(super) fn backward(
    direction: CubeTensor,
    write: CubeTensor,
    kept: CubeTensor,
    d_after: CubeTensor,
    planes: Planes,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [direction, write, kept, d_after] = in_order([direction, write, kept, d_after]);
    let tokens = kept.shape().num_elements() / KEPT;
    let width = direction.shape().num_elements() / tokens;
    let [d_direction, d_write] = [&direction, &write].map(|of| empty(&direction, of.shape()));
    let d_gain = empty(&direction, super::one_for_each(&direction.shape()));
    let layout = Layout::of(&direction, width);
    turn_backward::launch(
        &direction.client.clone(),
        cubes(tokens),
        layout.dim(),
        direction.into_tensor_arg(),
        write.into_tensor_arg(),
        kept.into_tensor_arg(),
        d_after.into_tensor_arg(),
        d_direction.clone().into_tensor_arg(),
        d_write.clone().into_tensor_arg(),
        d_gain.clone().into_tensor_arg(),
        1.0 / width as f32,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (d_direction, d_write, d_gain)
}
