//! Cross-entropy, the loss of a language model.

use crate::decoder::Tokens;
use burn::tensor::{Tensor, activation::log_softmax};

/// Mean over all positions of `-ln p(target)`.
///
/// # Shapes
/// - `logits`: `[B, T, V]`
/// - `targets`: B rows of T tokens
/// - output: `[1]`
pub fn cross_entropy(logits: Tensor<3>, targets: &Tokens) -> Tensor<1> {
    let targets = targets.tensor(&logits.device()).unsqueeze_dim(2);
    log_softmax(logits, 2).gather(2, targets).mean().neg()
}
