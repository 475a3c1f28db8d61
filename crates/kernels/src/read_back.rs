//! The values of a tensor, on the host.

use burn::tensor::Tensor;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A tensor's values cannot be read from its device.
#[derive(Clone, Debug)]
pub struct ReadBackError {
    shape: Vec<usize>,
    source: Arc<dyn Error + Send + Sync>,
}

impl ReadBackError {
    fn new(shape: &[usize], source: impl Error + Send + Sync + 'static) -> Self {
        Self { shape: shape.to_vec(), source: Arc::new(source) }
    }
}

impl fmt::Display for ReadBackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, source } = self;
        write!(f, "cannot read a tensor of shape {shape:?} back from its device: {source}")
    }
}

impl Error for ReadBackError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_ref())
    }
}

/// Compares messages: errors of a device cannot be compared.
impl PartialEq for ReadBackError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for ReadBackError {}

/// All elements of a tensor, row by row. They are moved out if nothing else holds them.
pub fn read_back<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, ReadBackError> {
    let shape = tensor.dims();
    tensor.try_into_vec_as().map_err(|error| ReadBackError::new(&shape, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn values_come_back_row_by_row() {
        let tensor = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &Device::flex());
        assert_eq!(read_back(tensor.clone()), Ok(vec![1.0, 2.0, 3.0, 4.0]));
        assert_eq!(read_back(tensor.transpose()), Ok(vec![1.0, 3.0, 2.0, 4.0]));
    }

    #[test]
    fn an_error_names_the_shape_and_keeps_its_source() {
        let error = ReadBackError::new(&[2, 3], fmt::Error);
        let text = "cannot read a tensor of shape [2, 3] back from its device: ";
        assert!(error.to_string().starts_with(text), "{error}");
        assert_eq!(error.source().unwrap().to_string(), fmt::Error.to_string());
        assert_eq!(error, error.clone());
        assert_ne!(error, ReadBackError::new(&[2], fmt::Error));
    }
}
