//! Parameters and gradients between tensors and vectors, without copies where that is possible.

use burn::tensor::{Gradients, Tensor, TensorData};

/// Takes a parameter's gradient out of all gradients.
pub fn take_gradient<const D: usize>(
    tensor: &Tensor<D>,
    gradients: &mut Gradients,
) -> Option<Vec<f32>> {
    // The container held the only reference, so the vector is moved out.
    tensor.grad_remove(gradients)?.into_data().try_into_vec().ok()
}

/// A tensor like `old` with other values.
pub fn with_values<const D: usize>(old: &Tensor<D>, values: Vec<f32>) -> Tensor<D> {
    let data = TensorData::new(values, old.dims());
    Tensor::from_data(data, &old.device()).set_require_grad(old.is_require_grad())
}
