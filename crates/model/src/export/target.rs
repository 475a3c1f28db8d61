//! What a model is elsewhere, depending on its parts.

use super::ExportError;
use crate::config::{AttentionBias, DepthKv, MlpKind, ModelConfig};
use crate::rope_scaling::RopeScaling;
use hadal_residual::{Dimensions, Site, kinds_that};

/// An architecture of `transformers` that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// All attention projections have biases or none has; likewise the MLP's matrices.
    Llama,
    /// A window in all blocks.
    Mistral,
    /// Queries, keys and values always have biases; a window by block.
    Qwen2,
    /// Norms of queries and keys; all attention projections have biases or none has; a window by block.
    Qwen3,
}

/// An architecture of llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    /// Any bias may exist or not.
    Llama,
    /// For models that are Qwen2 elsewhere. Heads fill the width exactly.
    Qwen2,
    /// Norms of queries and keys.
    Qwen3,
}

/// Whether a prenorm model, which every program has, computes the same.
fn plain_stream(config: &ModelConfig) -> bool {
    config.residual.prenorm_gain(Site::new(0), &config.dimensions()).is_some()
}

/// Where attention has a window that makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Windows {
    Nowhere,
    Everywhere,
    ByBlock,
}

fn windows(config: &ModelConfig) -> Windows {
    match &config.sliding_window {
        None => Windows::Nowhere,
        Some(window) if window.blocks.is_none() => Windows::Everywhere,
        Some(_) => Windows::ByBlock,
    }
}

impl Family {
    /// The family whose models compute the same, if there is one. Biases that a family has but the model lacks are
    /// zero.
    pub(super) fn of(config: &ModelConfig) -> Option<Self> {
        let like_llama = plain_stream(config)
            && config.mlp == MlpKind::Swiglu
            && config.depth_kv == DepthKv::None
            && config.value_residual.is_none();
        if !like_llama {
            return None;
        }
        match (config.qk_norm, windows(config), config.attention_bias, config.mlp_bias) {
            (false, Windows::Nowhere, Some(AttentionBias::Qkv), false) => Some(Self::Qwen2),
            (false, Windows::Nowhere, _, _) => Some(Self::Llama),
            (false, Windows::Everywhere, None, false) => Some(Self::Mistral),
            (false, _, None | Some(AttentionBias::Qkv), false) => Some(Self::Qwen2),
            (true, _, _, false) => Some(Self::Qwen3),
            _ => None,
        }
    }

    /// The name of its class.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Its `model_type`.
    pub(super) fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// Attention biases that the family has but the model lacks.
    pub(super) fn missing_biases(self, config: &ModelConfig) -> &'static [&'static str] {
        match (self, config.attention_bias) {
            (Self::Qwen2, None) => &["q", "k", "v"],
            (Self::Llama | Self::Qwen3, Some(AttentionBias::Qkv)) => &["o"],
            _ => &[],
        }
    }
}

/// The betas of YaRN that llama.cpp takes for these architectures, whatever a file says.
const BETAS: [f64; 2] = [32.0, 1.0];

impl Architecture {
    /// The architecture whose models compute the same, or why there is none.
    pub(super) fn of(config: &ModelConfig) -> Result<Self, ExportError> {
        let refuse = |what: String, reason: &str| {
            let reason = format!("{reason}; --format hf writes it for transformers");
            Err(ExportError::Unsupported { what, reason })
        };
        if !plain_stream(config) {
            let what = format!("the residual policy {}", config.residual);
            let dimensions = Dimensions::new(1, 1, 1.0);
            let known =
                kinds_that(|policy| policy.prenorm_gain(Site::new(0), &dimensions).is_some());
            return refuse(
                what,
                &format!("llama.cpp has no such stream, only {}", known.join(" and ")),
            );
        }
        if config.mlp != MlpKind::Swiglu {
            return refuse("the MLP relu2".into(), "llama.cpp's Llama has silu(gate) * up alone");
        }
        if config.depth_kv != DepthKv::None {
            return refuse("depth_kv".into(), "attention of llama.cpp sees no earlier depth");
        }
        if !config.value_residual.is_none() {
            let reason = "attention of llama.cpp takes no values of the first block";
            return refuse("value_residual".into(), reason);
        }
        if let Some(window) = &config.sliding_window
            && window.size < config.max_seq_len
        {
            let what = format!("a sliding window of {}", window.size);
            return refuse(
                what,
                &format!(
                    "llama.cpp's llama, qwen2 and qwen3 always see everything, and texts may have {} tokens",
                    config.max_seq_len
                ),
            );
        }
        let divided = match &config.rope_scaling {
            Some(RopeScaling::Dynamic { .. }) => {
                return refuse("dynamic RoPE scaling".into(), "llama.cpp does not have it");
            }
            Some(RopeScaling::Yarn(yarn)) => {
                if !yarn.truncate || [yarn.beta_fast, yarn.beta_slow] != BETAS {
                    return refuse(
                        format!(
                            "YaRN with beta_fast {}, beta_slow {} and truncate {}",
                            yarn.beta_fast, yarn.beta_slow, yarn.truncate
                        ),
                        "llama.cpp's llama, qwen2 and qwen3 always take 32, 1 and true",
                    );
                }
                false
            }
            Some(RopeScaling::Llama3 { .. } | RopeScaling::Divided { .. }) => true,
            Some(RopeScaling::Linear { .. }) | None => false,
        };
        if config.qk_norm {
            let unknown = [
                (config.mlp_bias, "biases of the MLP"),
                (config.attention_bias == Some(AttentionBias::All), "a bias of attention's output"),
                (divided, "frequencies divided one by one (llama3)"),
            ];
            if let Some((_, what)) = unknown.iter().find(|(has, _)| *has) {
                return refuse(
                    format!("qk_norm and {what}"),
                    "llama.cpp's qwen3, its only such model with norms of queries and keys, does not have the latter",
                );
            }
            return Ok(Self::Qwen3);
        }
        let like_qwen2 = config.attention_bias == Some(AttentionBias::Qkv)
            && !config.mlp_bias
            && !divided
            && config.n_heads * config.head_dim == config.d_model;
        Ok(if like_qwen2 { Self::Qwen2 } else { Self::Llama })
    }

    /// Its name in files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}
