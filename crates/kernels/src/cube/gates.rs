//! MGR's gates (Eq. 2, 3) together with a reading (`pool.rs`), since both score the same streams: `u_i = w . rms(s_i)`, and
//!
//! ```text
//! independent: beta_i = 1 / (1 + exp(-u_i - b_i))
//! competitive: beta_i = exp(u_i + b_i) / (exp(b_0) + sum_j exp(u_j + b_j))
//! ```
//!
//! Backward, with `phi` the weight of `exp(b_0)`:
//!
//! ```text
//! independent: du_i = dbeta_i beta_i (1 - beta_i)
//! competitive: du_i = beta_i (dbeta_i - sum_j beta_j dbeta_j)      db_0 = -phi sum_j beta_j dbeta_j
//! ds_i = r_i du_i (w - r_i u_i s_i / d)      dw = sum_rows sum_i r_i du_i s_i      db_i = sum_rows du_i
//! ```
//!
//! What a token keeps is `[r | alpha | v | beta | u | phi]`, n each and one.

use super::launch::{Layout, cubes, empty, in_order, sizes};
use super::pool::weigh;
use super::sums::{Terms, columns, cube_sum, inverse_root, room};
use crate::path::Planes;
use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// What is kept of a token.
pub(super) const fn kept_of(n: usize) -> usize {
    5 * n + 1
}

/// The gates of scores; what remains for the forget logit is returned.
#[cube]
fn open(
    scores: &Array<f32>,
    bias: &Tensor<f32>,
    beta: &mut Array<f32>,
    #[comptime] competitive: bool,
    #[comptime] n: usize,
) -> f32 {
    let mut forget = 0.0f32;
    if competitive {
        let mut largest = bias[0];
        #[unroll]
        for i in 0..n {
            largest = max(largest, scores[i] + bias[i + 1]);
        }
        let kept = (bias[0] - largest).exp();
        let mut total = kept;
        #[unroll]
        for i in 0..n {
            let e = (scores[i] + bias[i + 1] - largest).exp();
            beta[i] = e;
            total += e;
        }
        #[unroll]
        for i in 0..n {
            beta[i] = beta[i] / total;
        }
        forget = kept / total;
    } else {
        #[unroll]
        for i in 0..n {
            beta[i] = 1.0f32 / (1.0f32 + (0.0f32 - scores[i] - bias[i]).exp());
        }
    }
    forget
}

/// One cube for each token.
#[cube(launch)]
fn gated_pool_forward(
    streams: &Tensor<f32>,
    query: &Tensor<f32>,
    gate_query: &Tensor<f32>,
    bias: &Tensor<f32>,
    reading: &mut Tensor<f32>,
    gates: &mut Tensor<f32>,
    kept: &mut Tensor<f32>,
    epsilon: f32,
    share: f32,
    #[comptime] competitive: bool,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= kept.len() / comptime!(kept_of(n)) {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let mut inverse = Array::<f32>::new(n);
    let mut scores = Array::<f32>::new(n);
    let mut gate_scores = Array::<f32>::new(n);
    #[unroll]
    for i in 0..n {
        inverse[i] = 0.0f32;
        scores[i] = 0.0f32;
        gate_scores[i] = 0.0f32;
    }
    let start = token * comptime!(n * width);
    let mut c = UNIT_POS as usize;
    while c < width {
        let w = query[c];
        let v = gate_query[c];
        #[unroll]
        for i in 0..n {
            let s = streams[start + i * width + c];
            inverse[i] += s * s;
            scores[i] += w * s;
            gate_scores[i] += v * s;
        }
        c += units;
    }
    #[unroll]
    for i in 0..n {
        let mean = cube_sum(inverse[i], &mut parts, units, planes) * share;
        let r = inverse_root(mean, epsilon);
        inverse[i] = r;
        scores[i] = cube_sum(scores[i], &mut parts, units, planes) * r;
        gate_scores[i] = cube_sum(gate_scores[i], &mut parts, units, planes) * r;
    }
    let mut alpha = Array::<f32>::new(n);
    weigh(&scores, &mut alpha, n);
    if UNIT_POS == 0 {
        let mut beta = Array::<f32>::new(n);
        let forget = open(&gate_scores, bias, &mut beta, competitive, n);
        let at = token * comptime!(kept_of(n));
        #[unroll]
        for i in 0..n {
            gates[token * n + i] = beta[i];
            kept[at + i] = inverse[i];
            kept[at + n + i] = alpha[i];
            kept[at + 2 * n + i] = scores[i];
            kept[at + 3 * n + i] = beta[i];
            kept[at + 4 * n + i] = gate_scores[i];
        }
        kept[at + comptime!(5 * n)] = forget;
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

/// `pull` becomes `r_i du_i`, and `d_logits` the gradient of what is added to `b`.
#[cube(launch)]
fn gates_backward(
    streams: &Tensor<f32>,
    query: &Tensor<f32>,
    kept: &Tensor<f32>,
    d_gates: &Tensor<f32>,
    d_streams: &mut Tensor<f32>,
    pull: &mut Tensor<f32>,
    d_logits: &mut Tensor<f32>,
    share: f32,
    #[comptime] competitive: bool,
    #[comptime] n: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
) {
    let token = CUBE_POS;
    if token >= kept.len() / comptime!(kept_of(n)) {
        terminate!();
    }
    let at = token * comptime!(kept_of(n));
    let mut mean = 0.0f32;
    if competitive {
        #[unroll]
        for i in 0..n {
            mean += kept[at + 3 * n + i] * d_gates[token * n + i];
        }
        if UNIT_POS == 0 {
            d_logits[token * comptime!(n + 1)] = 0.0f32 - kept[at + comptime!(5 * n)] * mean;
        }
    }
    let mut forward = Array::<f32>::new(n);
    let mut back = Array::<f32>::new(n);
    #[unroll]
    for i in 0..n {
        let beta = kept[at + 3 * n + i];
        let d = d_gates[token * n + i];
        let r = kept[at + i];
        let mut du = d * beta * (1.0f32 - beta);
        if competitive {
            du = beta * (d - mean);
        }
        let p = r * du;
        if UNIT_POS == 0 {
            pull[token * n + i] = p;
            if competitive {
                d_logits[token * comptime!(n + 1) + i + 1] = du;
            } else {
                d_logits[token * n + i] = du;
            }
        }
        forward[i] = p;
        back[i] = p * r * kept[at + 4 * n + i] * share;
    }
    let start = token * comptime!(n * width);
    let mut c = UNIT_POS as usize;
    while c < width {
        let w = query[c];
        #[unroll]
        for i in 0..n {
            let place = start + i * width + c;
            d_streams[place] = forward[i] * w - back[i] * streams[place];
        }
        c += units;
    }
}

/// What is read, `[.., d]`, the gates, `[.., n]`, and what is kept.
pub(super) fn forward(
    streams: CubeTensor,
    query: CubeTensor,
    gate_query: CubeTensor,
    bias: CubeTensor,
    epsilon: f32,
    competitive: bool,
    planes: Planes,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [streams, query, gate_query, bias] = in_order([streams, query, gate_query, bias]);
    let [tokens, n, width] = sizes(&streams);
    let reading = empty(&streams, super::without_streams(&streams.shape()));
    let gates = empty(&streams, super::without_channels(&streams.shape()));
    let kept = empty(&streams, Shape::new([tokens, kept_of(n)]));
    let layout = Layout::of(&streams, width);
    gated_pool_forward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        streams.into_tensor_arg(),
        query.into_tensor_arg(),
        gate_query.into_tensor_arg(),
        bias.into_tensor_arg(),
        reading.clone().into_tensor_arg(),
        gates.clone().into_tensor_arg(),
        kept.clone().into_tensor_arg(),
        epsilon,
        1.0 / width as f32,
        competitive,
        n,
        width,
        layout.units as usize,
        layout.planes(planes),
    );
    (reading, gates, kept)
}

/// Gradients of streams, query and bias.
pub(super) fn backward(
    streams: CubeTensor,
    query: CubeTensor,
    kept: CubeTensor,
    d_gates: CubeTensor,
    competitive: bool,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [streams, query, kept, d_gates] = in_order([streams, query, kept, d_gates]);
    let [tokens, n, width] = sizes(&streams);
    let logits = n + usize::from(competitive);
    let d_streams = empty(&streams, streams.shape());
    let pull = empty(&streams, Shape::new([tokens * n]));
    let d_logits = empty(&streams, Shape::new([tokens, logits]));
    let layout = Layout::of(&streams, width);
    gates_backward::launch(
        &streams.client.clone(),
        cubes(tokens),
        layout.dim(),
        streams.clone().into_tensor_arg(),
        query.into_tensor_arg(),
        kept.into_tensor_arg(),
        d_gates.into_tensor_arg(),
        d_streams.clone().into_tensor_arg(),
        pull.clone().into_tensor_arg(),
        d_logits.clone().into_tensor_arg(),
        1.0 / width as f32,
        competitive,
        n,
        width,
        layout.units as usize,
    );
    let d_query = columns(streams, Terms::Weighted(pull), width);
    (d_streams, d_query, columns(d_logits, Terms::Plain, logits))
}
