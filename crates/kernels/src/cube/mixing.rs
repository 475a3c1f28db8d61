//! Streams that are mixed (HC, mHC, mHC-lite): a reading `h = sum_i pre_i s_i`, and a write
//! `s'_i = sum_j res_ij s_j + post_i f`.
//!
//! The weights of a write are one tensor, `[.., n, n + 1]`: rows of `res`, each with its `post` behind it. Where streams are
//! not mixed, `s'_i = s_i + post_i f`, it is `[.., n, 1]`.
//!
//! Backward, with `g = dh` and `G = ds'`:
//!
//! ```text
//! dpre_i = g . s_i      ds_i = pre_i g
//! dres_ij = G_i . s_j   dpost_i = G_i . f   ds_j = sum_i res_ij G_i   df = sum_i post_i G_i
//! ```

use super::launch::{Layout, cubes, empty, in_order, sizes};
use super::sums::{cube_sum, room};
use crate::path::Planes;
use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// One cube for each token.
#[cube(launch)]
fn read_forward(
    weights: &Tensor<f32>,
    streams: &Tensor<f32>,
    reading: &mut Tensor<f32>,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
) {
    let token = CUBE_POS;
    if token >= weights.len() / n {
        terminate!();
    }
    let start = token * comptime!(n * width);
    let mut c = UNIT_POS as usize;
    while c < width {
        let mut h = 0.0f32;
        #[unroll]
        for i in 0..n {
            h += weights[token * n + i] * streams[start + i * width + c];
        }
        reading[token * width + c] = h;
        c += units;
    }
}

#[cube(launch)]
fn read_backward(
    weights: &Tensor<f32>,
    streams: &Tensor<f32>,
    d_reading: &Tensor<f32>,
    d_weights: &mut Tensor<f32>,
    d_streams: &mut Tensor<f32>,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= weights.len() / n {
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
        let g = d_reading[token * width + c];
        #[unroll]
        for i in 0..n {
            let place = start + i * width + c;
            along[i] += g * streams[place];
            d_streams[place] = weights[token * n + i] * g;
        }
        c += units;
    }
    #[unroll]
    for i in 0..n {
        let d = cube_sum(along[i], &mut parts, units, planes);
        if UNIT_POS == 0 {
            d_weights[token * n + i] = d;
        }
    }
}

/// `columns` is n + 1, or 1 where streams are not mixed.
#[cube(launch)]
fn mix_forward(
    weights: &Tensor<f32>,
    streams: &Tensor<f32>,
    write: &Tensor<f32>,
    after: &mut Tensor<f32>,
    #[comptime] columns: usize,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
) {
    let token = CUBE_POS;
    if token >= weights.len() / comptime!(n * columns) {
        terminate!();
    }
    let start = token * comptime!(n * width);
    let at = token * comptime!(n * columns);
    let mut c = UNIT_POS as usize;
    while c < width {
        let f = write[token * width + c];
        let mut s = Array::<f32>::new(n);
        #[unroll]
        for j in 0..n {
            s[j] = streams[start + j * width + c];
        }
        #[unroll]
        for i in 0..n {
            let mut sum = weights[at + i * columns + columns - 1] * f;
            if comptime!(columns > 1) {
                #[unroll]
                for j in 0..n {
                    sum += weights[at + i * columns + j] * s[j];
                }
            } else {
                sum += s[i];
            }
            after[start + i * width + c] = sum;
        }
        c += units;
    }
}

#[cube(launch)]
fn mix_backward(
    weights: &Tensor<f32>,
    streams: &Tensor<f32>,
    write: &Tensor<f32>,
    d_after: &Tensor<f32>,
    d_weights: &mut Tensor<f32>,
    d_streams: &mut Tensor<f32>,
    d_write: &mut Tensor<f32>,
    #[comptime] columns: usize,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= weights.len() / comptime!(n * columns) {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let mut along = Array::<f32>::new(comptime!(n * columns));
    #[unroll]
    for k in 0..comptime!(n * columns) {
        along[k] = 0.0f32;
    }
    let start = token * comptime!(n * width);
    let at = token * comptime!(n * columns);
    let mut c = UNIT_POS as usize;
    while c < width {
        let f = write[token * width + c];
        let mut g = Array::<f32>::new(n);
        let mut df = 0.0f32;
        #[unroll]
        for i in 0..n {
            g[i] = d_after[start + i * width + c];
            df += weights[at + i * columns + columns - 1] * g[i];
            along[i * columns + columns - 1] += g[i] * f;
        }
        d_write[token * width + c] = df;
        #[unroll]
        for j in 0..n {
            let place = start + j * width + c;
            if comptime!(columns > 1) {
                let s = streams[place];
                let mut d = 0.0f32;
                #[unroll]
                for i in 0..n {
                    d += weights[at + i * columns + j] * g[i];
                    along[i * columns + j] += g[i] * s;
                }
                d_streams[place] = d;
            } else {
                d_streams[place] = g[j];
            }
        }
        c += units;
    }
    #[unroll]
    for k in 0..comptime!(n * columns) {
        let d = cube_sum(along[k], &mut parts, units, planes);
        if UNIT_POS == 0 {
            d_weights[at + k] = d;
        }
    }
}

/// The reading, `[.., d]`.
pub(super) fn read(weights: CubeTensor, streams: CubeTensor) -> CubeTensor {
    let [weights, streams] = in_order([weights, streams]);
    let [tokens, n, width] = sizes(&streams);
    let reading = empty(&streams, super::without_streams(&streams.shape()));
    let layout = Layout::of(&streams, width);
    read_forward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        weights.into_tensor_arg(),
        streams.into_tensor_arg(),
        reading.clone().into_tensor_arg(),
        n,
        width,
        layout.units as usize,
    );
    reading
}

/// Gradients of weights and streams.
pub(super) fn read_back(
    weights: CubeTensor,
    streams: CubeTensor,
    d_reading: CubeTensor,
    planes: Planes,
) -> (CubeTensor, CubeTensor) {
    let [weights, streams, d_reading] = in_order([weights, streams, d_reading]);
    let [tokens, n, width] = sizes(&streams);
    let [d_weights, d_streams] = [&weights, &streams].map(|of| empty(&streams, of.shape()));
    let layout = Layout::of(&streams, width);
    read_backward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        weights.into_tensor_arg(),
        streams.into_tensor_arg(),
        d_reading.into_tensor_arg(),
        d_weights.clone().into_tensor_arg(),
        d_streams.clone().into_tensor_arg(),
        n,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (d_weights, d_streams)
}

/// Weights of one stream.
fn columns_of(weights: &CubeTensor) -> usize {
    let shape = weights.shape();
    shape[shape.num_dims() - 1]
}

/// The streams after the write.
pub(super) fn mix(weights: CubeTensor, streams: CubeTensor, write: CubeTensor) -> CubeTensor {
    let [weights, streams, write] = in_order([weights, streams, write]);
    let [tokens, n, width] = sizes(&streams);
    let after = empty(&streams, streams.shape());
    let (layout, columns) = (Layout::of(&streams, width), columns_of(&weights));
    mix_forward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        weights.into_tensor_arg(),
        streams.into_tensor_arg(),
        write.into_tensor_arg(),
        after.clone().into_tensor_arg(),
        columns,
        n,
        width,
        layout.units as usize,
    );
    after
}

/// Gradients of weights, streams and write.
pub(super) fn mix_back(
    weights: CubeTensor,
    streams: CubeTensor,
    write: CubeTensor,
    d_after: CubeTensor,
    planes: Planes,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [weights, streams, write, d_after] = in_order([weights, streams, write, d_after]);
    let [tokens, n, width] = sizes(&streams);
    let [d_weights, d_streams, d_write] =
        [&weights, &streams, &write].map(|of| empty(&streams, of.shape()));
    let (layout, columns) = (Layout::of(&streams, width), columns_of(&weights));
    mix_backward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        weights.into_tensor_arg(),
        streams.into_tensor_arg(),
        write.into_tensor_arg(),
        d_after.into_tensor_arg(),
        d_weights.clone().into_tensor_arg(),
        d_streams.clone().into_tensor_arg(),
        d_write.clone().into_tensor_arg(),
        columns,
        n,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (d_weights, d_streams, d_write)
}
