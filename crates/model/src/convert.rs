//! Writes any readable model as one of our directories, without ever holding all of it in memory.

use crate::checkpoint::{CONFIG, CheckpointError, WEIGHTS};
use crate::config::ModelConfig;
use crate::model_files::{
    CHAT_TEMPLATE, GENERATION, ModelFiles, Place, TOKENIZER, chat_template, is_gguf, model_at,
};
use crate::streamed::{Streamed, write_streamed};
use hadal_files::{StagedDirectory, Verification, write_manifest, write_whole};
use hadal_tokenizer::{read_tokenizer, tokenizer_of_gguf};
use serde_json::{Value, json};
use std::path::Path;

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

/// Writes the model at `source` as one of our directories, one parameter at a time. Elements of f16 and bf16 keep their
/// type; quantised ones become f32. `progress` receives the number of bytes written and their total.
pub fn convert(
    source: &Path,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, CheckpointError> {
    if out.exists() {
        return Err(CheckpointError::Exists { path: out.into() });
    }
    let staged = StagedDirectory::create(out)?;
    let converted = write_model(source, staged.path(), progress)?;
    write_manifest(staged.path())?;
    staged.finish()?;
    Ok(converted)
}

fn write_model(
    source: &Path,
    staging: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, CheckpointError> {
    let source = &model_at(source);
    let files = ModelFiles::open(source)?;
    let places = files.places()?;
    let ModelFiles { config, begin, ends, weights } = files;
    let verification = Verification::start(weights.files());

    write_json(&staging.join(CONFIG), &json!(config))?;
    if begin.is_some() || !ends.is_empty() {
        let tokens = json!({"bos_token_id": begin, "eos_token_id": ends});
        write_json(&staging.join(GENERATION), &tokens)?;
    }
    let tokenizer = write_tokenizer(source, staging)?;
    let template = chat_template(source)?;
    if let Some(text) = &template {
        let path = staging.join(CHAT_TEMPLATE);
        write_whole(&path, text)?;
    }

    let streamed = |Place { ours, stored, shape }: &Place| Streamed {
        name: ours.clone(),
        dtype: weights.dtype(stored),
        shape: shape.clone(),
    };
    let tensors: Vec<Streamed> = places.iter().map(streamed).collect();
    let stored_bytes = tensors.iter().map(|tensor| tensor.bytes() as u64).sum();
    let path = staging.join(WEIGHTS);
    let mut read = |place: usize| weights.floats(&places[place].stored);
    let written = write_streamed(&path, &tensors, None, &mut read, progress);
    // Damage explains whatever else is wrong.
    verification.finish()?;
    written.map_err(|error| error.into_error(weights.path(), &path))?;
    Ok(Converted { config, stored_bytes, tokenizer, chat_template: template.is_some() })
}

fn write_json(path: &Path, value: &Value) -> Result<(), CheckpointError> {
    Ok(write_whole(path, format!("{value:#}\n"))?)
}

/// Copies or makes the tokenizer, and returns whether there is one.
fn write_tokenizer(source: &Path, staging: &Path) -> Result<bool, CheckpointError> {
    let target = staging.join(TOKENIZER);
    if is_gguf(source) {
        let Some(json) = tokenizer_of_gguf(source)? else { return Ok(false) };
        write_whole(&target, json.to_string())?;
        return Ok(true);
    }
    let from = source.join(TOKENIZER);
    if !from.exists() {
        return Ok(false);
    }
    write_whole(&target, read_tokenizer(&from)?)?;
    Ok(true)
}
