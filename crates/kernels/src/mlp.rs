//! The position-wise feed-forward network.

use crate::bridge::{Input, Operation, Output, run};
use crate::linear::linear;
use crate::path::{fuses, precision};
use burn::tensor::Tensor;
use burn::tensor::activation::{relu, silu};
use hadal_cpu::mlp::{Mlp, backward, forward};
use hadal_cpu::{Precision, Rows};

/// The matrices of a network.
pub struct MlpWeights {
    /// `[hidden, width]`
    pub up: Tensor<2>,
    /// `[hidden, width]`, only in the gated form.
    pub gate: Option<Tensor<2>>,
    /// `[width, hidden]`
    pub down: Tensor<2>,
    /// Added after each product, if there are any.
    pub biases: Option<MlpBiases>,
}

/// The biases of a network.
pub struct MlpBiases {
    /// `[hidden]`
    pub up: Tensor<1>,
    /// `[hidden]`, only in the gated form.
    pub gate: Option<Tensor<1>>,
    /// `[width]`
    pub down: Tensor<1>,
}

/// `down(relu(up x)^2)`, or with a gate `down(silu(gate x) * up x)`. With `recompute`, the hidden values
/// are computed again for the backward pass instead of being kept.
///
/// # Shapes
/// - `x` and output: `[B, T, width]`
pub fn mlp(x: Tensor<3>, weights: MlpWeights, recompute: bool) -> Tensor<3> {
    let MlpWeights { up, gate, down, biases } = weights;
    if let Some(biases) = biases {
        return biased_mlp(x, up, gate, down, biases);
    }
    if fuses(&x.device()) {
        let [hidden, width] = up.dims();
        let (shape, precision) = (x.dims(), precision());
        let operation = FusedMlp { shape, width, hidden, recompute, precision };
        let mut inputs: Vec<Input> = vec![x.into(), up.into(), down.into()];
        inputs.extend(gate.map(Input::from));
        return run(operation, inputs);
    }
    let raised = linear(x.clone(), up);
    let hidden = match gate {
        None => relu(raised).square(),
        Some(gate) => silu(linear(x, gate)) * raised,
    };
    linear(hidden, down)
}

/// Separate operations: few models have biases here, so there is no fused one.
fn biased_mlp(
    x: Tensor<3>,
    up: Tensor<2>,
    gate: Option<Tensor<2>>,
    down: Tensor<2>,
    biases: MlpBiases,
) -> Tensor<3> {
    let apply =
        |x: Tensor<3>, weight: Tensor<2>, bias: Tensor<1>| linear(x, weight) + bias.unsqueeze();
    let raised = apply(x.clone(), up, biases.up);
    let hidden = match gate.zip(biases.gate) {
        None => relu(raised).square(),
        Some((gate, bias)) => silu(apply(x, gate, bias)) * raised,
    };
    apply(hidden, down, biases.down)
}

#[derive(Debug)]
struct FusedMlp {
    shape: [usize; 3],
    width: usize,
    hidden: usize,
    recompute: bool,
    precision: Precision,
}

impl FusedMlp {
    fn mlp<'a>(&self, inputs: &'a [Rows]) -> Mlp<'a> {
        Mlp {
            width: self.width,
            hidden: self.hidden,
            up: inputs[1].values(),
            down: inputs[2].values(),
            gate: inputs.get(3).map(|gate| gate.values()),
        }
    }
}

impl Operation for FusedMlp {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let out = forward(inputs[0].values(), &self.mlp(inputs), self.precision);
        let saved = if keep && !self.recompute { vec![out.hidden, out.gate] } else { Vec::new() };
        Output { values: out.y, shape: self.shape.to_vec(), saved }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], mut saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let (x, mlp) = (inputs[0].values(), self.mlp(inputs));
        if self.recompute {
            let out = forward(x, &mlp, self.precision);
            saved = vec![out.hidden, out.gate];
        }
        let gradient = backward(d.values(), x, &saved[0], &saved[1], &mlp, self.precision);
        vec![gradient.x, gradient.up, gradient.down, gradient.gate]
    }
}
