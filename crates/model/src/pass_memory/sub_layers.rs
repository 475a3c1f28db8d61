//! What attention and MLP keep, and the room that they need on the way back, in floats.

use crate::config::{MlpKind, ModelConfig};
use hadal_residual::SubLayerKind;

/// The sizes of a block's sub-layers.
pub(super) struct Sizes {
    /// Features.
    d: f64,
    /// All query heads, and all key heads.
    q: f64,
    kv: f64,
    heads: f64,
    ff: f64,
    gated: bool,
    biased: bool,
    recompute: bool,
}

/// A moment on the way back through a sub-layer, beyond what was there before it and the gradient of its output.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Room {
    /// What operations hold.
    pub(super) working: f64,
    /// Gradients of its parameters that are there already.
    pub(super) gradients: f64,
    /// What it kept and no longer needs.
    pub(super) freed: f64,
}

impl Sizes {
    pub(super) fn of(config: &ModelConfig, recompute: bool) -> Self {
        Self {
            d: config.d_model as f64,
            q: (config.n_heads * config.head_dim) as f64,
            kv: config.kv_width() as f64,
            heads: config.n_heads as f64,
            ff: config.d_ff as f64,
            gated: config.mlp == MlpKind::Swiglu,
            biased: config.mlp_bias,
            recompute,
        }
    }

    /// Queries, keys and values side by side.
    fn joined(&self) -> f64 {
        self.q + 2.0 * self.kv
    }

    /// What the MLP keeps besides its input.
    fn hidden(&self) -> f64 {
        match (self.biased, self.gated) {
            (false, false) => self.ff,
            (false, true) => 2.0 * self.ff,
            // Operations apart, none of which is computed again.
            (true, false) => 2.0 * self.ff,
            (true, true) => 5.0 * self.ff,
        }
    }

    /// Kept of each token: the input; then queries, keys and values, what was mixed, and a logarithm for each head, or
    /// hidden values.
    pub(super) fn kept(&self, kind: SubLayerKind) -> f64 {
        match kind {
            SubLayerKind::Mlp if self.recompute && !self.biased => self.d,
            SubLayerKind::Mlp => self.d + self.hidden(),
            SubLayerKind::Attention if self.recompute => self.d,
            SubLayerKind::Attention => self.d + self.joined() + self.q + self.heads,
        }
    }

    /// Shows the moments of the way back through a sub-layer that so many tokens run.
    pub(super) fn backward(&self, kind: SubLayerKind, tokens: f64, see: &mut dyn FnMut(Room)) {
        match kind {
            SubLayerKind::Attention => self.attention(tokens, see),
            SubLayerKind::Mlp => self.mlp(tokens, see),
        }
    }

    fn attention(&self, tokens: f64, see: &mut dyn FnMut(Room)) {
        let Self { d, q, .. } = *self;
        let joined = self.joined();
        let intermediate = tokens * (joined + q + self.heads);
        // What was not kept is computed again.
        let again = if self.recompute { intermediate } else { 0.0 };
        // Through the output's matrix: what was mixed and the matrix as factors, and both gradients.
        see(Room { working: again + 2.0 * tokens * q + d * q, gradients: d * q, freed: 0.0 });
        // Through the mixing.
        see(Room { working: again + tokens * (q + joined), gradients: d * q, freed: 0.0 });
        // Through the three matrices, without what was kept of the mixing.
        see(Room {
            working: tokens * (q + joined + 2.0 * d) + d * joined,
            gradients: d * (q + joined),
            freed: if self.recompute { 0.0 } else { tokens * (joined + q) },
        });
    }

    fn mlp(&self, tokens: f64, see: &mut dyn FnMut(Room)) {
        let Self { d, ff, .. } = *self;
        let again = if self.recompute && !self.biased { tokens * self.hidden() } else { 0.0 };
        let matrices = if self.gated { 3.0 } else { 2.0 } * d * ff;
        let raised = if self.gated { 2.0 } else { 1.0 } * tokens * ff;
        // The input's gradient, input and gradient as factors, gradients of hidden values, the matrices as factors.
        see(Room {
            working: again + 3.0 * tokens * d + raised + matrices,
            gradients: matrices,
            freed: 0.0,
        });
    }
}
