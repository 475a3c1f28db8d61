//! The gates of Multi-Gate Residuals: how much of a write each stream takes (Eq. 2, 3).

use super::MultiGateConfig;
use crate::pool::Source;
use crate::site::Dimensions;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::{
    Tensor,
    activation::{sigmoid, softmax},
};
use serde::{Deserialize, Serialize};

/// How gates relate to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MultiGateKind {
    /// Each stream decides for itself.
    Independent,
    /// Streams and a forget logit compete in one softmax.
    #[default]
    Competitive,
}

/// How Eq. 14 is read for the independent gate, where the paper contradicts itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IndependentStart {
    /// As printed, `b = -ln(X - n)`, which opens the gates to `1 / (1 + X - n)`.
    #[default]
    Literal,
    /// As derived, with n = 1: `b = -ln(X - 1)`, which opens the gates to `1 / X`.
    Derived,
}

/// How much of a write each stream takes.
#[derive(Module, Debug)]
pub(crate) struct StreamGate {
    pub(super) weight: Param<Tensor<1>>,
    pub(super) bias: Param<Tensor<1>>,
    #[module(skip)]
    pub(super) kind: MultiGateKind,
}

impl StreamGate {
    pub(super) fn new(
        config: &MultiGateConfig,
        site: usize,
        start: f32,
        dimensions: &Dimensions,
        weights: &mut Weights,
    ) -> Self {
        let n = config.streams;
        let bias = match config.gate {
            MultiGateKind::Independent => vec![-start; n],
            MultiGateKind::Competitive => {
                // The forget logit alone holds the gates down.
                let mut bias = vec![0.0; n + 1];
                bias[0] = start;
                bias
            }
        };
        let name = |part: &str| format!("residual.{site}.gate.{part}");
        Self {
            weight: weights.param(name("weight"), [dimensions.width], Init::ZEROS),
            bias: weights.param(name("bias"), [bias.len()], Init::Values(bias)),
            kind: config.gate,
        }
    }

    /// # Shapes
    /// - output: `[B, T, n]`
    pub(super) fn forward(&self, streams: &[Source]) -> Tensor<3> {
        let n = streams.len();
        let query = scaled(&self.weight);
        let u = Tensor::cat(streams.iter().map(|s| s.score(query.clone())).collect(), 2);
        match self.kind {
            MultiGateKind::Independent => sigmoid(u + self.bias.val().unsqueeze()),
            MultiGateKind::Competitive => {
                let [batch, time, _] = u.dims();
                let bias = self.bias.val();
                let forget = bias.clone().narrow(0, 0, 1).unsqueeze::<3>().expand([batch, time, 1]);
                let logits = u + bias.narrow(0, 1, n).unsqueeze();
                softmax(Tensor::cat(vec![forget, logits], 2), 2).narrow(2, 1, n)
            }
        }
    }
}

/// A query with MGR's `1/sqrt(d)` taken in.
pub(super) fn scaled(query: &Param<Tensor<1>>) -> Tensor<1> {
    let query = query.val();
    let kappa = 1.0 / (query.dims()[0] as f64).sqrt();
    query * kappa
}
