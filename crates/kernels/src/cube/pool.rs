//! Reading streams through a query (MGR's Eq. 1): `v_i = w . rms(s_i)`, `alpha = softmax(v)`, `h = sum_i alpha_i s_i`.
//!
//! Backward, with `g = dh` and `r_i` the inverse RMS of stream i:
//!
//! ```text
//! dv_i = alpha_i (g . s_i - g . h)      ds_i = alpha_i g + r_i dv_i (w - r_i v_i s_i / d)
//! dw = sum_rows sum_i r_i dv_i s_i
//! ```
//!
//! What a token keeps begins with `[r | alpha | v]`, n each; where gates were found with it (`gates.rs`), theirs follows.

use super::launch::{Layout, cubes, empty, in_order, sizes};
use super::sums::{Terms, columns, cube_sum, inverse_root, room};
use crate::path::Planes;
use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// What is kept of a token, for each of its streams.
pub(super) const KEPT: usize = 3;

/// The weights of a reading: the softmax of scores.
#[cube]
pub(super) fn weigh(scores: &Array<f32>, alpha: &mut Array<f32>, #[comptime] n: usize) {
    let mut largest = scores[0];
    #[unroll]
    for i in 0..n {
        largest = max(largest, scores[i]);
    }
    let mut total = 0.0f32;
    #[unroll]
    for i in 0..n {
        let e = (scores[i] - largest).exp();
        alpha[i] = e;
        total += e;
    }
    #[unroll]
    for i in 0..n {
        alpha[i] = alpha[i] / total;
    }
}

/// One cube for each token.
#[cube(launch)]
fn pool_forward(
    streams: &Tensor<f32>,
    query: &Tensor<f32>,
    reading: &mut Tensor<f32>,
    kept: &mut Tensor<f32>,
    epsilon: f32,
    share: f32,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= kept.len() / comptime!(KEPT * n) {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let mut inverse = Array::<f32>::new(n);
    let mut scores = Array::<f32>::new(n);
    #[unroll]
    for i in 0..n {
        inverse[i] = 0.0f32;
        scores[i] = 0.0f32;
    }
    let start = token * comptime!(n * width);
    let mut c = UNIT_POS as usize;
    while c < width {
        let w = query[c];
        #[unroll]
        for i in 0..n {
            let s = streams[start + i * width + c];
            inverse[i] += s * s;
            scores[i] += w * s;
        }
        c += units;
    }
    #[unroll]
    for i in 0..n {
        let mean = cube_sum(inverse[i], &mut parts, units, planes) * share;
        let r = inverse_root(mean, epsilon);
        inverse[i] = r;
        scores[i] = cube_sum(scores[i], &mut parts, units, planes) * r;
    }
    let mut alpha = Array::<f32>::new(n);
    weigh(&scores, &mut alpha, n);
    if UNIT_POS == 0 {
        let at = token * comptime!(KEPT * n);
        #[unroll]
        for i in 0..n {
            kept[at + i] = inverse[i];
            kept[at + n + i] = alpha[i];
            kept[at + 2 * n + i] = scores[i];
        }
    }
    c = UNIT_POS as usize;
    while c < width {
        let mut h = 0.0f32;
        #[unroll]
        for i in 0..n {
            h += alpha[i] * streams[start + i * width + c];
        }
        reading[token * width + c] = h;
        c += units;
    }
}

/// `pull` becomes `r_i dv_i`.
#[cube(launch)]
fn pool_backward(
    streams: &Tensor<f32>,
    query: &Tensor<f32>,
    kept: &Tensor<f32>,
    d_reading: &Tensor<f32>,
    d_streams: &mut Tensor<f32>,
    pull: &mut Tensor<f32>,
    share: f32,
    #[comptime] stride: usize,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= kept.len() / stride {
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
            along[i] += g * streams[start + i * width + c];
        }
        c += units;
    }
    let at = token * stride;
    let mut mean = 0.0f32;
    #[unroll]
    for i in 0..n {
        along[i] = cube_sum(along[i], &mut parts, units, planes);
        mean += kept[at + n + i] * along[i];
    }
    let mut back = Array::<f32>::new(n);
    #[unroll]
    for i in 0..n {
        let r = kept[at + i];
        let p = kept[at + n + i] * (along[i] - mean) * r;
        if UNIT_POS == 0 {
            pull[token * n + i] = p;
        }
        along[i] = p;
        back[i] = p * r * kept[at + 2 * n + i] * share;
    }
    c = UNIT_POS as usize;
    while c < width {
        let g = d_reading[token * width + c];
        let w = query[c];
        #[unroll]
        for i in 0..n {
            let place = start + i * width + c;
            d_streams[place] = kept[at + n + i] * g + along[i] * w - back[i] * streams[place];
        }
        c += units;
    }
}

/// What is read, `[.., d]`, and what is kept.
pub(super) fn forward(
    streams: CubeTensor,
    query: CubeTensor,
    epsilon: f32,
    planes: Planes,
) -> (CubeTensor, CubeTensor) {
    let [streams, query] = in_order([streams, query]);
    let [tokens, n, width] = sizes(&streams);
    let reading = empty(&streams, super::without_streams(&streams.shape()));
    let kept = empty(&streams, Shape::new([tokens, KEPT * n]));
    let layout = Layout::of(&streams, width);
    pool_forward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        streams.into_tensor_arg(),
        query.into_tensor_arg(),
        reading.clone().into_tensor_arg(),
        kept.clone().into_tensor_arg(),
        epsilon,
        1.0 / width as f32,
        n,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (reading, kept)
}

/// Gradients of streams and query.
pub(super) fn backward(
    streams: CubeTensor,
    query: CubeTensor,
    kept: CubeTensor,
    d_reading: CubeTensor,
    planes: Planes,
) -> (CubeTensor, CubeTensor) {
    let [streams, query, kept, d_reading] = in_order([streams, query, kept, d_reading]);
    let [tokens, n, width] = sizes(&streams);
    let d_streams = empty(&streams, streams.shape());
    let pull = empty(&streams, Shape::new([tokens * n]));
    let stride = kept.shape().num_elements() / tokens;
    let layout = Layout::of(&streams, width);
    pool_backward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        streams.clone().into_tensor_arg(),
        query.into_tensor_arg(),
        kept.into_tensor_arg(),
        d_reading.into_tensor_arg(),
        d_streams.clone().into_tensor_arg(),
        pull.clone().into_tensor_arg(),
        1.0 / width as f32,
        stride,
        n,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (d_streams, columns(streams, Terms::Weighted(pull), width))
}
