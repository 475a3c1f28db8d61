//! Causal self-attention: as a whole sub-layer (projections, head norms, rotation, mixing, output), the same for
//! rows that continue what was seen before, and in parts for models whose blocks leave keys and values to later
//! ones. Everywhere a route can name the tokens that ask; without one, all of them do.
//!
//! There is no plain form here: it is the model's own attention. Call these operations only where
//! [`crate::fuses`] says so.

mod inputs;
mod parts;
mod projected;
mod values;
mod whole;

pub use hadal_cpu::attention::Keys;
pub(crate) use inputs::Inputs;
pub use parts::{DepthSlots, Projections, mix_heads, project_heads};
pub use projected::Asking;
pub(crate) use projected::Projected;
pub(crate) use values::HALVES;
pub use values::{FirstValues, mix_values};

use crate::bridge::run;
use crate::seen::SeenTokens;
use burn::tensor::Tensor;
use hadal_cpu::attention::{HeadNorms, Shape};
use std::sync::Arc;
use whole::{Attention, Continued};

/// Rotations of a run of positions.
#[derive(Clone, Debug)]
pub struct RopeTables {
    /// `[time, head_dim / 2]`
    pub cos: Arc<[f32]>,
    /// `[time, head_dim / 2]`
    pub sin: Arc<[f32]>,
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// How many positions back a token sees, itself included; everything if none.
    pub window: Option<u32>,
}

impl AttentionShape {
    /// The shape in the form that kernels take, for sequences of `time` tokens.
    fn with<'a>(
        self,
        time: usize,
        rope: &'a RopeTables,
        norms: Option<HeadNorms<'a>>,
    ) -> Shape<'a> {
        let Self { heads, kv_heads, head_dim, window } = self;
        Shape { time, heads, kv_heads, head_dim, cos: &rope.cos, sin: &rope.sin, norms, window }
    }
}

/// The parameters of an attention.
pub struct AttentionWeights {
    /// `[heads * head_dim, d]`
    pub q: Tensor<2>,
    /// `[kv_heads * head_dim, d]`
    pub k: Tensor<2>,
    /// `[kv_heads * head_dim, d]`
    pub v: Tensor<2>,
    /// `[d, heads * head_dim]`
    pub o: Tensor<2>,
    /// Norms over each head, if there are any.
    pub norms: Option<HeadGains>,
    /// Biases of queries, keys and values side by side, `[(heads + 2 kv_heads) * head_dim]`.
    pub bias: Option<Tensor<1>>,
    /// `[d]`
    pub output_bias: Option<Tensor<1>>,
}

/// RMS norms over each head, before the rotation.
pub struct HeadGains {
    /// `[head_dim]`
    pub query: Tensor<1>,
    /// `[head_dim]`
    pub key: Tensor<1>,
    /// Added to the mean square.
    pub eps: f64,
}

/// How an attention runs.
#[derive(Clone, Debug)]
pub struct AttentionCall<'a> {
    /// The sizes.
    pub shape: AttentionShape,
    /// Rotations of the T new positions.
    pub rope: &'a RopeTables,
    /// The tokens that ask and those that have keys; `None` for all. The output's rows of tokens that do not
    /// ask are zero.
    pub asking: Option<Asking>,
    /// What the first attention's values add to its own, if anything.
    pub first_values: Option<FirstValues>,
    /// Whether everything but the input is computed again for the backward pass instead of being kept.
    pub recompute: bool,
}

/// Attends within each row of `x`, from its first position on. A route must not be empty.
///
/// # Shapes
/// - `x`: `[B, T, d]`, or `[B, T, 3 d]`: inputs of queries, keys and values side by side
/// - output: `[B, T, d]`
pub fn attention(x: Tensor<3>, weights: AttentionWeights, call: AttentionCall) -> Tensor<3> {
    let (operation, inputs) = Attention::new(x, weights, call);
    run(operation, inputs)
}

/// Attends from rows that continue what was seen before, and adds them to it. There is no backward pass: call this only
/// on a device without autodiff. A route may be empty.
///
/// # Shapes
/// - `x`: `[B, T, d]`, or `[B, T, 3 d]`: inputs of queries, keys and values side by side
/// - output: `[B, T, d]`
pub fn continued_attention(
    x: Tensor<3>,
    weights: AttentionWeights,
    call: AttentionCall,
    seen: SeenTokens,
) -> Tensor<3> {
    let (attention, inputs) = Attention::new(x, weights, call);
    run(Continued { attention, seen }, inputs)
}
