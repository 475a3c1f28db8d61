//! RMSNorm: `y = gain x r`, `r = 1 / sqrt(mean(x^2) + eps)`.
//!
//! Backward, with `g = gain dy`: `dx = r g - r^3 x (g . x) / d` and `dgain = sum_rows r x dy`.

use super::launch::{Layout, cubes, empty, in_order};
use super::sums::{Terms, columns, cube_sum, inverse_root, room};
use crate::path::Planes;
use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// One cube for each row.
#[cube(launch)]
fn rms_forward(
    x: &Tensor<f32>,
    gain: &Tensor<f32>,
    y: &mut Tensor<f32>,
    inverse: &mut Tensor<f32>,
    epsilon: f32,
    share: f32,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let row = CUBE_POS;
    // The same for all units of a cube, so that barriers stay uniform.
    if row >= inverse.len() {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let start = row * width;
    let mut squares = 0.0f32;
    let mut c = UNIT_POS as usize;
    while c < width {
        let v = x[start + c];
        squares += v * v;
        c += units;
    }
    let mean = cube_sum(squares, &mut parts, units, planes) * share;
    let r = inverse_root(mean, epsilon);
    if UNIT_POS == 0 {
        inverse[row] = r;
    }
    c = UNIT_POS as usize;
    while c < width {
        y[start + c] = x[start + c] * r * gain[c];
        c += units;
    }
}

#[cube(launch)]
fn rms_backward(
    x: &Tensor<f32>,
    gain: &Tensor<f32>,
    inverse: &Tensor<f32>,
    dy: &Tensor<f32>,
    dx: &mut Tensor<f32>,
    share: f32,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let row = CUBE_POS;
    if row >= inverse.len() {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let start = row * width;
    let r = inverse[row];
    let mut along = 0.0f32;
    let mut c = UNIT_POS as usize;
    while c < width {
        along += dy[start + c] * gain[c] * x[start + c];
        c += units;
    }
    let pull = cube_sum(along, &mut parts, units, planes) * share * r * r * r;
    c = UNIT_POS as usize;
    while c < width {
        dx[start + c] = dy[start + c] * gain[c] * r - x[start + c] * pull;
        c += units;
    }
}

/// `y`, and `r` of each row.
pub(super) fn forward(
    x: CubeTensor,
    gain: CubeTensor,
    epsilon: f32,
    planes: Planes,
) -> (CubeTensor, CubeTensor) {
    let [x, gain] = in_order([x, gain]);
    let width = gain.shape().num_elements();
    let rows = x.shape().num_elements() / width;
    let (y, inverse) = (empty(&x, x.shape()), empty(&x, Shape::new([rows])));
    let layout = Layout::of(&x, width);
    rms_forward::launch(
        &x.client.clone(),
        cubes(rows),
        layout.dim(),
        x.into_tensor_arg(),
        gain.into_tensor_arg(),
        y.clone().into_tensor_arg(),
        inverse.clone().into_tensor_arg(),
        epsilon,
        1.0 / width as f32,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (y, inverse)
}

/// `dx` and `dgain`.
pub(super) fn backward(
    x: CubeTensor,
    gain: CubeTensor,
    inverse: CubeTensor,
    dy: CubeTensor,
    planes: Planes,
) -> (CubeTensor, CubeTensor) {
    let [x, gain, inverse, dy] = in_order([x, gain, inverse, dy]);
    let width = gain.shape().num_elements();
    let rows = x.shape().num_elements() / width;
    let dx = empty(&x, x.shape());
    let layout = Layout::of(&x, width);
    rms_backward::launch(
        &x.client.clone(),
        cubes(rows),
        layout.dim(),
        x.clone().into_tensor_arg(),
        gain.into_tensor_arg(),
        inverse.clone().into_tensor_arg(),
        dy.clone().into_tensor_arg(),
        dx.clone().into_tensor_arg(),
        1.0 / width as f32,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (dx, columns(x, Terms::Paired(dy, inverse), width))
}
