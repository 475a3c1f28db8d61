//! Directories that contradict themselves are refused with a message that says where.

use crate::support::{copy_of, set};
use hadal_model::{Device, convert, load};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The message of loading and of importing; both must be the same.
fn refused(directory: &Path) -> String {
    let error = load(directory, &Device::flex()).unwrap_err().to_string();
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("model");
    let importing = convert(directory, &out, &mut |_, _| ()).unwrap_err().to_string();
    assert_eq!(error, importing);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "something is left");
    error
}

#[track_caller]
fn assert_names(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

const INDEX: &str = "model.safetensors.index.json";
const SECOND: &str = "model-00002-of-00002.safetensors";

#[test]
fn a_missing_shard_is_named() {
    let directory = copy_of("llama-sharded");
    fs::remove_file(directory.path().join(SECOND)).unwrap();
    assert_names(&refused(directory.path()), &[INDEX, "1 of the 2 files", SECOND]);
}

#[test]
fn an_index_cannot_lead_to_other_places() {
    for place in ["../secret.safetensors", "/etc/passwd", "..", "", "a/b"] {
        let directory = copy_of("llama-sharded");
        set(&directory.path().join(INDEX), "/weight_map/lm_head.weight", json!(place));
        assert_names(&refused(directory.path()), &[INDEX, "must lie beside it"]);
    }
}

#[test]
fn an_index_that_contradicts_its_files_is_refused() {
    let change = |pointer: &str, value: Value| {
        let directory = copy_of("llama-sharded");
        set(&directory.path().join(INDEX), pointer, value);
        refused(directory.path())
    };
    let first = "model-00001-of-00002.safetensors";
    assert_names(&change("/weight_map/nobody", json!(first)), &["nobody", "different models"]);
    let moved = change("/weight_map/model.norm.weight", json!(first));
    assert_names(&moved, &["model.norm.weight", "different models"]);
    assert_names(&change("/weight_map", json!([])), &[INDEX, "not an index"]);
    let directory = copy_of("llama-sharded");
    fs::write(directory.path().join(INDEX), "{").unwrap();
    assert_names(&refused(directory.path()), &[INDEX, "not an index"]);
}

#[test]
fn truncated_files_are_refused_wherever_they_end() {
    let name = "model.safetensors";
    let whole = fs::read(copy_of("qwen3").path().join(name)).unwrap();
    for length in [0, 7, 8, 100, 3000, whole.len() - 1] {
        let directory = copy_of("qwen3");
        fs::write(directory.path().join(name), &whole[..length]).unwrap();
        let error = load(directory.path(), &Device::flex()).unwrap_err().to_string();
        assert_names(&error, &[name]);
    }
}

#[test]
fn shapes_and_names_that_do_not_fit_the_config_are_listed() {
    let change = |name: &str, key: &str, value: Value| {
        let directory = copy_of(name);
        set(&directory.path().join("config.json"), &format!("/{key}"), value);
        refused(directory.path())
    };
    let wide = change("llama", "intermediate_size", json!(25));
    assert_names(
        &wide,
        &["wrong shape: model.layers.0.mlp.up_proj.weight is [24, 16], not [25, 16]"],
    );
    let deep = change("llama", "num_hidden_layers", json!(3));
    assert_names(&deep, &["missing: model.layers.2.self_attn.q_proj.weight"]);
    let shallow = change("llama", "num_hidden_layers", json!(1));
    assert_names(&shallow, &["unexpected: model.layers.1.mlp.up_proj.weight"]);
    let unbiased = change("llama-biases", "attention_bias", json!(false));
    assert_names(&unbiased, &["unexpected: model.layers.0.self_attn.k_proj.bias"]);
    let biased = change("qwen3", "attention_bias", json!(true));
    assert_names(&biased, &["missing: model.layers.0.self_attn.o_proj.bias [16]"]);
    let llama = change("qwen3", "architectures", json!(["LlamaForCausalLM"]));
    assert_names(&llama, &["unexpected: model.layers.0.self_attn.q_norm.weight"]);
}

#[test]
fn settings_that_make_no_model_are_refused() {
    let change = |name: &str, pointer: &str, value: Value| {
        let directory = copy_of(name);
        set(&directory.path().join("config.json"), pointer, value);
        refused(directory.path())
    };
    assert_names(&change("mistral", "/sliding_window", json!(0)), &["sliding_window.size is 0"]);
    let factor = "/rope_parameters/factor";
    assert_names(&change("llama-yarn", factor, json!(-4.0)), &["rope_scaling", "at least 1"]);
    assert_names(&change("llama-linear", factor, json!(0.0)), &["rope_scaling", "positive"]);
    assert_names(&change("llama-llama3", factor, json!("8")), &["factor", "not a number"]);
    let high = "/rope_parameters/high_freq_factor";
    assert_names(&change("llama-llama3", high, json!(0.5)), &["rope_scaling", "low_freq_factor"]);
    assert_names(&change("llama", "/num_attention_heads", json!(0)), &["n_heads"]);
    assert_names(&change("llama", "/head_dim", json!(u64::MAX)), &["head_dim"]);
}

#[test]
fn numbers_that_are_none_are_refused_by_name() {
    let directory = copy_of("llama-bf16");
    let file = directory.path().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 2..].copy_from_slice(&half::bf16::INFINITY.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    assert_names(&refused(directory.path()), &["model.norm.weight", "holds inf at element 15"]);
}

#[test]
fn weights_that_could_run_code_are_not_read() {
    let directory = copy_of("llama");
    let weights = directory.path().join("model.safetensors");
    fs::rename(weights, directory.path().join("pytorch_model.bin")).unwrap();
    assert_names(&refused(directory.path()), &["pytorch_model.bin", "save_pretrained"]);
}
