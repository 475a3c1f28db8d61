//! Hugging Face's `config.json` of the Llama family: Llama, Mistral, Qwen2 and Qwen3.

use super::json::{flag, number, optional_size, present, size, token_ids};
use super::misspelt::refuse_misspelt;
use super::rope::positions;
use super::{Imported, Reason};
use crate::config::{AttentionBias, DepthKv, MlpKind, ModelConfig, SlidingWindow, ValueResidual};
use hadal_residual::ResidualConfig;
use serde_json::Value;

/// An architecture, and its models' values for what a config does not state.
#[derive(Clone, Copy, Debug)]
struct Family {
    architecture: &'static str,
    model_type: &'static str,
    max_seq_len: usize,
    head_dim: Option<usize>,
    bias: Bias,
    mlp_bias: bool,
    qk_norm: bool,
    window: Window,
}

/// What decides about the biases of attention.
#[derive(Clone, Copy, Debug)]
enum Bias {
    Never,
    Inputs,
    AsTheConfigSays,
}

/// What decides about sliding windows.
#[derive(Clone, Copy, Debug)]
enum Window {
    Never,
    /// `sliding_window`, for all blocks.
    Everywhere,
    /// `use_sliding_window`, and `layer_types` or `max_window_layers`.
    ByBlock,
}

/// What `transformers` takes where `sliding_window` and `max_window_layers` are not given.
const DEFAULT_WINDOW: usize = 4096;
const DEFAULT_FULL_BLOCKS: usize = 28;

const FAMILIES: [Family; 4] = [
    Family {
        architecture: "LlamaForCausalLM",
        model_type: "llama",
        max_seq_len: 2048,
        head_dim: None,
        bias: Bias::AsTheConfigSays,
        mlp_bias: true,
        qk_norm: false,
        window: Window::Never,
    },
    Family {
        architecture: "MistralForCausalLM",
        model_type: "mistral",
        max_seq_len: 131_072,
        head_dim: None,
        bias: Bias::Never,
        mlp_bias: false,
        qk_norm: false,
        window: Window::Everywhere,
    },
    Family {
        architecture: "Qwen2ForCausalLM",
        model_type: "qwen2",
        max_seq_len: 32_768,
        head_dim: None,
        bias: Bias::Inputs,
        mlp_bias: false,
        qk_norm: false,
        window: Window::ByBlock,
    },
    Family {
        architecture: "Qwen3ForCausalLM",
        model_type: "qwen3",
        max_seq_len: 32_768,
        head_dim: Some(128),
        bias: Bias::AsTheConfigSays,
        mlp_bias: false,
        qk_norm: true,
        window: Window::ByBlock,
    },
];

/// Reads a Hugging Face config. What we do not compute exactly is refused, never ignored.
pub(crate) fn describe(json: &Value) -> Result<Imported, Reason> {
    let family = Family::of(json)?;
    refuse_misspelt(json)?;
    if let Some(quantised) = present(json, "quantization_config") {
        return Err(format!(
            "quantization_config is {quantised}, but only f32, f16 and bf16 weights are supported; take the \
             original model, or a GGUF file"
        ));
    }
    if let Some(activation) = present(json, "hidden_act").filter(|act| *act != "silu") {
        let named = activation.as_str().map_or_else(|| activation.to_string(), str::to_owned);
        return Err(format!("hidden_act is {named}, but only silu is supported"));
    }
    let d_model = size(json, "hidden_size")?;
    // Bounded here, because blocks may be listed below.
    let n_layers = size(json, "num_hidden_layers")?;
    if n_layers > ModelConfig::MOST_LAYERS {
        return Err(format!(
            "num_hidden_layers is {n_layers}, but it must be between 1 and {}",
            ModelConfig::MOST_LAYERS
        ));
    }
    let n_heads = size(json, "num_attention_heads")?;
    let head_dim = optional_size(json, "head_dim")?.or(family.head_dim);
    let positions = positions(json, family.max_seq_len)?;
    let config = ModelConfig {
        model_type: "hadal".into(),
        vocab_size: size(json, "vocab_size")?,
        d_model,
        n_layers,
        n_heads,
        n_kv_heads: optional_size(json, "num_key_value_heads")?.unwrap_or(n_heads),
        head_dim: head_dim.unwrap_or(d_model / n_heads.max(1)),
        d_ff: size(json, "intermediate_size")?,
        mlp: MlpKind::Swiglu,
        rope_theta: positions.theta,
        norm_eps: number(json, "rms_norm_eps")?.unwrap_or(1e-6),
        qk_norm: family.qk_norm,
        tie_embeddings: flag(json, "tie_word_embeddings")?,
        depth_kv: DepthKv::None,
        value_residual: ValueResidual::None,
        max_seq_len: positions.max_seq_len,
        attention_bias: family.attention_bias(json)?,
        mlp_bias: family.mlp_bias && flag(json, "mlp_bias")?,
        rope_scaling: positions.scaling,
        sliding_window: family.sliding_window(json, n_layers)?,
        removed_blocks: Vec::new(),
        residual: ResidualConfig::default(),
    };
    let begin = token_ids(json, "bos_token_id").first().copied();
    Ok(Imported { config, begin, ends: token_ids(json, "eos_token_id") })
}

impl Family {
    fn of(json: &Value) -> Result<Self, Reason> {
        let fits = |family: &&Self| match json["architectures"].as_array() {
            Some(named) => named.iter().any(|name| name == family.architecture),
            None => json["model_type"] == family.model_type,
        };
        FAMILIES.iter().find(fits).copied().ok_or_else(|| {
            format!(
                "it describes architectures {} and model_type {}; known are model_type \"hadal\" and {}",
                json["architectures"],
                json["model_type"],
                FAMILIES.map(|family| family.architecture).join(", ")
            )
        })
    }

    fn attention_bias(&self, json: &Value) -> Result<Option<AttentionBias>, Reason> {
        Ok(match self.bias {
            Bias::Never => None,
            Bias::Inputs => Some(AttentionBias::Qkv),
            Bias::AsTheConfigSays => flag(json, "attention_bias")?.then_some(AttentionBias::All),
        })
    }

    fn sliding_window(
        &self,
        json: &Value,
        n_layers: usize,
    ) -> Result<Option<SlidingWindow>, Reason> {
        let size = || match json.get("sliding_window") {
            None => Ok(Some(DEFAULT_WINDOW)),
            Some(_) => optional_size(json, "sliding_window"),
        };
        match self.window {
            Window::Never => Ok(None),
            Window::Everywhere => Ok(size()?.map(|size| SlidingWindow { size, blocks: None })),
            Window::ByBlock => {
                let size = if flag(json, "use_sliding_window")? { size()? } else { None };
                let blocks = windowed_blocks(json, n_layers, size.is_some())?;
                match size {
                    Some(size) if !blocks.is_empty() => {
                        let blocks = (blocks.len() < n_layers).then_some(blocks);
                        Ok(Some(SlidingWindow { size, blocks }))
                    }
                    None if !blocks.is_empty() => {
                        Err("layer_types names sliding_attention, but there is no window: set \
                         use_sliding_window and sliding_window"
                            .into())
                    }
                    _ => Ok(None),
                }
            }
        }
    }
}

/// The blocks whose attention has a window, as `layer_types` says, or else `max_window_layers`.
fn windowed_blocks(json: &Value, n_layers: usize, any: bool) -> Result<Vec<usize>, Reason> {
    let Some(types) = present(json, "layer_types") else {
        let full = optional_size(json, "max_window_layers")?.unwrap_or(DEFAULT_FULL_BLOCKS);
        return Ok(if any { (full..n_layers).collect() } else { Vec::new() });
    };
    let types = types.as_array().filter(|types| types.len() == n_layers).ok_or_else(|| {
        format!("layer_types must be a list with one entry for each of the {n_layers} blocks")
    })?;
    let mut blocks = Vec::new();
    for (block, kind) in types.iter().enumerate() {
        match kind.as_str() {
            Some("full_attention") => {}
            Some("sliding_attention") => blocks.push(block),
            _ => return Err(format!("layer_types has {kind}, which is not supported")),
        }
    }
    Ok(blocks)
}

/// The Hugging Face name of one of our parameters.
pub(super) fn name_of(ours: &str) -> String {
    let parts: Vec<&str> = ours.split('.').collect();
    match parts.as_slice() {
        ["embed", "weight"] => "model.embed_tokens.weight".into(),
        ["head", "weight"] => "lm_head.weight".into(),
        ["norm", "weight"] => "model.norm.weight".into(),
        ["layers", i, "attn_norm", "weight"] => format!("model.layers.{i}.input_layernorm.weight"),
        ["layers", i, "mlp_norm", "weight"] => {
            format!("model.layers.{i}.post_attention_layernorm.weight")
        }
        ["layers", i, "attn", norm @ ("q_norm" | "k_norm"), "weight"] => {
            format!("model.layers.{i}.self_attn.{norm}.weight")
        }
        ["layers", i, "attn", part, kind] => {
            format!("model.layers.{i}.self_attn.{part}_proj.{kind}")
        }
        ["layers", i, "mlp", part, kind] => format!("model.layers.{i}.mlp.{part}_proj.{kind}"),
        _ => ours.into(),
    }
}

/// Tensors that some exporters write although they follow from the config.
pub(super) fn may_ignore(name: &str, tied: bool) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tiny(architecture: &str) -> Value {
        json!({
            "architectures": [architecture], "vocab_size": 512,
            "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 5,
            "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "rope_theta": 500.0, "max_position_embeddings": 512,
            "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": [2, 3]
        })
    }

    fn changed(architecture: &str, change: Value) -> Result<Imported, Reason> {
        let mut json = tiny(architecture);
        for (key, value) in change.as_object().unwrap() {
            json[key] = value.clone();
        }
        describe(&json)
    }

    #[test]
    fn a_llama_config_becomes_a_prenorm_model() {
        let imported = describe(&tiny("LlamaForCausalLM")).unwrap();
        assert_eq!(imported.config.head_dim, 8);
        assert_eq!(imported.config.mlp, MlpKind::Swiglu);
        assert_eq!(imported.config.rope_theta, 500.0);
        assert_eq!(imported.config.attention_bias, None);
        assert_eq!((imported.begin, imported.ends), (Some(1), vec![2, 3]));
        assert_eq!(imported.config.check(), Ok(()));
    }

    #[test]
    fn families_differ_in_biases_norms_and_windows() {
        let config = |name: &str, change| changed(name, change).unwrap().config;
        let qwen2 = config("Qwen2ForCausalLM", json!({}));
        assert_eq!((qwen2.attention_bias, qwen2.sliding_window), (Some(AttentionBias::Qkv), None));
        let qwen3 = config("Qwen3ForCausalLM", json!({"attention_bias": true}));
        assert_eq!((qwen3.attention_bias, qwen3.qk_norm), (Some(AttentionBias::All), true));
        assert_eq!(qwen3.head_dim, 128);
        let window = |size, blocks| Some(SlidingWindow { size, blocks });
        assert_eq!(config("MistralForCausalLM", json!({})).sliding_window, window(4096, None));
        let none = config("MistralForCausalLM", json!({"sliding_window": null}));
        assert_eq!(none.sliding_window, None);
        let llama = config("LlamaForCausalLM", json!({"sliding_window": 7, "mlp_bias": true}));
        assert_eq!((llama.sliding_window, llama.mlp_bias), (None, true));
    }

    #[test]
    fn windows_hold_for_the_blocks_that_are_named() {
        let window = |change| changed("Qwen2ForCausalLM", change).unwrap().config.sliding_window;
        let on = json!({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 3});
        assert_eq!(window(on), Some(SlidingWindow { size: 7, blocks: Some(vec![3, 4]) }));
        let mut types = vec!["full_attention"; 5];
        types[1] = "sliding_attention";
        let on = json!({"use_sliding_window": true, "sliding_window": 7, "layer_types": types});
        assert_eq!(window(on), Some(SlidingWindow { size: 7, blocks: Some(vec![1]) }));
        let late = json!({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 9});
        assert_eq!(window(late), None);
        let refused = |change| changed("Qwen2ForCausalLM", change).unwrap_err();
        assert!(refused(json!({"layer_types": types})).contains("there is no window"));
        assert!(
            refused(json!({"layer_types": ["full_attention"]})).contains("each of the 5 blocks")
        );
        let odd = vec!["linear_attention"; 5];
        assert!(refused(json!({"layer_types": odd})).contains("linear_attention"));
    }

    #[test]
    fn what_is_not_computed_exactly_is_refused() {
        let refused = |change| changed("LlamaForCausalLM", change).unwrap_err();
        assert!(refused(json!({"attention_bias": "yes"})).contains("true or false"));
        assert!(refused(json!({"rope_scaling": {"type": "su"}})).contains("rope_type su"));
        assert!(refused(json!({"hidden_act": "gelu"})).contains("only silu"));
        assert!(refused(json!({"hidden_act": 3})).contains("only silu"));
        assert!(
            refused(json!({"quantization_config": {"bits": 4}})).contains("quantization_config")
        );
        assert!(refused(json!({"architectures": ["GPT2LMHeadModel"]})).contains("GPT2LMHeadModel"));
        assert!(refused(json!({"hidden_size": -3})).contains("whole number"));
        assert!(refused(json!({"hidden_size": null})).contains("no hidden_size"));
    }

    #[test]
    fn blocks_are_bounded_before_they_are_listed() {
        for blocks in [4_000_000_000u64, 1 << 63] {
            let windows = json!({"num_hidden_layers": blocks, "use_sliding_window": true,
                "sliding_window": 4, "max_window_layers": 0});
            let reason = changed("Qwen2ForCausalLM", windows).unwrap_err();
            assert!(reason.contains("num_hidden_layers is"), "{reason}");
        }
    }

    #[test]
    fn parameters_are_found_by_their_names() {
        for (ours, theirs) in [
            ("layers.3.attn.q.bias", "model.layers.3.self_attn.q_proj.bias"),
            ("layers.3.attn.k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
            ("layers.3.mlp.down.weight", "model.layers.3.mlp.down_proj.weight"),
            ("head.weight", "lm_head.weight"),
        ] {
            assert_eq!(name_of(ours), theirs);
        }
    }
}
