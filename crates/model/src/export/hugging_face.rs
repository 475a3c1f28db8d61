//! A directory that `transformers` loads.

use super::names::hugging_face;
use super::{ExportError, ExportType, Exported, Family, Model, io_error};
use half::{bf16, f16};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// What belongs to the tokenizer and to generation; it is copied as it is.
const COPIED: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
];

pub(super) fn write(
    model: &Model,
    directory: &Path,
    out: &Path,
    kind: ExportType,
) -> Result<Exported, ExportError> {
    fs::create_dir_all(out).map_err(io_error("create", out))?;
    let written = write_all(model, directory, out, kind);
    if written.is_err() {
        // The first failure is what the user must know; half a directory helps nobody.
        let _ = fs::remove_dir_all(out);
    }
    written
}

fn write_all(
    model: &Model,
    directory: &Path,
    out: &Path,
    kind: ExportType,
) -> Result<Exported, ExportError> {
    let mut files = Vec::new();
    let mut notes = Vec::new();
    for name in COPIED {
        let (from, to) = (directory.join(name), out.join(name));
        if from.is_file() {
            fs::copy(&from, &to).map_err(io_error("write", &to))?;
            files.push(to);
        }
    }
    let has_tokenizer = out.join("tokenizer.json").is_file();
    if has_tokenizer && !out.join("tokenizer_config.json").is_file() {
        files.push(put(out, "tokenizer_config.json", &tokenizer_config(model))?);
    }
    if !has_tokenizer {
        notes
            .push("there is no tokenizer.json to go with it: bytes are their own token ids".into());
    }
    files.push(put(out, "config.json", &config(model, kind))?);
    files.push(tensors(model, &out.join("model.safetensors"), kind)?);
    Ok(Exported { architecture: architecture(model.family).into(), files, notes })
}

fn architecture(family: Family) -> &'static str {
    match family {
        Family::Llama => "LlamaForCausalLM",
        Family::Qwen3 => "Qwen3ForCausalLM",
    }
}

fn put(out: &Path, name: &str, value: &Value) -> Result<PathBuf, ExportError> {
    let path = out.join(name);
    fs::write(&path, format!("{value:#}\n")).map_err(io_error("write", &path))?;
    Ok(path)
}

fn config(model: &Model, kind: ExportType) -> Value {
    let config = &model.config;
    let ends = match model.ends.as_slice() {
        [] => Value::Null,
        [one] => json!(one),
        all => json!(all),
    };
    let dtype = match kind {
        ExportType::F16 => "float16",
        ExportType::Bf16 => "bfloat16",
        ExportType::F32 | ExportType::Q8_0 => "float32",
    };
    let mut json = json!({
        "architectures": [architecture(model.family)],
        "model_type": match model.family { Family::Llama => "llama", Family::Qwen3 => "qwen3" },
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_seq_len,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": false,
        "bos_token_id": model.begin,
        "eos_token_id": ends,
        "torch_dtype": dtype,
    });
    match model.family {
        Family::Llama => json["mlp_bias"] = false.into(),
        Family::Qwen3 => json["use_sliding_window"] = false.into(),
    }
    json
}

fn tokenizer_config(model: &Model) -> Value {
    let text = |id: Option<u32>| id.and_then(|id| model.tokenizer.as_ref()?.token(id));
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text(model.begin),
        "eos_token": text(model.ends.first().copied()),
        "model_max_length": model.config.max_seq_len,
        "clean_up_tokenization_spaces": false,
    })
}

fn tensors(model: &Model, path: &Path, kind: ExportType) -> Result<PathBuf, ExportError> {
    let (dtype, convert): (Dtype, fn(f32) -> Vec<u8>) = match kind {
        ExportType::F16 => (Dtype::F16, |value| f16::from_f32(value).to_le_bytes().into()),
        ExportType::Bf16 => (Dtype::BF16, |value| bf16::from_f32(value).to_le_bytes().into()),
        ExportType::F32 | ExportType::Q8_0 => (Dtype::F32, |value| value.to_le_bytes().into()),
    };
    let mut encoded = Vec::new();
    for (name, shape) in &model.shapes {
        let values = model.weights.get(name).map(Vec::as_slice).unwrap_or_default();
        let too_large = |value: &&f32| kind == ExportType::F16 && value.abs() > f16::MAX.to_f32();
        if let Some(&value) = values.iter().find(too_large) {
            return Err(ExportError::Overflow { name: name.clone(), value });
        }
        let bytes: Vec<u8> = values.iter().flat_map(|&value| convert(value)).collect();
        encoded.push((hugging_face(name), shape, bytes));
    }
    let failed = |error| match error {
        SafeTensorError::IoError(reason) => io_error("write", path)(reason),
        reason => ExportError::Tensors { path: path.into(), reason },
    };
    let mut views = Vec::new();
    for (name, shape, bytes) in &encoded {
        views.push((name, TensorView::new(dtype, shape.to_vec(), bytes).map_err(failed)?));
    }
    // `transformers` refuses a file that does not say where it comes from.
    let about = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize_to_file(views, Some(about), path).map_err(failed)?;
    Ok(path.into())
}
