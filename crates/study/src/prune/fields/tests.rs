//! Fields of configs after a cut, and what is refused.

use super::*;
use hadal_model::Part;

fn without(blocks: &[usize], of: usize) -> Renumbering {
    let parts: Vec<Part> = blocks.iter().map(|&block| Part::Block(block)).collect();
    Renumbering::new(of, &parts).unwrap()
}

fn cut_of(mut config: Value, blocks: &[usize]) -> Result<Value, String> {
    let of = decoder(&config)[BLOCKS].as_u64().unwrap() as usize;
    cut(&mut config, &without(blocks, of), false).map(|()| config)
}

#[test]
fn every_field_that_speaks_of_layers_is_corrected() {
    let config = json!({
        "model_type": "llama",
        "num_hidden_layers": 4,
        "layer_types": ["full", "sliding", "full", "sliding"],
        "no_rope_layers": [1, 1, 1, 0],
        "whatever_per_layer": [10, 11, 12, 13],
        "whatever_blocks": [0, 1, 2, 3],
        "max_window_layers": 3,
        "mlp_only_layers": [0, 2, 3],
        "hybrid_override_pattern": "M*-E",
        "per_layer_config": {"00": "a", "01": "b", "03": "d"},
        "linear_attn_config": {"kda_layers": [1, 2], "full_attn_layers": [3, 4], "num_heads": 2},
        "hidden_size": 4,
        "eos_token_id": [5, 6, 7, 8],
        "architectures": ["a", "b", "c", "d"],
        "rope_scaling": {"long_factor": [1, 2, 3, 4]},
    });
    let config = cut_of(config, &[1, 2]).unwrap();
    assert_eq!(config["num_hidden_layers"], 2);
    assert_eq!(config["layer_types"], json!(["full", "sliding"]));
    assert_eq!(config["no_rope_layers"], json!([1, 0]));
    assert_eq!(config["whatever_per_layer"], json!([10, 13]));
    assert_eq!(config["whatever_blocks"], json!([0, 1]));
    assert_eq!(config["max_window_layers"], 1);
    assert_eq!(config["mlp_only_layers"], json!([0, 1]));
    assert_eq!(config["hybrid_override_pattern"], "ME");
    assert_eq!(config["per_layer_config"], json!({"00": "a", "01": "d"}));
    let linear = json!({"kda_layers": [1], "full_attn_layers": [2], "num_heads": 2});
    assert_eq!(config["linear_attn_config"], linear);
    assert_eq!(config["hidden_size"], 4);
    assert_eq!(config["eos_token_id"], json!([5, 6, 7, 8]));
    assert_eq!(config["architectures"].as_array().unwrap().len(), 4);
    assert_eq!(config["rope_scaling"]["long_factor"].as_array().unwrap().len(), 4);
}

#[test]
fn what_a_class_derives_from_numbers_is_spelled_out() {
    let gemma =
        json!({"model_type": "gemma3_text", "num_hidden_layers": 5, "sliding_window_pattern": 3});
    let gemma = cut_of(gemma, &[1]).unwrap();
    let (s, f) = ("sliding_attention", "full_attention");
    assert_eq!(gemma["layer_types"], json!([s, f, s, s]));
    assert!(gemma.get("sliding_window_pattern").is_none());
    let built_in = json!({"model_type": "gpt_oss", "num_hidden_layers": 3});
    assert_eq!(cut_of(built_in, &[0]).unwrap()["layer_types"], json!([f, s]));
    let smol =
        json!({"model_type": "smollm3", "num_hidden_layers": 5, "no_rope_layer_interval": 2});
    assert_eq!(cut_of(smol, &[0]).unwrap()["no_rope_layers"], json!([0, 1, 0, 1]));
    let nested = json!({"model_type": "qwen3_5", "vision_config": {"num_hidden_layers": 9},
        "text_config": {"model_type": "qwen3_5_text", "num_hidden_layers": 4}});
    let nested = cut_of(nested, &[0]).unwrap();
    let l = "linear_attention";
    assert_eq!(nested["text_config"]["layer_types"], json!([l, l, f]));
    assert_eq!(nested["vision_config"]["num_hidden_layers"], 9);
}

#[test]
fn dense_blocks_between_mixtures_are_named() {
    let config = json!({"model_type": "qwen3_moe", "num_hidden_layers": 4, "decoder_sparse_step": 2,
        "mlp_only_layers": [3]});
    let config = cut_of(config, &[0]).unwrap();
    // Block 1 had experts; 2 and 3 were dense.
    assert_eq!(config["mlp_only_layers"], json!([1, 2]));
    assert_eq!(config["decoder_sparse_step"], 1);
}

#[test]
fn patterns_that_would_fall_out_of_step_and_shared_keys_forbid_a_cut() {
    let refused = |extra: Value, remove: &[usize]| {
        let mut config = json!({"num_hidden_layers": 4, "model_type": "llama"});
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        cut_of(config, remove).err()
    };
    let says = |extra: Value, text: &str| {
        let said = refused(extra, &[1]).unwrap();
        assert!(said.contains(text), "{said}");
    };
    says(json!({"sliding_window_pattern": 2}), "out of step");
    says(json!({"num_kv_shared_layers": 2}), "none can be cut");
    says(json!({"kv_source_layers": [0, 1, 1, 3]}), "block 2 uses keys of block 1");
    says(json!({"model_type": "strange"}), "--structure-only");
    // A list of attention kinds says nothing about MLPs.
    let kinds = json!(["a", "b", "a", "b"]);
    says(json!({"layer_types": kinds, "moe_layer_freq": 2}), "out of step");
    // Nothing moves, or whole periods go, or the pattern is spelled out for each block, or there is none.
    assert_eq!(refused(json!({"sliding_window_pattern": 2}), &[]), None);
    assert_eq!(refused(json!({"sliding_window_pattern": 2}), &[0, 1]), None);
    assert_eq!(refused(json!({"sliding_window_pattern": 2, "layer_types": kinds}), &[1]), None);
    let none = json!({"decoder_sparse_step": 1, "num_kv_shared_layers": 0});
    assert_eq!(refused(none, &[1]), None);
}

#[test]
fn an_unknown_family_is_cut_by_what_its_file_says() {
    let mut config = json!({"model_type": "strange", "num_hidden_layers": 2, "sliding_window": 8});
    let map = without(&[0], 2);
    assert!(cut(&mut config, &map, true).unwrap_err().contains("layer_types"));
    config["layer_types"] = json!(["a", "b"]);
    cut(&mut config, &map, true).unwrap();
    assert_eq!(config["layer_types"], json!(["b"]));
}
