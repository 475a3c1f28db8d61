//! Numbers of a tensor, on the host.

use burn::tensor::Tensor;
use std::error::Error;
use std::fmt;

/// A tensor that cannot be read back from its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBackError {
    reason: String,
}

impl fmt::Display for ReadBackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read a tensor back from its device: {}", self.reason)
    }
}

impl Error for ReadBackError {}

/// All elements of a tensor, in row-major order.
pub fn read_back<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, ReadBackError> {
    tensor
        .try_into_vec_as::<f32>()
        .map_err(|error| ReadBackError { reason: format!("{error:?}") })
}
