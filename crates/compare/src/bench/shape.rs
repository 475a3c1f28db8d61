//! Which model is timed.

use hadal_model::{DepthKv, MlpKind, ModelConfig, ValueResidual};
use hadal_residual::ResidualConfig;
use hadal_train::ModelSection;

/// Vocabulary of a model whose settings leave that to the data.
pub const VOCABULARY: usize = 512;

/// A model whose policy and longest sequence are still open.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// The model of a run's settings; what they leave out follows from the policy and the length.
    Run(Box<ModelSection>, ResidualConfig),
    /// A model that is fully described.
    Whole(Box<ModelConfig>),
}

impl Shape {
    /// The model of our benchmarks: 8 blocks of 256 with 4 heads, prenorm.
    pub fn standard() -> Self {
        let section = ModelSection {
            vocab_size: None,
            d_model: 256,
            n_layers: 8,
            n_heads: 4,
            n_kv_heads: None,
            head_dim: None,
            d_ff: None,
            mlp: MlpKind::Relu2,
            rope_theta: 10_000.0,
            norm_eps: 1e-6,
            qk_norm: false,
            tie_embeddings: None,
            depth_kv: DepthKv::None,
            value_residual: ValueResidual::None,
            max_seq_len: None,
            attention_bias: None,
            mlp_bias: false,
            rope_scaling: None,
            sliding_window: None,
            removed_blocks: Vec::new(),
        };
        Self::Run(Box::new(section), ResidualConfig::default())
    }

    /// The policy unless another one is requested.
    pub fn residual(&self) -> &ResidualConfig {
        match self {
            Self::Run(_, residual) => residual,
            Self::Whole(model) => &model.residual,
        }
    }

    /// The model with a policy, its own by default, for sequences of at most `longest` tokens.
    pub fn model(&self, residual: Option<&ResidualConfig>, longest: usize) -> ModelConfig {
        let residual = residual.unwrap_or(self.residual());
        let model = match self {
            Self::Run(section, _) => section.resolve(residual, VOCABULARY, longest),
            Self::Whole(model) => ModelConfig { residual: residual.clone(), ..*model.clone() },
        };
        ModelConfig { max_seq_len: longest, ..model }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_model_is_the_one_that_is_documented() {
        let model = Shape::standard().model(None, 256);
        assert_eq!((model.d_model, model.n_layers, model.d_ff), (256, 8, 1024));
        assert_eq!((model.n_heads, model.n_kv_heads, model.head_dim), (4, 4, 64));
        assert_eq!((model.vocab_size, model.max_seq_len), (VOCABULARY, 256));
        assert!(model.tie_embeddings);
        assert_eq!(model.residual, "prenorm".parse().unwrap());
        assert_eq!(model.check_fresh(), Ok(()));
    }

    #[test]
    fn a_policy_and_a_length_replace_those_of_the_model() {
        let whole = Shape::Whole(Box::new(Shape::standard().model(None, 32)));
        let mgr = "mgr:streams=2".parse().unwrap();
        for shape in [Shape::standard(), whole] {
            let model = shape.model(Some(&mgr), 64);
            assert_eq!((model.max_seq_len, &model.residual), (64, &mgr));
        }
    }
}
