//! Hugging Face checkpoints of the Llama architecture as prenorm models of ours.

use crate::config::{DepthKv, MlpKind, ModelConfig};
use hadal_residual::ResidualConfig;
use serde_json::Value;

/// What a Hugging Face `config.json` says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Imported {
    pub(crate) config: ModelConfig,
    pub(crate) begin: Option<u32>,
    pub(crate) ends: Vec<u32>,
}

/// Why a foreign config cannot be read; the message names the key.
pub(crate) type Reason = String;

const ARCHITECTURE: &str = "LlamaForCausalLM";

/// Reads a Hugging Face config. What we do not compute exactly is refused, never ignored.
pub(crate) fn llama(json: &Value) -> Result<Imported, Reason> {
    check_architecture(json)?;
    for key in ["attention_bias", "mlp_bias"] {
        if json.get(key).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(format!(
                "{key} is {}, but models with biases are not supported",
                json[key]
            ));
        }
    }
    if let Some(scaling) = json.get("rope_scaling").filter(|value| !value.is_null()) {
        return Err(format!("rope_scaling is {scaling}, but scaled RoPE is not supported"));
    }
    let d_model = size(json, "hidden_size")?;
    let n_heads = size(json, "num_attention_heads")?;
    let activation = json.get("hidden_act").and_then(Value::as_str).unwrap_or("silu");
    if activation != "silu" {
        return Err(format!("hidden_act is {activation}, but only silu is supported"));
    }
    let config = ModelConfig {
        model_type: "hadal".into(),
        vocab_size: size(json, "vocab_size")?,
        d_model,
        n_layers: size(json, "num_hidden_layers")?,
        n_heads,
        n_kv_heads: optional_size(json, "num_key_value_heads")?.unwrap_or(n_heads),
        head_dim: optional_size(json, "head_dim")?.unwrap_or(d_model / n_heads.max(1)),
        d_ff: size(json, "intermediate_size")?,
        mlp: MlpKind::Swiglu,
        rope_theta: rope_theta(json)?,
        norm_eps: number(json, "rms_norm_eps")?.unwrap_or(1e-6),
        qk_norm: false,
        tie_embeddings: json.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
        depth_kv: DepthKv::None,
        max_seq_len: optional_size(json, "max_position_embeddings")?.unwrap_or(2048),
        residual: ResidualConfig::default(),
    };
    let ends = token_ids(json, "eos_token_id");
    Ok(Imported { config, begin: token_ids(json, "bos_token_id").first().copied(), ends })
}

fn check_architecture(json: &Value) -> Result<(), Reason> {
    let named = json["architectures"].as_array();
    let fits = match named {
        Some(list) => list.iter().any(|name| name == ARCHITECTURE),
        None => json["model_type"] == "llama",
    };
    if fits {
        return Ok(());
    }
    Err(format!(
        "it describes architectures {} and model_type {}; known are model_type \"hadal\" and {ARCHITECTURE}",
        json["architectures"], json["model_type"]
    ))
}

/// Both the older top-level key and the newer `rope_parameters` object.
fn rope_theta(json: &Value) -> Result<f64, Reason> {
    let Some(parameters) = json.get("rope_parameters").filter(|value| !value.is_null()) else {
        return Ok(number(json, "rope_theta")?.unwrap_or(10_000.0));
    };
    let kind = parameters.get("rope_type").and_then(Value::as_str).unwrap_or("default");
    if kind != "default" {
        return Err(format!(
            "rope_parameters has rope_type {kind}, but scaled RoPE is not supported"
        ));
    }
    Ok(number(parameters, "rope_theta")?.unwrap_or(10_000.0))
}

fn size(json: &Value, key: &str) -> Result<usize, Reason> {
    optional_size(json, key)?.ok_or_else(|| format!("it has no {key}"))
}

fn optional_size(json: &Value, key: &str) -> Result<Option<usize>, Reason> {
    match json.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok())
            .map(Some)
            .ok_or_else(|| format!("{key} is {value}, but it must be a whole number")),
    }
}

fn number(json: &Value, key: &str) -> Result<Option<f64>, Reason> {
    match json.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            value.as_f64().map(Some).ok_or_else(|| format!("{key} is {value}, not a number"))
        }
    }
}

/// A token id or a list of them.
fn token_ids(json: &Value, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match json.get(key) {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The Hugging Face name of one of our parameters.
pub(crate) fn llama_name(ours: &str) -> String {
    let parts: Vec<&str> = ours.split('.').collect();
    match parts.as_slice() {
        ["embed", "weight"] => "model.embed_tokens.weight".into(),
        ["head", "weight"] => "lm_head.weight".into(),
        ["norm", "weight"] => "model.norm.weight".into(),
        ["layers", i, "attn_norm", "weight"] => format!("model.layers.{i}.input_layernorm.weight"),
        ["layers", i, "mlp_norm", "weight"] => {
            format!("model.layers.{i}.post_attention_layernorm.weight")
        }
        ["layers", i, "attn", part, "weight"] => {
            format!("model.layers.{i}.self_attn.{part}_proj.weight")
        }
        ["layers", i, "mlp", part, "weight"] => format!("model.layers.{i}.mlp.{part}_proj.weight"),
        _ => ours.into(),
    }
}

/// Tensors that some exporters write although they follow from the config.
pub(crate) fn llama_ignores(name: &str, tied: bool) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tiny() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512,
            "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 5,
            "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "rope_theta": 500.0, "max_position_embeddings": 512,
            "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": [2, 3]
        })
    }

    #[test]
    fn a_llama_config_becomes_a_prenorm_model() {
        let imported = llama(&tiny()).unwrap();
        assert_eq!(imported.config.head_dim, 8);
        assert_eq!(imported.config.mlp, MlpKind::Swiglu);
        assert_eq!(imported.config.rope_theta, 500.0);
        assert_eq!((imported.begin, imported.ends), (Some(1), vec![2, 3]));
        assert_eq!(imported.config.check(), Ok(()));
    }

    #[test]
    fn what_is_not_computed_exactly_is_refused() {
        let refused = |key: &str, value: Value| {
            let mut json = tiny();
            json[key] = value;
            llama(&json).unwrap_err()
        };
        assert!(refused("attention_bias", json!(true)).contains("biases"));
        assert!(refused("rope_scaling", json!({"type": "linear"})).contains("scaled RoPE"));
        assert!(refused("rope_parameters", json!({"rope_type": "yarn"})).contains("yarn"));
        assert!(refused("hidden_act", json!("gelu")).contains("only silu"));
        assert!(refused("architectures", json!(["GPT2LMHeadModel"])).contains("GPT2LMHeadModel"));
        assert!(refused("hidden_size", json!(-3)).contains("whole number"));
        assert!(refused("hidden_size", Value::Null).contains("no hidden_size"));
    }
}
