//! Rotary positions as other tools describe them.

use crate::config::ModelConfig;
use crate::rope_scaling::{Frequencies, RopeScaling, Yarn};
use hadal_gguf::Metadata;
use serde_json::{Value, json};

/// Writes them to a Hugging Face config: `rope_parameters` for transformers 5, and the equivalent older keys.
pub(super) fn describe(config: &ModelConfig, json: &mut Value) {
    let longest = config.max_seq_len;
    let (scaling, longest) = match &config.rope_scaling {
        None => (json!({"rope_type": "default"}), longest),
        Some(RopeScaling::Linear { factor }) => {
            (json!({"rope_type": "linear", "factor": factor}), longest)
        }
        // There the original length is the longest one stated.
        Some(RopeScaling::Dynamic { factor, original_max_seq_len }) => {
            (json!({"rope_type": "dynamic", "factor": factor}), *original_max_seq_len)
        }
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_seq_len,
        }) => {
            let scaling = json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_seq_len,
            });
            (scaling, longest)
        }
        Some(RopeScaling::Yarn(yarn)) => {
            let scaling = json!({
                "rope_type": "yarn",
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.original_max_seq_len,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "attention_factor": yarn.attention_factor,
                "truncate": yarn.truncate,
            });
            (scaling, longest)
        }
        // The same numbers for short and long texts: no other kind has one for each pair of dimensions.
        Some(RopeScaling::Divided { divisors }) => {
            let scaling = json!({
                "rope_type": "longrope",
                "short_factor": divisors,
                "long_factor": divisors,
                "factor": 1.0,
                "attention_factor": 1.0,
                "original_max_position_embeddings": longest,
            });
            (scaling, longest)
        }
    };
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = config.rope_theta.into();
    json["max_position_embeddings"] = longest.into();
    json["rope_theta"] = config.rope_theta.into();
    json["rope_scaling"] = if config.rope_scaling.is_some() { scaling } else { Value::Null };
    json["rope_parameters"] = parameters;
}

/// Writes them to a GGUF file's metadata, as far as they belong there.
pub(super) fn metadata(config: &ModelConfig, architecture: &str, metadata: &mut Metadata) {
    let key = |key: &str| format!("{architecture}.rope.{key}");
    metadata.set(&key("freq_base"), config.rope_theta as f32);
    metadata.set(&key("dimension_count"), config.head_dim as u32);
    match &config.rope_scaling {
        Some(RopeScaling::Linear { factor }) => {
            metadata.set(&key("scaling.type"), "linear");
            metadata.set(&key("scaling.factor"), *factor as f32);
        }
        Some(RopeScaling::Yarn(yarn)) => {
            metadata.set(&key("scaling.type"), "yarn");
            metadata.set(&key("scaling.factor"), yarn.factor as f32);
            let original = yarn.original_max_seq_len as u32;
            metadata.set(&key("scaling.original_context_length"), original);
            // llama.cpp multiplies by this in addition to what the paper suggests.
            let suggested = Yarn::suggested_attention_factor(yarn.factor) as f32;
            if yarn.attention_factor != suggested {
                metadata.set(&key("scaling.attn_factor"), yarn.attention_factor / suggested);
            }
        }
        _ => {}
    }
}

/// Numbers by which llama.cpp divides frequencies, one for each pair of dimensions; `None` if they are not needed.
pub(super) fn divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    let scaling = match &config.rope_scaling {
        Some(RopeScaling::Divided { divisors }) => return Some(divisors.clone()),
        Some(scaling @ RopeScaling::Llama3 { .. }) => scaling,
        _ => return None,
    };
    let frequencies =
        |scaling| Frequencies::new(config.head_dim, config.rope_theta, scaling, 1).each;
    let pairs = frequencies(None).into_iter().zip(frequencies(Some(scaling)));
    Some(pairs.map(|(plain, scaled)| (plain / scaled) as f32).collect())
}
