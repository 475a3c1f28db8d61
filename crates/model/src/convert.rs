//! A model of any kind that is read as a directory of ours, without ever being in memory as a whole.

use crate::checkpoint::{CONFIG, CheckpointError, WEIGHTS, clear, sibling};
use crate::config::ModelConfig;
use crate::decoder::Decoder;
use crate::import::WeightSource;
use crate::model_files::{GENERATION, ModelFiles, Reading, TOKENIZER, is_gguf};
use crate::tensor_file::TensorFileError;
use crate::tokenizer::tokenizer_of_gguf;
use burn::tensor::Device;
use hadal_gguf::Gguf;
use hadal_residual::Weights;
use half::{bf16, f16};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, View};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Where a chat's turns are put together, in Hugging Face's directories.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// What was written.
#[derive(Clone, Debug)]
pub struct Converted {
    /// The model's shape.
    pub config: ModelConfig,
    /// Bytes of its parameters as they are stored.
    pub stored_bytes: u64,
    /// Whether there is a tokenizer.
    pub tokenizer: bool,
    /// Whether there is a chat template.
    pub chat_template: bool,
}

/// Writes the model at `source` as a directory of ours, one parameter at a time. Elements of f16 and bf16 stay what they
/// are; quantised ones become f32. `progress` is told how many bytes are written, and of how many.
pub fn convert(
    source: &Path,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, CheckpointError> {
    let failed = |reason| CheckpointError::Io { action: "write", path: out.into(), reason };
    if out.exists() {
        return Err(CheckpointError::Exists { path: out.into() });
    }
    let place = std::path::absolute(out).map_err(failed)?;
    let staging = sibling(&place, "new");
    let written = clear(&staging).and_then(|()| write_model(source, &staging, progress)).and_then(
        |converted| {
            fs::rename(&staging, &place).map_err(|reason| CheckpointError::Io {
                action: "rename to",
                path: out.into(),
                reason,
            })?;
            Ok(converted)
        },
    );
    if written.is_err() {
        // The first failure is what the user must know; leftovers are only untidy.
        let _ = clear(&staging);
    }
    written
}

fn write_model(
    source: &Path,
    staging: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, CheckpointError> {
    let ModelFiles { config, begin, ends, weights } = ModelFiles::open(source)?;
    let weights = &*weights;
    // Parameters are declared, not made: nothing of this is in memory.
    let decoder = Decoder::declare(&config, Weights::fresh(0, &Device::flex()));
    let mut reading = Reading::new(weights);
    let mut places = Vec::new();
    for declared in decoder.declared() {
        if let Some(stored) = reading.locate(&declared.name, &declared.shape) {
            places.push((declared.name.clone(), stored, declared.shape.clone()));
        }
    }
    reading.finish()?;

    fs::create_dir_all(staging).map_err(io_error("write", staging))?;
    write_json(&staging.join(CONFIG), &json!(config))?;
    if begin.is_some() || !ends.is_empty() {
        let tokens = json!({"bos_token_id": begin, "eos_token_id": ends});
        write_json(&staging.join(GENERATION), &tokens)?;
    }
    let tokenizer = write_tokenizer(source, staging)?;
    let chat_template = write_chat_template(source, staging)?;

    let sizes = places.iter().map(|(_, stored, shape)| byte_length(weights.dtype(stored), shape));
    let stored_bytes = sizes.map(|bytes| bytes as u64).sum();
    let shared = RefCell::new(Shared { progress, done: 0, all: stored_bytes, problem: None });
    let tensors = places.iter().map(|(name, stored, shape)| {
        let dtype = weights.dtype(stored);
        (name, Lazy { weights, stored, dtype, shape, shared: &shared })
    });
    let path = staging.join(WEIGHTS);
    let outcome = safetensors::serialize_to_file(tensors, None, &path);
    if let Some(problem) = shared.into_inner().problem {
        let path = weights.path().into();
        return Err(CheckpointError::Mismatch { path, problems: vec![problem] });
    }
    outcome.map_err(|error| match error {
        SafeTensorError::IoError(reason) => io_error("write", &path)(reason),
        reason => TensorFileError::Malformed { path: path.clone(), reason }.into(),
    })?;
    for path in [path.as_path(), staging] {
        File::open(path).and_then(|file| file.sync_all()).map_err(io_error("write", path))?;
    }
    Ok(Converted { config, stored_bytes, tokenizer, chat_template })
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |reason| CheckpointError::Io { action, path, reason }
}

fn write_json(path: &Path, value: &Value) -> Result<(), CheckpointError> {
    let text = format!("{value:#}\n");
    fs::write(path, text).map_err(io_error("write", path))
}

/// Copies or makes the tokenizer, and says whether there is one.
fn write_tokenizer(source: &Path, staging: &Path) -> Result<bool, CheckpointError> {
    let target = staging.join(TOKENIZER);
    if is_gguf(source) {
        let Some(json) = tokenizer_of_gguf(source)? else { return Ok(false) };
        fs::write(&target, json.to_string()).map_err(io_error("write", &target))?;
        return Ok(true);
    }
    copy(&source.join(TOKENIZER), &target)
}

fn copy(from: &Path, to: &Path) -> Result<bool, CheckpointError> {
    if !from.exists() {
        return Ok(false);
    }
    fs::copy(from, to).map_err(io_error("copy", from))?;
    Ok(true)
}

/// Keeps the chat template as text, and says whether there is one.
fn write_chat_template(source: &Path, staging: &Path) -> Result<bool, CheckpointError> {
    let target = staging.join(CHAT_TEMPLATE);
    let text = if is_gguf(source) {
        Gguf::open(source)?.find::<String>("tokenizer.chat_template")?
    } else if copy(&source.join(CHAT_TEMPLATE), &target)? {
        return Ok(true);
    } else {
        let settings = source.join("tokenizer_config.json");
        let json = fs::read(settings).ok().and_then(|text| serde_json::from_slice(&text).ok());
        json.and_then(|json: Value| Some(json.get("chat_template")?.as_str()?.to_owned()))
    };
    let Some(text) = text else { return Ok(false) };
    fs::write(&target, text).map_err(io_error("write", &target))?;
    Ok(true)
}

/// What all parameters share while they are written.
struct Shared<'a> {
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    all: u64,
    problem: Option<String>,
}

/// A parameter that is read when it is written.
struct Lazy<'a, 'b> {
    weights: &'a dyn WeightSource,
    stored: &'a str,
    dtype: Dtype,
    shape: &'a [usize],
    shared: &'a RefCell<Shared<'b>>,
}

fn byte_length(dtype: Dtype, shape: &[usize]) -> usize {
    let bytes = if dtype == Dtype::F32 { size_of::<f32>() } else { size_of::<f16>() };
    shape.iter().product::<usize>() * bytes
}

impl View for Lazy<'_, '_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data_len(&self) -> usize {
        byte_length(self.dtype, self.shape)
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // The library cannot be told that something is wrong, so the file is finished and thrown away.
        let values = match self.weights.floats(self.stored) {
            Ok(values) => values,
            Err(problem) => {
                self.shared.borrow_mut().problem.get_or_insert(problem);
                return Cow::Owned(vec![0; self.data_len()]);
            }
        };
        let values = values.into_iter();
        let bytes: Vec<u8> = match self.dtype {
            Dtype::F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
            Dtype::BF16 => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        };
        let mut shared = self.shared.borrow_mut();
        shared.done += bytes.len() as u64;
        let (done, all) = (shared.done, shared.all);
        (shared.progress)(done, all);
        Cow::Owned(bytes)
    }
}
