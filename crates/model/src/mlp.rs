//! The position-wise feed-forward network.

use crate::config::{MlpKind, ModelConfig};
use crate::layers::Linear;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_kernels::{MlpBiases, MlpWeights, mlp};
use hadal_residual::{Matrix, Weights};

/// `down(relu(up x)^2)`, or with a gate `down(silu(gate x) * up x)`.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    up: Linear,
    gate: Option<Linear>,
    down: Linear,
    depth: Option<DepthProjection>,
}

/// The key and value that an MLP leaves for attention in later blocks.
#[derive(Module, Debug)]
pub(crate) struct DepthProjection {
    pub(crate) key: Linear,
    pub(crate) value: Linear,
}

impl Mlp {
    pub(crate) fn new(block: usize, config: &ModelConfig, weights: &mut Weights) -> Self {
        let (d, ff, kv) = (config.d_model, config.d_ff, config.kv_width());
        let std = |matrix| config.residual.branch_std(&config.dimensions(), matrix);
        let mut linear = |part: &str, shape, matrix, bias| {
            Linear::new(&format!("layers.{block}.mlp.{part}"), shape, std(matrix), bias, weights)
        };
        let (bias, gated) = (config.mlp_bias, config.mlp == MlpKind::Swiglu);
        Self {
            up: linear("up", [ff, d], Matrix::Up, bias),
            gate: gated.then(|| linear("gate", [ff, d], Matrix::Up, bias)),
            down: linear("down", [d, ff], Matrix::Down, bias),
            depth: config.mlp_leaves_slot(block).then(|| DepthProjection {
                key: linear("depth_k", [kv, d], Matrix::Key, false),
                value: linear("depth_v", [kv, d], Matrix::Value, false),
            }),
        }
    }

    /// With `recompute`, hidden values are not kept for the backward pass.
    ///
    /// # Shapes
    /// - `x` and output: `[B, T, d]`
    pub(crate) fn forward(&self, x: Tensor<3>, recompute: bool) -> Tensor<3> {
        mlp(x, self.weights(), recompute)
    }

    /// The matrices and biases.
    pub(crate) fn weights(&self) -> MlpWeights {
        MlpWeights {
            up: self.up.weight(),
            gate: self.gate.as_ref().map(Linear::weight),
            down: self.down.weight(),
            biases: self.up.bias().zip(self.down.bias()).map(|(up, down)| MlpBiases {
                up,
                gate: self.gate.as_ref().and_then(Linear::bias),
                down,
            }),
        }
    }

    /// What this MLP leaves for later attention, if anything.
    pub(crate) fn depth(&self) -> Option<&DepthProjection> {
        self.depth.as_ref()
    }
}
