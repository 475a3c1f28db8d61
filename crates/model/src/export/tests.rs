//! Exported models read back.

use super::*;
use crate::config::tests::small;
use crate::decoder::{Decoder, Pass, Tokens};
use crate::{load, save};
use hadal_gguf::{Gguf, TensorType};
use hadal_residual::{Init, Weights};
use tempfile::TempDir;

fn config(residual: &str) -> ModelConfig {
    ModelConfig { mlp: MlpKind::Swiglu, residual: residual.parse().unwrap(), ..small() }
}

/// A saved model in which no gain is one.
fn saved(config: &ModelConfig) -> (TempDir, Decoder) {
    let mut stored = |name: &str, shape: &[usize]| {
        let mut weights = Weights::fresh(3, &Device::flex());
        let count = shape.iter().product();
        let mean = if name.contains("norm") { 1.0 } else { 0.0 };
        let values = weights.param(name, [count], Init::Normal { std: 0.3 }).val() + mean;
        Some(values.try_into_vec_as().unwrap())
    };
    let decoder = Decoder::stored(config, &mut stored, &Device::flex()).unwrap();
    let directory = TempDir::new().unwrap();
    save(&decoder, directory.path()).unwrap();
    (directory, decoder)
}

fn logits(decoder: &Decoder) -> Vec<f32> {
    let tokens = Tokens::row(&[1, 5, 2, 9, 3, 3]);
    decoder.logits(&tokens, Pass::default()).unwrap().try_into_vec_as().unwrap()
}

fn refused(config: &ModelConfig) -> String {
    let (directory, _) = saved(config);
    let out = directory.path().join("out");
    let error =
        export(directory.path(), &out, ExportFormat::HuggingFace, ExportType::F32).unwrap_err();
    assert!(error.is_usage() && !out.exists());
    error.to_string()
}

#[test]
fn a_prenorm_model_comes_back_as_a_llama_with_the_same_logits() {
    for tie_embeddings in [true, false] {
        let (directory, decoder) = saved(&ModelConfig { tie_embeddings, ..config("prenorm") });
        let out = directory.path().join("out");
        let exported =
            export(directory.path(), &out, ExportFormat::HuggingFace, ExportType::F32).unwrap();
        assert_eq!(exported.architecture, "LlamaForCausalLM");
        assert_eq!(logits(&load(&out, &Device::flex()).unwrap().decoder), logits(&decoder));
    }
}

#[test]
fn the_scales_of_lns_are_folded_into_the_gains() {
    let (directory, decoder) = saved(&config("lns"));
    let out = directory.path().join("out");
    export(directory.path(), &out, ExportFormat::HuggingFace, ExportType::F32).unwrap();
    let back = load(&out, &Device::flex()).unwrap().decoder;
    assert_eq!(back.config().residual.about().kind, "prenorm");
    for (a, b) in logits(&back).iter().zip(logits(&decoder)) {
        assert!((a - b).abs() < 1e-5, "{a} is not {b}");
    }
}

#[test]
fn what_no_other_tool_computes_is_refused_by_name() {
    assert!(refused(&config("mgr:streams=2")).contains("residual policy mgr"));
    assert!(refused(&ModelConfig { mlp: MlpKind::Relu2, ..config("prenorm") }).contains("relu2"));
    let deep = ModelConfig { depth_kv: DepthKv::Attention, ..config("prenorm") };
    assert!(refused(&deep).contains("depth_kv"));
}

#[test]
fn nothing_is_overwritten_and_q8_0_is_no_type_of_a_directory() {
    let (directory, _) = saved(&config("prenorm"));
    let to = |out: &Path, kind| {
        export(directory.path(), out, ExportFormat::HuggingFace, kind).unwrap_err()
    };
    assert!(matches!(to(directory.path(), ExportType::F32), ExportError::Exists { .. }));
    assert!(matches!(to(&directory.path().join("x"), ExportType::Q8_0), ExportError::Quantised));
}

#[test]
fn normalised_queries_and_keys_make_it_a_qwen3() {
    let (directory, _) = saved(&ModelConfig { qk_norm: true, ..config("prenorm") });
    let out = directory.path().join("out");
    let exported =
        export(directory.path(), &out, ExportFormat::HuggingFace, ExportType::Bf16).unwrap();
    assert_eq!(exported.architecture, "Qwen3ForCausalLM");
    let file = crate::TensorFile::open(&out.join("model.safetensors")).unwrap();
    assert!(file.shape("model.layers.0.self_attn.q_norm.weight").is_some());
}

#[test]
fn a_gguf_file_says_everything_that_llama_cpp_asks_for() {
    let bytes = ModelConfig { vocab_size: 257, ..config("prenorm") };
    let (directory, decoder) = saved(&bytes);
    let out = directory.path().join("out.gguf");
    export(directory.path(), &out, ExportFormat::Gguf, ExportType::F32).unwrap();
    let file = Gguf::open(&out).unwrap();
    assert_eq!(file.get::<String>("general.architecture").unwrap(), "llama");
    assert_eq!(file.get::<u32>("general.file_type").unwrap(), 0);
    assert_eq!(file.get::<u32>("general.quantization_version").unwrap(), 2);
    assert_eq!(file.get::<usize>("llama.block_count").unwrap(), bytes.n_layers);
    assert_eq!(file.get::<Vec<String>>("tokenizer.ggml.tokens").unwrap().len(), 257);
    assert_eq!(file.get::<String>("tokenizer.ggml.model").unwrap(), "gpt2");
    // Rows of queries are in llama.cpp's order, those of values in ours.
    let parameters = decoder.parameters();
    let ours = |name: &str| parameters.iter().find(|(n, _)| n == name).unwrap().1.clone();
    let theirs = |name: &str| file.tensor(name).unwrap().to_f32().unwrap();
    assert_eq!(theirs("blk.0.attn_v.weight"), ours("layers.0.attn.v.weight"));
    let (q, moved) = (ours("layers.0.attn.q.weight"), theirs("blk.0.attn_q.weight"));
    let (width, half) = (bytes.d_model, bytes.head_dim / 2);
    assert_eq!(moved[width..2 * width], q[half * width..(half + 1) * width]);
    assert_eq!(file.tensor("blk.0.attn_norm.weight").unwrap().info().kind(), TensorType::F32);
}

#[test]
fn a_gguf_file_without_a_tokenizer_is_refused() {
    let (directory, _) = saved(&config("prenorm"));
    let out = directory.path().join("out.gguf");
    let error = export(directory.path(), &out, ExportFormat::Gguf, ExportType::F32).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    assert!(!out.exists());
}
