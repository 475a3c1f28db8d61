//! What an additive stream is made of.

use crate::norm::RmsNorm;
use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation::sigmoid};
use hadal_kernels::rms;

/// What happens around one sub-layer.
#[derive(Module, Debug)]
pub(crate) struct AdditiveSite {
    /// Normalises what the sub-layer is given.
    pub(crate) before: Option<RmsNorm>,
    /// Factor on that input.
    pub(crate) scale: f64,
    /// Normalises the sub-layer's output.
    pub(crate) write: Option<RmsNorm>,
    /// Normalises the sub-layer's output without a gain, and weighs it and the stream by channel.
    pub(crate) gate: Option<ChannelGate>,
    /// Factor on the output after that.
    pub(crate) factor: f64,
    /// Weight of the stream when the write is added to it.
    pub(crate) carry: f64,
    /// Normalises the sum.
    pub(crate) after: Option<RmsNorm>,
}

impl AdditiveSite {
    /// What adds a write and has no norm.
    fn bare() -> Self {
        Self {
            before: None,
            scale: 1.0,
            write: None,
            gate: None,
            factor: 1.0,
            carry: 1.0,
            after: None,
        }
    }

    /// PreNorm: the sub-layer reads through the norm.
    pub(crate) fn pre(norm: RmsNorm) -> Self {
        Self { before: Some(norm), ..Self::bare() }
    }

    /// PostNorm: the sum is normalised.
    pub(crate) fn post(norm: RmsNorm) -> Self {
        Self { after: Some(norm), ..Self::bare() }
    }

    /// The write is normalised, and what is read is not.
    pub(crate) fn output(norm: RmsNorm) -> Self {
        Self { write: Some(norm), ..Self::bare() }
    }
}

/// The norm of the embedding, with or without a gain.
#[derive(Module, Debug)]
pub(crate) struct EmbedNorm {
    pub(crate) gain: Option<Param<Tensor<1>>>,
    pub(crate) eps: f64,
}

impl EmbedNorm {
    /// # Shapes
    /// - `x` and output: `[B, T, d]`
    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let normed = rms(x, self.eps);
        match &self.gain {
            Some(gain) => normed * gain.val().unsqueeze(),
            None => normed,
        }
    }
}

/// Below this the square of a carried weight is constant: a closed channel is still carried a little.
const LEAST: f64 = 1e-3;

/// A gate for each channel: `b = sigmoid(logits / temperature)` of the write is taken and `sqrt(1 - b^2)` of the stream
/// carried, so that uncorrelated unit streams keep their variance.
#[derive(Module, Debug)]
pub(crate) struct ChannelGate {
    pub(crate) logits: Param<Tensor<1>>,
    pub(crate) temperature: f64,
}

impl ChannelGate {
    /// The weights of the write and of the stream.
    pub(crate) fn weights(&self) -> (Tensor<1>, Tensor<1>) {
        let open = sigmoid(self.logits.val() / self.temperature);
        let carried = (open.clone() * open.clone()).neg() + 1.0;
        (open, carried.clamp_min(LEAST).sqrt())
    }
}

/// Learned numbers of a block.
#[derive(Module, Debug)]
pub(crate) enum BlockNumbers {
    /// The stream and the embedding are mixed before it.
    Before(BlockMix),
    /// The stream is multiplied by a number after it.
    After(Param<Tensor<1>>),
}

/// `x = resid x + x0 x_0`, where x_0 is the stream before the first block.
#[derive(Module, Debug)]
pub(crate) struct BlockMix {
    pub(crate) resid: Param<Tensor<1>>,
    pub(crate) x0: Param<Tensor<1>>,
}

impl BlockMix {
    /// # Shapes
    /// - `x`, `embedding` and output: `[B, T, d]`
    pub(crate) fn forward(&self, x: Tensor<3>, embedding: Tensor<3>) -> Tensor<3> {
        x * self.resid.val().unsqueeze() + embedding * self.x0.val().unsqueeze()
    }
}

/// What the read-out takes off: a share of the stream as it was after so many blocks.
#[derive(Module, Debug)]
pub(crate) struct Backout {
    pub(crate) weight: Param<Tensor<1>>,
    pub(crate) blocks: usize,
}
