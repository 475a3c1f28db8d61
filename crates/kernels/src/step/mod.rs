//! Sub-layers for a single token: weights stay where the tensors keep them, and rows are in memory that is reused. The
//! same kernels compute the same as the operations on tensors.

mod attention;
mod mlp;

pub use attention::{AttentionStep, ValueStep};
pub use mlp::MlpStep;

use crate::bridge::lend;
use burn::tensor::Tensor;
use hadal_cpu::linear::{self, Weight};
use hadal_cpu::{Rows, mlp as network};

/// Working memory of the sub-layers of one token.
#[derive(Debug, Default)]
pub struct Room {
    /// `[q | k | v]`
    joined: Vec<f32>,
    /// What the first attention left of this token, for those that mix it into their own values.
    first_values: Vec<f32>,
    /// What the heads mixed.
    mixed: Vec<f32>,
    network: network::Room,
}

/// [`crate::linear()`] for a single token.
#[derive(Debug)]
pub struct LinearStep {
    weight: Rows,
    inputs: usize,
}

impl LinearStep {
    /// `None` if [`lend`] returns `None`.
    ///
    /// # Shapes
    /// - `weight`: `[out, in]`
    pub fn new(weight: Tensor<2>) -> Option<Self> {
        let [_, inputs] = weight.dims();
        Some(Self { weight: lend(weight)?, inputs })
    }

    /// Number of rows of the weight.
    pub fn out(&self) -> usize {
        self.weight().out
    }

    /// One of these rows.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.weight.values()[index * self.inputs..][..self.inputs]
    }

    /// # Shapes
    /// - `x`: `[in]`
    /// - `y`: `[out]`
    pub fn apply(&self, x: &[f32], y: &mut [f32]) {
        linear::step(x, &[self.weight()], y);
    }

    fn weight(&self) -> Weight<'_> {
        Weight::new(self.weight.values(), self.inputs)
    }
}

/// Lends an optional tensor. `None` means that it exists but cannot be lent, `Some(None)` that there is none.
fn lend_some<const D: usize>(tensor: Option<Tensor<D>>) -> Option<Option<Rows>> {
    match tensor {
        None => Some(None),
        Some(tensor) => lend(tensor).map(Some),
    }
}
