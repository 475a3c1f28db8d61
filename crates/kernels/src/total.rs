//! The sum of a whole tensor, in an order that stays the same.

use burn::tensor::{Device, Tensor};

/// The sum of all elements. Other devices than Flex add a whole tensor with atomics, in any order; there, one dimension is
/// summed after another.
///
/// # Shapes
/// - output: `[1]`
pub fn total<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    if x.device().without_autodiff() == Device::flex() {
        return x.sum();
    }
    by_dimension(x)
}

fn by_dimension<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    (0..D).rev().fold(x, |x, dimension| x.sum_dim(dimension)).reshape([1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_back;

    #[test]
    fn dimension_by_dimension_it_is_the_sum_of_everything() {
        let x = Tensor::<3>::from_floats(
            [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 9.0]]],
            &Device::flex(),
        );
        assert_eq!(read_back(by_dimension(x.clone())), Ok(vec![37.0]));
        assert_eq!(read_back(total(x)), Ok(vec![37.0]));
    }
}
