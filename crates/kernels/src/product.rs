//! Matrix products in plain tensor operations, with operands rounded as [`Precision`] defines it.
//!
//! The gradient goes straight through the rounding of operands: it is that of the product of rounded operands. The gradient
//! that comes back is not rounded before it is multiplied, as fused forms do.

use crate::path::precision;
use burn::tensor::Tensor;
use hadal_cpu::{Precision, bf16, split};

/// `a b` in the precision of this scope.
pub fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    match precision() {
        Precision::F32 => a.matmul(b),
        Precision::Bf16 => rounded(a, bf16).matmul(rounded(b, bf16)),
        Precision::Bf16x3 => {
            let ([a1, a2, a3], [b1, b2, b3]) = (parts(a), parts(b));
            // The smallest first.
            a3.matmul(b1.clone())
                + a2.clone().matmul(b2.clone())
                + a1.clone().matmul(b3)
                + a2.matmul(b1.clone())
                + a1.clone().matmul(b2)
                + a1.matmul(b1)
        }
    }
}

/// The three parts; the gradient of the whole is that of the first one.
fn parts<const D: usize>(x: Tensor<D>) -> [Tensor<D>; 3] {
    let [second, third] = [1, 2].map(|part| mapped(&x, |x| split(x)[part]));
    [rounded(x, bf16), second, third]
}

/// `round(x)`, with the gradient of `x`.
fn rounded<const D: usize>(x: Tensor<D>, round: impl Fn(f32) -> f32) -> Tensor<D> {
    // A bf16 differs from what it stands for by an f32, so this sum is exact.
    let difference = mapped(&x, |x| {
        let rounded = round(x);
        if rounded == x || x.is_nan() { 0.0 } else { rounded - x }
    });
    x + difference
}

/// `f` of each element, without a gradient.
fn mapped<const D: usize>(x: &Tensor<D>, f: impl Fn(f32) -> f32) -> Tensor<D> {
    let mut data = x.clone().detach().into_data();
    if let Ok(values) = data.as_mut_slice::<f32>() {
        values.iter_mut().for_each(|value| *value = f(*value));
    }
    Tensor::from_data(data, &x.device())
}
