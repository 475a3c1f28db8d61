//! Cross-entropy, the loss of a language model.

use crate::pass::Tokens;
use burn::tensor::{Device, Int, Tensor, TensorData, activation::log_softmax};
use hadal_kernels::total;

/// Mean over all positions of `-ln p(target)`.
///
/// # Shapes
/// - `logits`: `[B, T, V]`
/// - `targets`: B rows of T tokens
/// - output: `[1]`
pub fn cross_entropy(logits: Tensor<3>, targets: &Tokens) -> Tensor<1> {
    mean(negative_log_likelihood(logits, targets))
}

/// The same over scored positions alone; over all of them if `scored` is empty.
///
/// # Shapes
/// - `scored`: one for each target, row by row
pub fn masked_cross_entropy(logits: Tensor<3>, targets: &Tokens, scored: &[bool]) -> Tensor<1> {
    let loss = negative_log_likelihood(logits, targets);
    if scored.is_empty() {
        return mean(loss);
    }
    let weights = shares(scored.len(), scored);
    let weights = Tensor::<3>::from_data(TensorData::new(weights, loss.dims()), &loss.device());
    total(loss * weights)
}

fn mean(losses: Tensor<3>) -> Tensor<1> {
    if losses.device().without_autodiff() == Device::flex() {
        return losses.mean();
    }
    let count = losses.dims().iter().product::<usize>();
    total(losses) / count as f64
}

/// How much each position counts: scored ones alike, or all if none is named.
pub(crate) fn shares(positions: usize, scored: &[bool]) -> Vec<f32> {
    if scored.is_empty() {
        return vec![1.0 / positions as f32; positions];
    }
    let count = scored.iter().filter(|&&scored| scored).count().max(1);
    scored.iter().map(|&scored| if scored { 1.0 / count as f32 } else { 0.0 }).collect()
}

/// `-ln p(target)` of every position.
///
/// # Shapes
/// - `logits`: `[B, T, V]`
/// - `targets`: B rows of T tokens
/// - output: `[B, T, 1]`
pub fn negative_log_likelihood(logits: Tensor<3>, targets: &Tokens) -> Tensor<3> {
    let ids: Vec<i64> = targets.ids().iter().map(|&id| i64::from(id)).collect();
    let shape = [targets.batch(), targets.time()];
    let targets: Tensor<2, Int> = Tensor::from_data(TensorData::new(ids, shape), &logits.device());
    let targets = targets.unsqueeze_dim(2);
    log_softmax(logits, 2).gather(2, targets).neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits() -> Tensor<3> {
        Tensor::from_floats([[[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]]], &Device::flex())
    }

    fn value(loss: Tensor<1>) -> f32 {
        loss.try_into_vec_as::<f32>().unwrap()[0]
    }

    #[test]
    fn the_mean_runs_over_all_positions() {
        let targets = Tokens::row(&[1, 0]);
        let first = -(2f32 - (1f32.exp() + 2f32.exp() + 0.5f32.exp()).ln());
        let second = (2.0 + 3f32.exp()).ln();
        let all = value(cross_entropy(logits(), &targets));
        assert!((all - (first + second) / 2.0).abs() < 1e-6);
        let unmasked = value(masked_cross_entropy(logits(), &targets, &[]));
        assert_eq!(all, unmasked);
        let one = value(masked_cross_entropy(logits(), &targets, &[false, true]));
        assert!((one - second).abs() < 1e-6);
    }
}
