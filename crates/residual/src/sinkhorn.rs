//! Sinkhorn-Knopp: alternating column and row normalisation towards a doubly stochastic matrix.

use burn::tensor::Tensor;

/// `exp(logits)`, then `iterations` times columns to sum one and rows to sum one. Rows come last,
/// so they sum to one exactly and columns approximately. Done on logarithms, where no logit is
/// large enough to overflow.
///
/// # Shapes
/// - `logits` and output: `[B, T, n, n]`
pub(crate) fn sinkhorn(logits: Tensor<4>, iterations: usize) -> Tensor<4> {
    let mut log = logits;
    for _ in 0..iterations {
        log = log.clone() - log_sum_exp(log, 2);
        log = log.clone() - log_sum_exp(log, 3);
    }
    log.exp()
}

fn log_sum_exp(x: Tensor<4>, dim: usize) -> Tensor<4> {
    // The shift cancels out of the result, so it needs no gradient.
    let largest = x.clone().detach().max_dim(dim);
    (x - largest.clone()).exp().sum_dim(dim).log() + largest
}
