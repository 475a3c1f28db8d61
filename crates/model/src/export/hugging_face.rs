//! A directory that `transformers` loads.

use super::names::hugging_face;
use super::source::Source;
use super::target::Family;
use super::vocabulary::byte_tokenizer;
use super::{ExportError, ExportType, Exported, own_code, rope};
use crate::companions::companions;
use crate::model_files::{CHAT_TEMPLATE, GENERATION, Place, TOKENIZER, TOKENIZER_SETTINGS};
use crate::streamed::{Interrupted, Streamed, write_streamed};
use hadal_files::{Action, MANIFEST, StagedDirectory, file_error, write_manifest, write_whole};
use half::f16;
use safetensors::SafeTensorError;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(super) fn write(
    source: &Source,
    out: &Path,
    kind: ExportType,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Exported, ExportError> {
    let staged = StagedDirectory::create(out)?;
    let verification = source.verification();
    let written = write_all(source, staged.path(), kind, progress);
    // Damage explains whatever else is wrong.
    verification.finish()?;
    let mut exported = written?;
    write_manifest(staged.path())?;
    exported.files.push(staged.path().join(MANIFEST));
    for file in &mut exported.files {
        *file = out.join(file.file_name().unwrap_or_default());
    }
    staged.finish()?;
    Ok(exported)
}

fn write_all(
    source: &Source,
    out: &Path,
    kind: ExportType,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Exported, ExportError> {
    let mut notes = Vec::new();
    let mut files = tokenizer(source, out)?;
    if source.tokenizer.is_none() {
        notes.push(
            "there is no tokenizer to go with it: feed token ids, AutoTokenizer will not load"
                .into(),
        );
    }
    let family = Family::of(&source.config);
    let (architecture, mut config) = match family {
        Some(family) => (family.class(), family_config(source, family)),
        None => {
            let path = out.join(own_code::FILE);
            write_whole(&path, own_code::CODE)?;
            files.push(path);
            notes.push(
                "no architecture of transformers computes this, so it brings its own code along: load it with \
                 trust_remote_code=True"
                    .into(),
            );
            (own_code::CLASS, own_code::config(source))
        }
    };
    config["bos_token_id"] = json!(source.begin);
    config["eos_token_id"] = ends(source);
    config["torch_dtype"] = dtype(kind).1.into();
    files.push(put(out, "config.json", &config)?);

    let tensors = tensors(source, family);
    let zeros = tensors.iter().filter(|tensor| tensor.from.is_none()).count();
    if zeros > 0 {
        notes.push(format!(
            "{zeros} biases that {architecture} has and this model has not are zero"
        ));
    }
    files.push(weights(source, family, &tensors, &out.join("model.safetensors"), kind, progress)?);
    Ok(Exported { architecture: architecture.into(), files, notes })
}

fn put(out: &Path, name: &str, value: &Value) -> Result<PathBuf, ExportError> {
    let path = out.join(name);
    write_whole(&path, format!("{value:#}\n"))?;
    Ok(path)
}

/// The tokenizer, and the tokens around texts and chats.
fn tokenizer(source: &Source, out: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let mut files = Vec::new();
    if !source.is_gguf() {
        for (name, content) in companions(&source.path)? {
            let path = out.join(name);
            write_whole(&path, content)?;
            files.push(path);
        }
    }
    let missing = |name: &str| !out.join(name).exists();
    if source.tokenizer.is_some() {
        if missing(TOKENIZER) {
            let bytes = byte_tokenizer();
            let json = source.vocabulary.as_ref().map_or(&bytes, |vocabulary| &vocabulary.json);
            files.push(put(out, TOKENIZER, json)?);
        }
        if missing(TOKENIZER_SETTINGS) {
            files.push(put(out, TOKENIZER_SETTINGS, &tokenizer_settings(source))?);
        }
    }
    if let Some(text) = &source.chat_template
        && missing(CHAT_TEMPLATE)
    {
        let path = out.join(CHAT_TEMPLATE);
        write_whole(&path, text)?;
        files.push(path);
    }
    if missing(GENERATION) && (source.begin.is_some() || !source.ends.is_empty()) {
        let tokens = json!({"bos_token_id": source.begin, "eos_token_id": ends(source)});
        files.push(put(out, GENERATION, &tokens)?);
    }
    Ok(files)
}

fn tokenizer_settings(source: &Source) -> Value {
    // Bytes have no names besides themselves: transformers would take a name for that token wherever a text has it.
    let named = source.tokenizer.as_ref().filter(|_| source.vocabulary.is_some());
    let text = |id: Option<u32>| id.and_then(|id| named?.token(id));
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text(source.begin),
        "eos_token": text(source.ends.first().copied()),
        "model_max_length": source.config.max_seq_len,
        "clean_up_tokenization_spaces": false,
    })
}

fn ends(source: &Source) -> Value {
    match source.ends.as_slice() {
        [] => Value::Null,
        [one] => json!(one),
        all => json!(all),
    }
}

fn family_config(source: &Source, family: Family) -> Value {
    let config = &source.config;
    let mut json = json!({
        "architectures": [family.class()],
        "model_type": family.model_type(),
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    });
    rope::describe(config, &mut json);
    let size = config.sliding_window.as_ref().map(|window| window.size);
    match family {
        Family::Llama => {
            json["attention_bias"] = config.attention_bias.is_some().into();
            json["mlp_bias"] = config.mlp_bias.into();
        }
        Family::Mistral => json["sliding_window"] = json!(size),
        Family::Qwen2 | Family::Qwen3 => {
            if family == Family::Qwen3 {
                json["attention_bias"] = config.attention_bias.is_some().into();
            }
            json["use_sliding_window"] = size.is_some().into();
            json["sliding_window"] = json!(size);
            let windowed: Vec<bool> =
                (0..config.n_layers).map(|block| config.window(block).is_some()).collect();
            let kind = |&windowed: &bool| {
                if windowed { "sliding_attention" } else { "full_attention" }
            };
            json["layer_types"] = windowed.iter().map(kind).collect();
            // Older versions only know the block from which windows begin.
            let first = windowed.iter().position(|&windowed| windowed).unwrap_or(config.n_layers);
            json["max_window_layers"] = first.into();
        }
    }
    json
}

/// A tensor of the directory.
struct Tensor<'a> {
    name: String,
    shape: Vec<usize>,
    /// Where it comes from; `None` for zeros.
    from: Option<&'a Place>,
}

fn tensors(source: &Source, family: Option<Family>) -> Vec<Tensor<'_>> {
    let stored = source.places.iter().map(|place| Tensor {
        name: match family {
            Some(_) => hugging_face(&place.ours),
            None => place.ours.clone(),
        },
        shape: place.shape.clone(),
        from: Some(place),
    });
    let mut tensors: Vec<_> = stored.collect();
    let config = &source.config;
    for part in family.map_or(&[][..], |family| family.missing_biases(config)) {
        let width = match *part {
            "q" => config.n_heads * config.head_dim,
            "o" => config.d_model,
            _ => config.kv_width(),
        };
        tensors.extend((0..config.n_layers).map(|block| Tensor {
            name: hugging_face(&format!("layers.{block}.attn.{part}.bias")),
            shape: vec![width],
            from: None,
        }));
    }
    tensors
}

/// The type of the elements, and its name there.
fn dtype(kind: ExportType) -> (Dtype, &'static str) {
    match kind {
        ExportType::F16 => (Dtype::F16, "float16"),
        ExportType::Bf16 => (Dtype::BF16, "bfloat16"),
        ExportType::F32 | ExportType::Q8_0 => (Dtype::F32, "float32"),
    }
}

fn weights(
    source: &Source,
    family: Option<Family>,
    tensors: &[Tensor],
    path: &Path,
    kind: ExportType,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<PathBuf, ExportError> {
    let streamed: Vec<Streamed> = tensors
        .iter()
        .map(|tensor| Streamed {
            name: tensor.name.clone(),
            dtype: dtype(kind).0,
            shape: tensor.shape.clone(),
        })
        .collect();
    let mut read = |at: usize| {
        let values = match (tensors[at].from, family) {
            (Some(place), Some(_)) => source.folded(place)?,
            (Some(place), None) => source.floats(place)?,
            (None, _) => vec![0.0; tensors[at].shape.iter().product()],
        };
        let too_large = |value: &&f32| kind == ExportType::F16 && value.abs() > f16::MAX.to_f32();
        match values.iter().find(too_large) {
            Some(&value) => Err(ExportError::Overflow { name: tensors[at].name.clone(), value }),
            None => Ok(values),
        }
    };
    // `transformers` refuses a file that does not say where it comes from.
    let about = [("format".to_owned(), "pt".to_owned())].into();
    match write_streamed(path, &streamed, Some(about), &mut read, progress) {
        Ok(()) => Ok(path.into()),
        Err(Interrupted::Read(error)) => Err(error),
        Err(Interrupted::Write(SafeTensorError::IoError(reason))) => {
            Err(file_error(Action::Write, path)(reason).into())
        }
        Err(Interrupted::Write(reason)) => Err(ExportError::Tensors { path: path.into(), reason }),
    }
}
