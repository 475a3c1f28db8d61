//! Keys of a Hugging Face `config.json` that are nearly ones that we read.
//!
//! Such configs have many keys that do not matter, so unknown ones are not refused. But one that is a letter or two
//! away from a key that is absent was meant to be it, and its value would be lost without a word.

use super::Reason;
use serde_json::Value;

/// Keys that decide what is computed.
const READ: [&str; 24] = [
    "vocab_size",
    "hidden_size",
    "hidden_act",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "tie_word_embeddings",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "attention_bias",
    "mlp_bias",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "quantization_config",
    "architectures",
];
/// Letters by which two keys may differ.
const NEAR: usize = 2;
/// Letters that may be added at an end, as in `rms_norm_epsilon` and `norm_eps`.
const LONGER: usize = 4;

/// Refuses a key that was meant to be another.
pub(super) fn refuse_misspelt(json: &Value) -> Result<(), Reason> {
    let keys = json.as_object().into_iter().flatten();
    for (key, _) in keys.filter(|(key, value)| !value.is_null() && !READ.contains(&key.as_str())) {
        let meant = READ.iter().find(|read| json.get(read).is_none() && is_near(key, read));
        if let Some(meant) = meant {
            return Err(format!(
                "it has {key}, which means nothing, and no {meant}; did you mean {meant}? Rename or remove it"
            ));
        }
    }
    Ok(())
}

fn is_near(key: &str, read: &str) -> bool {
    let (short, long) = if key.len() < read.len() { (key, read) } else { (read, key) };
    let longer = long.len() - short.len();
    let contains = long.starts_with(short) || long.ends_with(short);
    (contains && longer <= LONGER) || (longer <= NEAR && distance(key, read) <= NEAR)
}

/// How many letters must be changed, added or removed (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn distances_count_letters() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("rope_parameters", "rope_parameter"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn a_key_that_was_meant_to_be_another_is_refused() {
        for (key, meant) in [
            ("rope_parameter", "rope_parameters"),
            ("rope_paramters", "rope_parameters"),
            ("rms_norm_epsilon", "rms_norm_eps"),
            ("norm_eps", "rms_norm_eps"),
            ("rms_norm_epr", "rms_norm_eps"),
            ("sliding_windows", "sliding_window"),
            ("tie_word_embedding", "tie_word_embeddings"),
            ("ropf_theta", "rope_theta"),
        ] {
            let reason = refuse_misspelt(&json!({key: 3})).unwrap_err();
            assert!(reason.contains(&format!("has {key}")), "{reason}");
            assert!(reason.contains(&format!("did you mean {meant}?")), "{reason}");
            // What is also spelt right is not missed, and what is null says nothing.
            assert_eq!(refuse_misspelt(&json!({key: 3, meant: 4})), Ok(()));
            assert_eq!(refuse_misspelt(&json!({key: null})), Ok(()));
        }
    }

    /// All keys that the four families' configs on the hub have, as far as we do not read them.
    #[test]
    fn keys_that_real_configs_have_are_left_alone() {
        for key in [
            "_name_or_path",
            "_attn_implementation",
            "attention_dropout",
            "aux_loss_alpha",
            "bos_token_id",
            "cls_token_id",
            "dtype",
            "eod_token_id",
            "eos_token_id",
            "hidden_dropout_prob",
            "initializer_range",
            "is_llama_config",
            "layer_norm_eps",
            "model_type",
            "neftune_noise_alpha",
            "num_nextn_predict_layers",
            "pad_token_id",
            "pretraining_tp",
            "resid_pdrop",
            "rope_interleaved",
            "sep_token_id",
            "tokenizer_class",
            "torch_dtype",
            "transformers.js_config",
            "transformers_version",
            "unsloth_fixed",
            "unsloth_version",
            "use_cache",
            "use_mrope",
            "use_qk_norm",
        ] {
            assert_eq!(refuse_misspelt(&json!({key: 3})), Ok(()), "{key}");
        }
    }
}
