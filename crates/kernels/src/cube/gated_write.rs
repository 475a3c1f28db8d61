//! MGR's write: `s'_i = s_i + beta_i (f - s_i)`.
//!
//! Backward, with `G = ds'`: `ds_i = (1 - beta_i) G_i`, `df = sum_i beta_i G_i`, `dbeta_i = G_i . (f - s_i)`.

use super::launch::{Layout, cubes, empty, in_order, sizes};
use super::sums::{cube_sum, room};
use crate::path::Planes;
use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// One cube for each token.
#[cube(launch)]
fn write_forward(
    streams: &Tensor<f32>,
    write: &Tensor<f32>,
    gates: &Tensor<f32>,
    after: &mut Tensor<f32>,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
) {
    let token = CUBE_POS;
    if token >= gates.len() / n {
        terminate!();
    }
    let start = token * comptime!(n * width);
    let mut c = UNIT_POS as usize;
    while c < width {
        let f = write[token * width + c];
        #[unroll]
        for i in 0..n {
            let place = start + i * width + c;
            let beta = gates[token * n + i];
            let s = streams[place];
            let mut moved = s + beta * (f - s);
            // What a skipped token would have written has no meaning, and may be no number.
            if beta == 0.0f32 {
                moved = s;
            }
            after[place] = moved;
        }
        c += units;
    }
}

#[cube(launch)]
fn write_backward(
    streams: &Tensor<f32>,
    write: &Tensor<f32>,
    gates: &Tensor<f32>,
    d_after: &Tensor<f32>,
    d_streams: &mut Tensor<f32>,
    d_write: &mut Tensor<f32>,
    d_gates: &mut Tensor<f32>,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= gates.len() / n {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let mut along = Array::<f32>::new(n);
    #[unroll]
    for i in 0..n {
        along[i] = 0.0f32;
    }
    let start = token * comptime!(n * width);
    let mut c = UNIT_POS as usize;
    while c < width {
        let f = write[token * width + c];
        let mut df = 0.0f32;
        #[unroll]
        for i in 0..n {
            let place = start + i * width + c;
            let beta = gates[token * n + i];
            let g = d_after[place];
            along[i] += g * (f - streams[place]);
            df += beta * g;
            d_streams[place] = g - beta * g;
        }
        d_write[token * width + c] = df;
        c += units;
    }
    #[unroll]
    for i in 0..n {
        let d = cube_sum(along[i], &mut parts, units, planes);
        if UNIT_POS == 0 {
            d_gates[token * n + i] = d;
        }
    }
}

/// The streams after the write.
pub(super) fn forward(streams: CubeTensor, write: CubeTensor, gates: CubeTensor) -> CubeTensor {
    let [streams, write, gates] = in_order([streams, write, gates]);
    let [tokens, n, width] = sizes(&streams);
    let after = empty(&streams, streams.shape());
    let layout = Layout::of(&streams, width);
    write_forward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        streams.into_tensor_arg(),
        write.into_tensor_arg(),
        gates.into_tensor_arg(),
        after.clone().into_tensor_arg(),
        n,
        width,
        layout.units as usize,
    );
    after
}

/// Gradients of streams, write and gates.
pub(super) fn backward(
    streams: CubeTensor,
    write: CubeTensor,
    gates: CubeTensor,
    d_after: CubeTensor,
    planes: Planes,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [streams, write, gates, d_after] = in_order([streams, write, gates, d_after]);
    let [tokens, n, width] = sizes(&streams);
    let [d_streams, d_write, d_gates] =
        [&streams, &write, &gates].map(|of| empty(&streams, of.shape()));
    let layout = Layout::of(&streams, width);
    write_backward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        streams.into_tensor_arg(),
        write.into_tensor_arg(),
        gates.into_tensor_arg(),
        d_after.into_tensor_arg(),
        d_streams.clone().into_tensor_arg(),
        d_write.clone().into_tensor_arg(),
        d_gates.clone().into_tensor_arg(),
        n,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (d_streams, d_write, d_gates)
}
