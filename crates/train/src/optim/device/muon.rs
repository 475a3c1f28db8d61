//! Muon in tensor operations.

use super::{Slot, square_sum};
use crate::optim::MuonConfig;
use burn::tensor::Tensor;

/// Keeps a matrix of zeros from being divided by zero.
const TINY: f64 = 1e-7;

impl MuonConfig {
    /// The rule of [`MuonConfig::step`].
    pub(super) fn step_tensor(
        &self,
        values: Tensor<1>,
        slot: &mut Slot,
        gradient: Tensor<1>,
        rate: f64,
    ) -> Tensor<1> {
        let shape = [slot.shape[0], slot.shape[1]];
        let (lr, mu) = (self.lr * rate, self.momentum as f32);
        let first = slot.first.clone() * mu + gradient.clone() * (1.0 - mu);
        slot.first = first.clone();
        let direction = (gradient * (1.0 - mu) + first * mu).reshape(shape);
        let direction = self.orthogonal(direction).reshape([shape[0] * shape[1]]);
        let (keep, size) = ((1.0 - lr * self.weight_decay) as f32, lr * self.scale.factor(shape));
        values * keep - direction * (size as f32)
    }

    /// The nearest matrix with singular values close to one.
    ///
    /// # Shapes
    /// - `matrix` and output: `[rows, columns]`
    fn orthogonal(&self, matrix: Tensor<2>) -> Tensor<2> {
        let [rows, columns] = matrix.dims();
        let tall = rows > columns;
        let squares = square_sum(matrix.clone().reshape([rows * columns]), columns);
        let norm = squares.sqrt() * (self.coefficients.margin() as f32) + (TINY as f32);
        let mut x = if tall { matrix.transpose() } else { matrix } / norm.unsqueeze();
        for [a, b, c] in self.coefficients.in_f32(self.steps) {
            let square = x.clone().matmul(x.clone().transpose());
            let polynomial = square.clone() * b + square.clone().matmul(square) * c;
            x = x.clone() * a + polynomial.matmul(x);
        }
        if tall { x.transpose() } else { x }
    }
}
