//! Attention over depth: a learned query weighs a token's sources, and their mean is read.
//!
//! `weight_i = softmax_i(query . rms(source_i))`, `h = sum_i weight_i source_i`: only the keys are
//! normalised, the values are raw. Shared by AttnRes, whose query carries a key gain, and by MGR,
//! whose query is scaled by `1/sqrt(d)`.

use burn::tensor::{Tensor, activation::softmax};
use hadal_kernels::inverse_rms;

/// A vector per token that can be pooled.
///
/// It keeps its inverse RMS instead of a normalised copy: a source is read by every later
/// sub-layer, and copies would make memory grow with the square of the depth.
#[derive(Clone, Debug)]
pub struct Source {
    /// `[B, T, d]`
    pub value: Tensor<3>,
    /// `[B, T, 1]`
    inverse_rms: Tensor<3>,
}

impl Source {
    /// Makes a vector poolable.
    pub fn new(value: Tensor<3>, eps: f64) -> Self {
        Self { inverse_rms: inverse_rms(value.clone(), eps), value }
    }

    /// `query . rms(value)` for each token.
    ///
    /// # Shapes
    /// - `query`: `[d]`
    /// - output: `[B, T, 1]`
    pub fn score(&self, query: Tensor<1>) -> Tensor<3> {
        project(self.value.clone(), query.unsqueeze_dim(1)) * self.inverse_rms.clone()
    }
}

/// What a query reads from its sources.
pub struct Pooled {
    /// `[B, T, d]`
    pub value: Tensor<3>,
    /// `[B, T, sources]`
    pub weights: Tensor<3>,
}

/// Reads the sources through a query.
///
/// # Shapes
/// - `query`: `[d]`
pub fn pool(sources: &[Source], query: Tensor<1>) -> Pooled {
    let scores = sources.iter().map(|source| source.score(query.clone())).collect();
    let weights = softmax(Tensor::cat(scores, 2), 2);
    let value = sources
        .iter()
        .enumerate()
        .map(|(i, source)| source.value.clone() * weights.clone().narrow(2, i, 1))
        .reduce(|sum, part| sum + part)
        .expect("a pool has at least one source");
    Pooled { value, weights }
}

/// `x W` without a batched product: `[B, T, d] x [d, m] -> [B, T, m]`.
pub fn project(x: Tensor<3>, w: Tensor<2>) -> Tensor<3> {
    let [batch, time, width] = x.dims();
    let [_, out] = w.dims();
    x.reshape([batch * time, width]).matmul(w).reshape([batch, time, out])
}
