//! Parameters and gradients between tensors and vectors, without copies where that is possible.

use crate::read_back::read_back;
use burn::tensor::{Gradients, Tensor};

/// Takes a parameter's gradient out of all gradients; `None` if it has none.
///
/// # Panics
/// If the gradient cannot be read back from its device.
pub fn take_gradient<const D: usize>(
    tensor: &Tensor<D>,
    gradients: &mut Gradients,
) -> Option<Vec<f32>> {
    // The container held the only reference, so the vector is moved out.
    Some(read_back(tensor.grad_remove(gradients)?).unwrap_or_else(|error| panic!("{error}")))
}

/// Changes the values of a tensor where they are; they are copied only if something else holds them
/// too, such as a clone or the graph of a loss.
pub fn change_values<const D: usize>(
    tensor: Tensor<D>,
    change: impl FnOnce(&mut [f32]),
) -> Tensor<D> {
    let (device, tracked) = (tensor.device(), tensor.is_require_grad());
    let mut data = tensor.into_data();
    change(data.as_mut_slice().expect("values are f32"));
    Tensor::from_data(data, &device).set_require_grad(tracked)
}
