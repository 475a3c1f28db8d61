//! Exported models read back.

use super::*;
use crate::config::tests::small;
use crate::config::{AttentionBias, DepthKv, MlpKind, ModelConfig, SlidingWindow, ValueResidual};
use crate::decoder::Decoder;
use crate::pass::{Pass, Tokens};
use crate::rope_scaling::{RopeScaling, Yarn};
use crate::{Tokenizer, load, save};
use burn::tensor::Device;
use hadal_gguf::{Gguf, TensorType};
use hadal_residual::{Init, ResidualConfig, Weights};
use serde_json::{Value, json};
use std::fs;
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

fn to_directory(model: &Path, out: &Path) -> Result<Exported, ExportError> {
    export(model, out, ExportFormat::HuggingFace, ExportType::F32, &mut |_, _| {})
}

fn to_gguf(model: &Path, out: &Path) -> Result<Exported, ExportError> {
    export(model, out, ExportFormat::Gguf, ExportType::F32, &mut |_, _| {})
}

/// Why there is no GGUF file of such a model.
fn refused(config: &ModelConfig) -> String {
    let (directory, _) = saved(config);
    let out = directory.path().join("out.gguf");
    let error = to_gguf(directory.path(), &out).unwrap_err();
    assert!(error.is_usage() && !out.exists());
    error.to_string()
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-5, "{a} is not {b}");
    }
}

/// Models that other tools have, too, by the family that each becomes.
fn shared() -> Vec<(&'static str, ModelConfig)> {
    let plain = config("prenorm");
    let window = |blocks| Some(SlidingWindow { size: 3, blocks });
    let qkv = Some(AttentionBias::Qkv);
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_seq_len: 16,
    };
    let yarn = RopeScaling::Yarn(Yarn {
        factor: 4.0,
        original_max_seq_len: 8,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.25,
        truncate: true,
    });
    let scaled = |scaling| ModelConfig { rope_scaling: Some(scaling), ..plain.clone() };
    vec![
        ("LlamaForCausalLM", plain.clone()),
        ("LlamaForCausalLM", ModelConfig { tie_embeddings: false, ..plain.clone() }),
        ("LlamaForCausalLM", config("lns")),
        (
            "LlamaForCausalLM",
            ModelConfig {
                attention_bias: Some(AttentionBias::All),
                mlp_bias: true,
                ..config("prenorm:multiplier=0.3")
            },
        ),
        (
            "LlamaForCausalLM",
            ModelConfig {
                attention_bias: Some(AttentionBias::All),
                mlp_bias: true,
                ..plain.clone()
            },
        ),
        ("LlamaForCausalLM", ModelConfig { attention_bias: qkv, mlp_bias: true, ..plain.clone() }),
        ("MistralForCausalLM", ModelConfig { sliding_window: window(None), ..plain.clone() }),
        ("Qwen2ForCausalLM", ModelConfig { attention_bias: qkv, ..plain.clone() }),
        (
            "Qwen2ForCausalLM",
            ModelConfig {
                attention_bias: qkv,
                sliding_window: window(Some(vec![0, 2])),
                ..plain.clone()
            },
        ),
        (
            "Qwen2ForCausalLM",
            ModelConfig { sliding_window: window(Some(vec![1])), ..plain.clone() },
        ),
        ("Qwen3ForCausalLM", ModelConfig { qk_norm: true, ..plain.clone() }),
        (
            "Qwen3ForCausalLM",
            ModelConfig {
                qk_norm: true,
                attention_bias: qkv,
                sliding_window: window(None),
                ..config("lns")
            },
        ),
        ("LlamaForCausalLM", scaled(RopeScaling::Linear { factor: 2.0 })),
        ("LlamaForCausalLM", scaled(RopeScaling::Dynamic { factor: 2.0, original_max_seq_len: 4 })),
        ("LlamaForCausalLM", scaled(llama3)),
        ("LlamaForCausalLM", scaled(yarn)),
        ("LlamaForCausalLM", scaled(RopeScaling::Divided { divisors: vec![1.0, 3.5] })),
    ]
}

#[test]
fn every_feature_that_others_have_comes_back_from_the_family_that_fits() {
    for (family, config) in shared() {
        let (directory, decoder) = saved(&config);
        let out = directory.path().join("out");
        assert_eq!(to_directory(directory.path(), &out).unwrap().architecture, family);
        close(&logits(&load(&out, &Device::flex()).unwrap().decoder), &logits(&decoder));
    }
}

#[test]
fn every_feature_that_llama_cpp_has_comes_back_from_a_file() {
    let mut written = 0;
    for (_, config) in shared() {
        let config = ModelConfig { vocab_size: 257, ..config };
        let (directory, decoder) = saved(&config);
        let out = directory.path().join("out.gguf");
        match to_gguf(directory.path(), &out) {
            Ok(_) => {
                let back = load(&out, &Device::flex()).unwrap().decoder;
                close(&logits(&back), &logits(&decoder));
                written += 1;
            }
            Err(error) => assert!(matches!(error, ExportError::Unsupported { .. }), "{error}"),
        }
    }
    // Windows and dynamic scaling are refused.
    assert_eq!(written, shared().len() - 5);
}

#[test]
fn models_that_nobody_has_bring_their_code_and_are_read_again() {
    let odd = ModelConfig { mlp: MlpKind::Relu2, ..config("prenorm") };
    let deep = ModelConfig { depth_kv: DepthKv::AttentionMlp, ..config("lns") };
    // Of a family that everybody has, but for its values.
    let valued = ModelConfig { value_residual: ValueResidual::Learned, ..config("prenorm") };
    let routed = config("prenorm:capacity=0.5");
    let skipping = config("nag:skip_threshold=0.2,skip_kv=drop");
    let policies = ResidualConfig::all()
        .into_iter()
        .filter(|policy| !["prenorm", "lns"].contains(&policy.about().kind));
    let policies =
        policies.map(|residual| ModelConfig { n_layers: 4, residual, ..config("prenorm") });
    for config in [odd, deep, valued, routed, skipping].into_iter().chain(policies) {
        let kind = config.residual.about().kind;
        let (directory, decoder) = saved(&config);
        let out = directory.path().join("out");
        let exported = to_directory(directory.path(), &out).unwrap();
        assert_eq!(exported.architecture, "HadalForCausalLM");
        assert!(exported.notes.iter().any(|note| note.contains("trust_remote_code")));
        let json = json_of(&out.join("config.json"));
        let class = json["auto_map"]["AutoModelForCausalLM"].as_str().unwrap();
        let (module, class) = class.split_once('.').unwrap();
        let code = fs::read_to_string(out.join(format!("{module}.py"))).unwrap();
        assert!(code.contains(&format!("class {class}(")));
        assert!(code.contains("class HadalConfig("));
        assert_eq!(json["auto_map"]["AutoConfig"], format!("{module}.HadalConfig"));
        assert!(
            code.contains(&format!("    kind = \"{kind}\"\n")),
            "modeling_hadal.py has no class for {kind}, so what was exported cannot be run"
        );
        assert_eq!(logits(&load(&out, &Device::flex()).unwrap().decoder), logits(&decoder));
    }
}

#[test]
fn a_gguf_file_says_everything_that_llama_cpp_asks_for() {
    let bytes = ModelConfig { vocab_size: 257, ..config("prenorm") };
    let (directory, decoder) = saved(&bytes);
    let out = directory.path().join("out.gguf");
    to_gguf(directory.path(), &out).unwrap();
    let file = Gguf::open(&out).unwrap();
    assert_eq!(file.get::<String>("general.architecture").unwrap(), "llama");
    assert_eq!(file.get::<u32>("general.file_type").unwrap(), 0);
    assert_eq!(file.get::<u32>("general.quantization_version").unwrap(), 2);
    assert_eq!(file.get::<usize>("llama.block_count").unwrap(), bytes.n_layers);
    assert_eq!(file.get::<Vec<String>>("tokenizer.ggml.tokens").unwrap().len(), 257);
    assert_eq!(file.get::<String>("tokenizer.ggml.model").unwrap(), "gpt2");
    // Rows of queries are in llama.cpp's order, rows of values in ours.
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
fn a_model_of_bytes_brings_a_tokenizer_and_is_still_one_of_bytes() {
    let (directory, _) = saved(&ModelConfig { vocab_size: 257, ..config("prenorm") });
    let at = |name: &str| directory.path().join(name);
    to_directory(directory.path(), &at("hf")).unwrap();
    assert_eq!(json_of(&at("hf").join("tokenizer.json")), byte_tokenizer());
    let settings = json_of(&at("hf").join("tokenizer_config.json"));
    assert_eq!(settings["tokenizer_class"], "PreTrainedTokenizerFast");
    // transformers would find the name in texts.
    assert_eq!(settings["eos_token"], Value::Null);
    assert_eq!(json_of(&at("hf").join("generation_config.json"))["eos_token_id"], 256);
    to_gguf(directory.path(), &at("a.gguf")).unwrap();
    to_gguf(&at("hf"), &at("b.gguf")).unwrap();
    let tokens = |name: &str| {
        Gguf::open(&at(name)).unwrap().get::<Vec<String>>("tokenizer.ggml.tokens").unwrap()
    };
    assert_eq!(tokens("a.gguf"), tokens("b.gguf"));
}

#[test]
fn a_gguf_file_without_a_tokenizer_is_refused() {
    let (directory, _) = saved(&config("prenorm"));
    let out = directory.path().join("out.gguf");
    let error = to_gguf(directory.path(), &out).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    assert!(!out.exists());
}

#[test]
fn what_llama_cpp_does_not_compute_is_refused_by_name() {
    let plain = ModelConfig { vocab_size: 257, ..config("prenorm") };
    let with = |change: &dyn Fn(&mut ModelConfig)| {
        let mut config = plain.clone();
        change(&mut config);
        refused(&config)
    };
    assert!(refused(&config("mgr:streams=2")).contains("residual policy mgr"));
    assert!(refused(&config("prenorm:capacity=0.5")).contains("capacity=0.5"));
    assert!(with(&|c| c.mlp = MlpKind::Relu2).contains("relu2"));
    assert!(with(&|c| c.depth_kv = DepthKv::Attention).contains("depth_kv"));
    assert!(with(&|c| c.value_residual = ValueResidual::Fixed).contains("value_residual"));
    let window = with(&|c| c.sliding_window = Some(SlidingWindow { size: 3, blocks: None }));
    assert!(window.contains("sliding window of 3") && window.contains("--format hf"), "{window}");
    let dynamic = RopeScaling::Dynamic { factor: 2.0, original_max_seq_len: 16 };
    assert!(with(&|c| c.rope_scaling = Some(dynamic.clone())).contains("dynamic RoPE"));
    let divided = RopeScaling::Divided { divisors: vec![1.0, 2.0] };
    let normed = with(&|c| {
        c.qk_norm = true;
        c.rope_scaling = Some(divided.clone());
    });
    assert!(normed.contains("qk_norm and frequencies"), "{normed}");
    let biased = with(&|c| {
        c.qk_norm = true;
        c.attention_bias = Some(AttentionBias::All);
    });
    assert!(biased.contains("output"), "{biased}");
}

#[test]
fn a_window_that_no_text_reaches_is_none() {
    let window = Some(SlidingWindow { size: 32, blocks: None });
    let (directory, _) =
        saved(&ModelConfig { vocab_size: 257, sliding_window: window, ..config("prenorm") });
    to_gguf(directory.path(), &directory.path().join("out.gguf")).unwrap();
}

#[test]
fn nothing_is_overwritten_and_q8_0_is_no_type_of_a_directory() {
    let (directory, _) = saved(&config("prenorm"));
    let error = to_directory(directory.path(), directory.path()).unwrap_err();
    assert!(matches!(error, ExportError::Exists { .. }));
    let out = directory.path().join("x");
    let format = ExportFormat::HuggingFace;
    let error = export(directory.path(), &out, format, ExportType::Q8_0, &mut |_, _| {});
    assert!(matches!(error, Err(ExportError::Quantised)));
}

#[test]
fn a_number_that_f16_cannot_hold_is_refused_and_nothing_is_left() {
    let (directory, decoder) = saved(&config("prenorm"));
    let mut stored = |name: &str, _: &[usize]| {
        let mut values = decoder.parameters().into_iter().find(|(n, _)| n == name).unwrap().1;
        if name == "norm.weight" {
            values[3] = 1e6;
        }
        Some(values)
    };
    let large = Decoder::stored(decoder.config(), &mut stored, &Device::flex()).unwrap();
    save(&large, directory.path()).unwrap();
    let out = directory.path().join("out");
    let format = ExportFormat::HuggingFace;
    let error = export(directory.path(), &out, format, ExportType::F16, &mut |_, _| {});
    assert!(
        matches!(error, Err(ExportError::Overflow { name, .. }) if name == "model.norm.weight")
    );
    assert!(!out.exists());
}

/// A small byte-level tokenizer whose texts begin with `<s>` and end with `</s>` or `<|im_end|>`.
fn tokenizer() -> Value {
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let vocab = json!({"<s>": 0, "</s>": 1, "<|im_end|>": 2, "a": 3, "b": 4, "ab": 5});
    let added = ["<s>", "</s>", "<|im_end|>"].iter().enumerate().map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": bytes,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
    })
}

#[test]
fn tokenizer_template_and_ends_survive_a_file_and_a_directory() {
    let (directory, decoder) = saved(&config("prenorm"));
    let path = |name: &str| directory.path().join(name);
    fs::write(path("tokenizer.json"), tokenizer().to_string()).unwrap();
    fs::write(path("chat_template.jinja"), "{{ messages }}").unwrap();
    fs::write(path("generation_config.json"), r#"{"bos_token_id": 0, "eos_token_id": [1, 2]}"#)
        .unwrap();
    // Through a file to a directory to a file.
    to_gguf(directory.path(), &path("one.gguf")).unwrap();
    to_directory(&path("one.gguf"), &path("two")).unwrap();
    to_gguf(&path("two"), &path("three.gguf")).unwrap();
    to_gguf(&path("three.gguf"), &path("four.gguf")).unwrap();
    for model in ["one.gguf", "two", "three.gguf", "four.gguf"].map(path) {
        let back = load(&model, &Device::flex()).unwrap();
        close(&logits(&back.decoder), &logits(&decoder));
        assert_eq!((back.begin, back.ends), (Some(0), vec![1, 2]), "{model:?}");
        let tokenizer = Tokenizer::of_model(&model).unwrap().unwrap();
        assert_eq!(tokenizer.encode("ab</s>").unwrap(), [0, 5, 1], "{model:?}");
        let template = crate::model_files::chat_template(&model).unwrap();
        assert_eq!(template.as_deref(), Some("{{ messages }}"));
    }
    let settings = json_of(&path("two").join("tokenizer_config.json"));
    assert_eq!((&settings["bos_token"], &settings["eos_token"]), (&json!("<s>"), &json!("</s>")));
}

#[test]
fn the_folder_of_a_finished_run_is_its_model() {
    let (directory, decoder) = saved(&config("prenorm"));
    let run = TempDir::new().unwrap();
    save(&decoder, &run.path().join("model")).unwrap();
    fs::write(run.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
    let out = directory.path().join("out");
    let exported = to_directory(run.path(), &out).unwrap();
    assert!(exported.files.contains(&out.join("tokenizer.json")));
    assert_eq!(logits(&load(&out, &Device::flex()).unwrap().decoder), logits(&decoder));
}
