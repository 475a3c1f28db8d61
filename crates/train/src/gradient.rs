//! One pass forward and backward.

use super::optim::TensorGradients;
use super::quality::scalar;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_model::{Decoder, Pass, PassError};
use std::collections::BTreeMap;

/// Gradients by parameter name.
pub type Gradients = BTreeMap<String, Vec<f32>>;

/// The loss of a batch and its gradient.
pub(crate) fn loss_and_gradient(
    decoder: &Decoder,
    batch: &Batch,
    pass: Pass,
) -> Result<(f64, Gradients), PassError> {
    let loss = decoder.loss(&batch.input, &batch.target, &batch.scored, pass)?;
    let value = scalar(&loss)?;
    Ok((value, gradients(decoder, loss)))
}

/// The gradient of a loss.
pub fn gradients(decoder: &Decoder, loss: Tensor<1>) -> Gradients {
    decoder.gradients(loss.backward()).into_iter().collect()
}

/// The gradient of a loss, where the model is.
pub fn tensor_gradients(decoder: &Decoder, loss: Tensor<1>) -> TensorGradients {
    decoder.gradient_tensors(loss.backward()).into_iter().collect()
}
