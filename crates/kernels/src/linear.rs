//! `x W^T` with W stored as `[out, in]`, without a bias.

use crate::bridge::{Operation, Output, run};
use crate::path::{fuses, precision, with_precision};
use crate::product::matmul;
use burn::tensor::Tensor;
use hadal_cpu::linear::{Weight, backward, forward};
use hadal_cpu::{Precision, Rows};

/// Applies a weight to every token.
///
/// # Shapes
/// - `x`: `[B, T, in]`
/// - `weight`: `[out, in]`
/// - output: `[B, T, out]`
pub fn linear(x: Tensor<3>, weight: Tensor<2>) -> Tensor<3> {
    let [batch, time, inputs] = x.dims();
    let [outputs, _] = weight.dims();
    if fuses(&x.device()) {
        let operation = Linear { inputs, shape: [batch, time, outputs], precision: precision() };
        return run(operation, vec![x.into(), weight.into()]);
    }
    let rows = x.reshape([batch * time, inputs]);
    let product = || matmul(rows, weight.transpose());
    with_precision(precision().of_rows(batch * time), product).reshape([batch, time, outputs])
}

#[derive(Debug)]
struct Linear {
    inputs: usize,
    shape: [usize; 3],
    precision: Precision,
}

impl Operation for Linear {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let [x, weight] = [0, 1].map(|i| inputs[i].values());
        let values = forward(x, self.inputs, &[Weight::new(weight, self.inputs)], self.precision);
        Output { values, shape: self.shape.to_vec(), saved: Vec::new() }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let [x, weight] = [0, 1].map(|i| inputs[i].values());
        let weight = [Weight::new(weight, self.inputs)];
        let mut gradient = backward(d.values(), x, self.inputs, &weight, self.precision);
        vec![gradient.x, gradient.weights.remove(0)]
    }
}
