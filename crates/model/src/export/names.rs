//! What other tools call our parameters.

/// The name of a parameter for `transformers`.
pub(super) fn hugging_face(ours: &str) -> String {
    match ours.split('.').collect::<Vec<_>>().as_slice() {
        ["embed", "weight"] => "model.embed_tokens.weight".into(),
        ["head", "weight"] => "lm_head.weight".into(),
        ["norm", "weight"] => "model.norm.weight".into(),
        ["layers", i, "attn_norm", _] => format!("model.layers.{i}.input_layernorm.weight"),
        ["layers", i, "mlp_norm", _] => format!("model.layers.{i}.post_attention_layernorm.weight"),
        ["layers", i, "attn", part @ ("q_norm" | "k_norm"), _] => {
            format!("model.layers.{i}.self_attn.{part}.weight")
        }
        ["layers", i, "attn", part, kind] => {
            format!("model.layers.{i}.self_attn.{part}_proj.{kind}")
        }
        ["layers", i, "mlp", part, kind] => format!("model.layers.{i}.mlp.{part}_proj.{kind}"),
        _ => ours.into(),
    }
}

/// The name of a parameter for llama.cpp.
pub(super) fn gguf(ours: &str) -> String {
    match ours.split('.').collect::<Vec<_>>().as_slice() {
        ["embed", "weight"] => "token_embd.weight".into(),
        ["head", "weight"] => "output.weight".into(),
        ["norm", "weight"] => "output_norm.weight".into(),
        ["layers", i, "attn_norm", _] => format!("blk.{i}.attn_norm.weight"),
        ["layers", i, "mlp_norm", _] => format!("blk.{i}.ffn_norm.weight"),
        ["layers", i, "attn", "o", kind] => format!("blk.{i}.attn_output.{kind}"),
        ["layers", i, "attn", part, kind] => format!("blk.{i}.attn_{part}.{kind}"),
        ["layers", i, "mlp", part, kind] => format!("blk.{i}.ffn_{part}.{kind}"),
        _ => ours.into(),
    }
}
