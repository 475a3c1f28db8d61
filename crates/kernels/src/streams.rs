//! What policies do with explicit streams, `[B, T, n, d]`: plain tensor operations, which define it, and on CubeCL devices the
//! kernels of `cube`. On the CPU's own path streams are not tensors: see `junction.rs`.

use crate::rms::{inverse_rms, rms};
use burn::tensor::Tensor;
use burn::tensor::activation::{sigmoid, softmax};

/// Streams that gates and pools have kernels for; a unit keeps two numbers of each.
pub const MOST_GATED_STREAMS: usize = 32;

/// Streams whose mixing has kernels; a unit keeps a matrix of theirs.
#[cfg(feature = "gpu")]
const MOST_MIXED_STREAMS: usize = 8;

/// Whether an operation on this tensor takes its kernel, which is then counted.
#[cfg(feature = "gpu")]
pub(crate) fn kernel<const D: usize>(tensor: &Tensor<D>, operation: &'static str) -> bool {
    let taken = tensor.dtype() == burn::tensor::DType::F32
        && tensor.shape().num_elements() > 0
        && crate::path::takes_cubes(&tensor.device());
    if taken {
        crate::path::count_cube(operation);
    }
    taken
}

/// Reads streams through a query: `h = sum_i softmax_i(query . rms(s_i)) s_i`, and the weights, through which nothing is
/// learned.
///
/// # Shapes
/// - `streams`: `[B, T, n, d]`
/// - `query`: `[d]`
/// - output: `[B, T, d]` and `[B, T, n]`
pub fn pool_streams(streams: Tensor<4>, query: Tensor<1>, eps: f64) -> (Tensor<3>, Tensor<3>) {
    #[cfg(feature = "gpu")]
    if streams.dims()[2] <= MOST_GATED_STREAMS && kernel(&streams, "pool") {
        return crate::cube::pool_streams(streams, query, eps);
    }
    let weights = softmax(scores(streams.clone(), query, eps), 2);
    (weighted(weights.clone(), streams), weights.detach())
}

/// Softmaxes of a reading that have kernels; a unit keeps a number of each.
pub const MOST_POOLED_GROUPS: usize = 32;

/// Reads sources, each a tensor of its own, through a query whose groups of neighbouring channels have a softmax each:
/// `h = sum_i softmax_i(query . rms(v_i)) v_i`, and the weights, through which nothing is learned. Without `eps` the sources
/// are normalised already and are their own keys.
///
/// # Shapes
/// - `sources`: at least one, `[B, T, d]` each
/// - `query`: `[d]`
/// - output: `[B, T, d]` and `[B, T, sources, groups]`
pub fn pool_sources(
    sources: &[Tensor<3>],
    query: Tensor<1>,
    groups: usize,
    eps: Option<f64>,
) -> (Tensor<3>, Tensor<4>) {
    #[cfg(feature = "gpu")]
    if groups <= MOST_POOLED_GROUPS && kernel(&sources[0], "pool_sources") {
        return crate::cube::pool_sources(sources, query, groups, eps);
    }
    let [batch, time, width] = sources[0].dims();
    let all: Tensor<4> = Tensor::stack(sources.to_vec(), 2);
    let grouped = |x: Tensor<4>| x.reshape([batch, time, sources.len(), groups, width / groups]);
    let products = grouped(all.clone() * query.unsqueeze()).sum_dim(4);
    let scores = match eps {
        Some(eps) => products * inverse_rms(all.clone(), eps).unsqueeze_dim(4),
        None => products,
    };
    let weights = softmax(scores, 2);
    let reading = (grouped(all) * weights.clone()).sum_dim(2).reshape([batch, time, width]);
    (reading, weights.detach().squeeze_dim(4))
}

/// How MGR's gates follow from streams.
#[derive(Clone, Debug)]
pub struct GateWeights {
    /// `[d]`
    pub query: Tensor<1>,
    /// `[n]`, or `[n + 1]` if competitive, the forget logit first.
    pub bias: Tensor<1>,
    /// Whether streams and the forget logit compete in one softmax.
    pub competitive: bool,
}

/// [`pool_streams`], and MGR's gates: with `u_i = gate.query . rms(s_i)`, `sigmoid(u_i + bias_i)`, or in a competition
/// `exp(u_i + bias_i) / (exp(bias_0) + sum_j exp(u_j + bias_j))`.
///
/// # Shapes
/// - `streams`: `[B, T, n, d]`
/// - `query`: `[d]`
/// - output: `[B, T, d]`, weights `[B, T, n]` and gates `[B, T, n]`
pub fn pool_and_gate_streams(
    streams: Tensor<4>,
    query: Tensor<1>,
    gate: GateWeights,
    eps: f64,
) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
    let [batch, time, n, _] = streams.dims();
    #[cfg(feature = "gpu")]
    if n <= MOST_GATED_STREAMS && kernel(&streams, "gated_pool") {
        return crate::cube::pool_and_gate_streams(streams, query, gate, eps);
    }
    let weights = softmax(scores(streams.clone(), query, eps), 2);
    let reading = weighted(weights.clone(), streams.clone());
    let GateWeights { query, bias, competitive } = gate;
    let scores = scores(streams, query, eps);
    let gates = if competitive {
        let forget = bias.clone().narrow(0, 0, 1).unsqueeze::<3>().expand([batch, time, 1]);
        let logits = scores + bias.narrow(0, 1, n).unsqueeze();
        softmax(Tensor::cat(vec![forget, logits], 2), 2).narrow(2, 1, n)
    } else {
        sigmoid(scores + bias.unsqueeze())
    };
    (reading, weights.detach(), gates)
}

/// MGR's write: `s'_i = s_i + gate_i (f - s_i)`. Where a gate is zero the stream stays as it is, whatever is written.
///
/// # Shapes
/// - `streams` and output: `[B, T, n, d]`
/// - `write`: `[B, T, d]`
/// - `gates`: `[B, T, n]`
pub fn gated_write(streams: Tensor<4>, write: Tensor<3>, gates: Tensor<3>) -> Tensor<4> {
    #[cfg(feature = "gpu")]
    if streams.dims()[2] <= MOST_GATED_STREAMS && kernel(&streams, "gated_write") {
        return crate::cube::gated_write(streams, write, gates);
    }
    let gates = gates.unsqueeze_dim::<4>(3);
    let moved = streams.clone() + gates.clone() * (write.unsqueeze_dim::<4>(2) - streams.clone());
    let closed = gates.equal_elem(0.0).expand(streams.dims());
    moved.mask_where(closed, streams)
}

/// `sum_i weight_i s_i`.
///
/// # Shapes
/// - `weights`: `[B, T, n]`
/// - `streams`: `[B, T, n, d]`
/// - output: `[B, T, d]`
pub fn read_streams(weights: Tensor<3>, streams: Tensor<4>) -> Tensor<3> {
    #[cfg(feature = "gpu")]
    if streams.dims()[2] <= MOST_GATED_STREAMS && kernel(&streams, "read") {
        return crate::cube::read_streams(weights, streams);
    }
    weighted(weights, streams)
}

fn weighted(weights: Tensor<3>, streams: Tensor<4>) -> Tensor<3> {
    weights.unsqueeze_dim::<4>(2).matmul(streams).squeeze_dim(2)
}

/// `s'_i = sum_j res_ij s_j + post_i f`, or `s_i + post_i f` without `res`.
///
/// # Shapes
/// - `res`: `[B, T, n, n]`
/// - `post`: `[B, T, n]`
/// - `streams` and output: `[B, T, n, d]`
/// - `write`: `[B, T, d]`
pub fn mix_streams(
    res: Option<Tensor<4>>,
    post: Tensor<3>,
    streams: Tensor<4>,
    write: Tensor<3>,
) -> Tensor<4> {
    #[cfg(feature = "gpu")]
    if streams.dims()[2] <= MOST_MIXED_STREAMS && kernel(&streams, "mix") {
        return crate::cube::mix_streams(res, post, streams, write);
    }
    let written = post.unsqueeze_dim::<4>(3) * write.unsqueeze_dim::<4>(2);
    match res {
        Some(res) => res.matmul(streams) + written,
        None => streams + written,
    }
}

/// NAG's rotation of a direction of unit mean square: `rms(r + gain u)` with `u` the part of `write` that is centred and
/// orthogonal to `r`, of unit mean square.
///
/// # Shapes
/// - `direction`, `write` and output: `[B, T, d]`
/// - `gain`: `[B, T, 1]`
pub fn turn(direction: Tensor<3>, write: Tensor<3>, gain: Tensor<3>, eps: f64) -> Tensor<3> {
    #[cfg(feature = "gpu")]
    if kernel(&direction, "turn") {
        return crate::cube::turn(direction, write, gain, eps);
    }
    let u = turning_part(write, direction.clone(), eps);
    // The measured norm: dividing by the predicted sqrt(1 + g^2) would let rounding drift.
    rms(direction + gain * u, 0.0)
}

/// The part of `f` that turns r: centred, orthogonal to r, of unit mean square.
///
/// # Shapes
/// - `f`, `r` and output: `[B, T, d]`
pub fn turning_part(f: Tensor<3>, r: Tensor<3>, eps: f64) -> Tensor<3> {
    let centred = f.clone() - f.mean_dim(2);
    let along = (centred.clone() * r.clone()).sum_dim(2) / r.clone().square().sum_dim(2);
    rms(centred - along * r, eps)
}

/// `query . rms(s_i)` of each stream, `[B, T, n]`.
fn scores(streams: Tensor<4>, query: Tensor<1>, eps: f64) -> Tensor<3> {
    let [batch, time, n, width] = streams.dims();
    let inverse = inverse_rms(streams.clone(), eps).squeeze_dim(3);
    let rows = streams.reshape([batch * time * n, width]);
    let products = rows.matmul(query.unsqueeze_dim(1)).reshape([batch, time, n]);
    products * inverse
}
