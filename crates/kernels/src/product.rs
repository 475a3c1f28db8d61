//! Matrix products in plain tensor operations, with operands rounded as [`Precision`] defines it.
//!
//! The gradient goes straight through the rounding of operands: it is that of the product of rounded operands. The gradient
//! that comes back is not rounded before it is multiplied, as fused forms do.
//!
//! A device that multiplies bf16 numbers itself does so for `bf16`: operands are cast, sums are the device's (f32 in
//! CubeCL's matrix products), and what comes out, forward and backward, is rounded to bf16 once more before it is f32 again.
//! Elsewhere operands are rounded on the host, which is slow and the definition to the bit.

use crate::path::precision;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use hadal_cpu::{Precision, bf16, split};

/// `a b` in the precision of this scope.
pub fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    match precision() {
        Precision::F32 => a.matmul(b),
        Precision::Bf16 if has_bf16(&a.device()) => cast_product(a, b),
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

/// Whether a device multiplies bf16 numbers. Flex does not: what runs there is the definition.
pub fn has_bf16(device: &Device) -> bool {
    let device = device.clone().without_autodiff();
    device != Device::flex() && device.supports_dtype(DType::BF16)
}

/// The product of operands that are cast, in f32; gradients come back in f32, too.
fn cast_product<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    let [a, b] = [a, b].map(|x| x.cast(FloatDType::BF16));
    a.matmul(b).cast(FloatDType::F32)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_back;
    use crate::{Precision, with_precision};
    use burn::tensor::TensorData;

    const SIZE: usize = 24;

    fn noise(seed: f32) -> Tensor<2> {
        let value = |i: usize| ((i as f32 * 12.9898 + seed).sin() * 43_758.547).fract();
        let values: Vec<f32> = (0..SIZE * SIZE).map(value).collect();
        let device = Device::flex().autodiff();
        Tensor::from_data(TensorData::new(values, [SIZE, SIZE]), &device).require_grad()
    }

    /// Output and both gradients.
    fn run(product: impl Fn(Tensor<2>, Tensor<2>) -> Tensor<2>) -> [Vec<f32>; 3] {
        let (a, b) = (noise(1.0), noise(2.0));
        let y = product(a.clone(), b.clone());
        let mut gradients = y.clone().square().sum().backward();
        let [da, db] = [a, b].map(|x| read_back(x.grad_remove(&mut gradients).unwrap()).unwrap());
        [read_back(y).unwrap(), da, db]
    }

    #[test]
    fn cast_operands_give_the_definition_but_for_one_more_rounding() {
        let definition = run(|a, b| with_precision(Precision::Bf16, || matmul(a, b)));
        let exact = run(matmul);
        for ((got, want), exact) in run(cast_product).iter().zip(&definition).zip(&exact) {
            let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
            let apart = |one: &[f32], other: &[f32]| {
                let pairs = one.iter().zip(other).map(|(one, other)| (one - other).abs());
                pairs.fold(0f32, f32::max) / largest
            };
            assert!(apart(got, want) < 1.5e-2, "{}", apart(got, want));
            assert!(apart(want, exact) > 1e-4, "nothing was rounded");
        }
    }

    #[test]
    fn the_cpu_keeps_to_the_definition() {
        assert!(!has_bf16(&Device::flex().autodiff()));
    }
}
