//! `[model]`: the shape of what is trained.

use hadal_model::{
    AttentionBias, DepthKv, MlpKind, ModelConfig, RopeScaling, SlidingWindow, ValueResidual,
};
use hadal_residual::ResidualConfig;
use serde::{Deserialize, Serialize};

/// The shape of the model; what is left out follows from the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// Number of tokens; the data's by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; as many as query heads by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_kv_heads: Option<usize>,
    /// Width of a head; `d_model / n_heads` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Hidden width of the MLP; `4 d_model` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d_ff: Option<usize>,
    /// The nonlinearity of the MLP.
    #[serde(default = "relu2")]
    pub mlp: MlpKind,
    /// Base of the rotary frequencies.
    #[serde(default = "rope_theta")]
    pub rope_theta: f64,
    /// Added to the mean square in every RMS normalisation.
    #[serde(default = "norm_eps")]
    pub norm_eps: f64,
    /// Whether queries and keys are normalised.
    #[serde(default)]
    pub qk_norm: bool,
    /// Whether the head is the embedding; by default it is, except for NAG, whose tables differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tie_embeddings: Option<bool>,
    /// What attention sees of earlier depth.
    #[serde(default = "no_depth_kv")]
    pub depth_kv: DepthKv,
    /// How much of the first attention's values enters every later one; nothing by default.
    #[serde(default, skip_serializing_if = "ValueResidual::is_none")]
    pub value_residual: ValueResidual,
    /// Longest sequence; that of training by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_seq_len: Option<usize>,
    /// Which projections of attention have a bias; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_bias: Option<AttentionBias>,
    /// Whether the matrices of the MLP have biases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mlp_bias: bool,
    /// How rotary frequencies are stretched; not at all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Where attention sees the last positions alone; nowhere by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<SlidingWindow>,
    /// Blocks that were cut out of the model to continue from, by the numbers they had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_blocks: Vec<usize>,
}

fn relu2() -> MlpKind {
    MlpKind::Relu2
}

fn rope_theta() -> f64 {
    10_000.0
}

fn norm_eps() -> f64 {
    1e-6
}

fn no_depth_kv() -> DepthKv {
    DepthKv::None
}

impl ModelSection {
    /// The model for data of this vocabulary and sequence length.
    pub fn resolve(
        &self,
        residual: &ResidualConfig,
        data_vocabulary: usize,
        seq_len: usize,
    ) -> ModelConfig {
        ModelConfig {
            model_type: "hadal".into(),
            vocab_size: self.vocab_size.unwrap_or(data_vocabulary),
            d_model: self.d_model,
            n_layers: self.n_layers,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads.unwrap_or(self.n_heads),
            head_dim: self.head_dim.unwrap_or(self.d_model / self.n_heads.max(1)),
            d_ff: self.d_ff.unwrap_or(4 * self.d_model),
            mlp: self.mlp,
            rope_theta: self.rope_theta,
            norm_eps: self.norm_eps,
            qk_norm: self.qk_norm,
            tie_embeddings: self.tie_embeddings.unwrap_or(residual.tables().tied),
            depth_kv: self.depth_kv,
            value_residual: self.value_residual,
            max_seq_len: self.max_seq_len.unwrap_or(seq_len),
            attention_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            rope_scaling: self.rope_scaling.clone(),
            sliding_window: self.sliding_window.clone(),
            removed_blocks: self.removed_blocks.clone(),
            residual: residual.clone(),
        }
    }
}

impl From<&ModelConfig> for ModelSection {
    fn from(model: &ModelConfig) -> Self {
        Self {
            vocab_size: Some(model.vocab_size),
            d_model: model.d_model,
            n_layers: model.n_layers,
            n_heads: model.n_heads,
            n_kv_heads: Some(model.n_kv_heads),
            head_dim: Some(model.head_dim),
            d_ff: Some(model.d_ff),
            mlp: model.mlp,
            rope_theta: model.rope_theta,
            norm_eps: model.norm_eps,
            qk_norm: model.qk_norm,
            tie_embeddings: Some(model.tie_embeddings),
            depth_kv: model.depth_kv,
            value_residual: model.value_residual,
            max_seq_len: Some(model.max_seq_len),
            attention_bias: model.attention_bias,
            mlp_bias: model.mlp_bias,
            rope_scaling: model.rope_scaling.clone(),
            sliding_window: model.sliding_window.clone(),
            removed_blocks: model.removed_blocks.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_model::Yarn;

    #[test]
    fn a_model_of_other_makers_comes_back_from_its_settings() {
        let yarn = Yarn {
            factor: 4.0,
            original_max_seq_len: 8,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.138_629_4,
            truncate: true,
        };
        let model = ModelConfig {
            model_type: "hadal".into(),
            vocab_size: 19,
            d_model: 16,
            n_layers: 3,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 6,
            d_ff: 24,
            mlp: MlpKind::Swiglu,
            rope_theta: 1e6,
            norm_eps: 1e-5,
            qk_norm: true,
            tie_embeddings: false,
            depth_kv: DepthKv::None,
            value_residual: ValueResidual::Learned,
            max_seq_len: 64,
            attention_bias: Some(AttentionBias::Qkv),
            mlp_bias: true,
            rope_scaling: Some(RopeScaling::Yarn(yarn)),
            sliding_window: Some(SlidingWindow { size: 4, blocks: Some(vec![0, 2]) }),
            removed_blocks: vec![1],
            residual: ResidualConfig::default(),
        };
        let divided = RopeScaling::Divided { divisors: vec![1.0, 1.1, 8.1] };
        for model in [ModelConfig { rope_scaling: Some(divided), ..model.clone() }, model] {
            let text = toml::to_string(&ModelSection::from(&model)).unwrap();
            let section: ModelSection = toml::from_str(&text).unwrap();
            assert_eq!(section.resolve(&model.residual, 7, 5), model, "{text}");
        }
    }
}
