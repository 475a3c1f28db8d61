//! Checkpoints: a directory with `config.json` and `model.safetensors`.

use crate::config::{ConfigError, ModelConfig};
use crate::decoder::Decoder;
use crate::import::{Imported, llama, llama_ignores, llama_name};
use crate::tensor_file::{TensorFile, TensorFileError};
use burn::tensor::Device;
use hadal_residual::Weights;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// A model read from a directory.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The model.
    pub decoder: Decoder,
    /// The token that begins a text, if the config names one.
    pub begin: Option<u32>,
    /// The tokens that end a text, as far as the config names them.
    pub ends: Vec<u32>,
}

/// Why a checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The config is not a config.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The config makes no model.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: ConfigError,
    },
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(#[from] TensorFileError),
    /// The weights are not those of the config.
    #[error("{} does not fit its config.json:{}", path.display(), list(problems))]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Every difference.
        problems: Vec<String>,
    },
}

/// One line for each problem, but not thousands.
fn list(problems: &[String]) -> String {
    const MOST: usize = 12;
    let mut text: String =
        problems.iter().take(MOST).map(|problem| format!("\n  {problem}")).collect();
    if problems.len() > MOST {
        text += &format!("\n  and {} more", problems.len() - MOST);
    }
    text
}

/// Reads a directory: one of ours, or a Hugging Face one of a known architecture.
pub fn load(directory: &Path, device: &Device) -> Result<Checkpoint, CheckpointError> {
    let Described { config, begin, ends, foreign } = describe(&directory.join(CONFIG))?;
    let file = TensorFile::open(&directory.join(WEIGHTS))?;

    let stored_name = |ours: &str| if foreign { llama_name(ours) } else { ours.to_owned() };
    let mut problems = Vec::new();
    let mut unused: HashSet<String> = file.names().into_iter().collect();
    let mut find = |ours: &str, shape: &[usize]| {
        let name = stored_name(ours);
        unused.remove(&name);
        match file.shape(&name) {
            None => problems.push(format!("missing: {name} {shape:?}")),
            Some(found) if found != shape => {
                problems.push(format!("wrong shape: {name} is {found:?}, not {shape:?}"));
            }
            Some(_) => match file.floats(&name) {
                Ok(values) => return Some(values),
                Err(TensorFileError::NotFinite { name, value, index, .. }) => {
                    problems.push(format!("`{name}` holds {value} at element {index}"));
                }
                Err(TensorFileError::Dtype { name, dtype, accepted, .. }) => {
                    problems.push(format!("`{name}` has dtype {dtype}, but it must be {accepted}"));
                }
                Err(error) => problems.push(error.to_string()),
            },
        }
        None
    };
    let decoder = Decoder::declare(&config, Weights::stored(&mut find, device));

    unused.retain(|name| !(foreign && llama_ignores(name, config.tie_embeddings)));
    let mut extra: Vec<_> = unused.into_iter().map(|name| format!("unexpected: {name}")).collect();
    extra.sort();
    problems.extend(extra);
    if problems.is_empty() {
        return Ok(Checkpoint { decoder, begin, ends });
    }
    Err(CheckpointError::Mismatch { path: file.path().into(), problems })
}

/// Reads the config alone, ours or a Hugging Face one, from a file or from a directory's
/// `config.json`.
pub fn read_config(path: &Path) -> Result<ModelConfig, CheckpointError> {
    let file = if path.is_dir() { path.join(CONFIG) } else { path.into() };
    Ok(describe(&file)?.config)
}

struct Described {
    config: ModelConfig,
    begin: Option<u32>,
    ends: Vec<u32>,
    foreign: bool,
}

/// No config is this long; something else was given by mistake.
const LONGEST_CONFIG: u64 = 1 << 20;

fn describe(path: &Path) -> Result<Described, CheckpointError> {
    let wrong = |reason: String| CheckpointError::Config { path: path.into(), reason };
    let io = |reason| CheckpointError::Io { action: "read", path: path.into(), reason };
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(LONGEST_CONFIG + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > LONGEST_CONFIG {
        return Err(wrong("this file is too long to be a config".into()));
    }
    let json: Value = serde_json::from_slice(&bytes)
        .map_err(|error| wrong(format!("this is not valid JSON: {error}")))?;
    if json["residual"].is_string() {
        return Err(wrong(format!(
            "residual is {}, but it must be an object, such as {{\"kind\": {}}}",
            json["residual"], json["residual"]
        )));
    }
    let described = if json["model_type"] == "hadal" {
        let config: ModelConfig = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("this is not a model config: {error}")))?;
        Described { config, begin: None, ends: Vec::new(), foreign: false }
    } else {
        let Imported { config, begin, ends } = llama(&json).map_err(wrong)?;
        Described { config, begin, ends, foreign: true }
    };
    described
        .config
        .check()
        .map_err(|reason| CheckpointError::Invalid { path: path.into(), reason })?;
    Ok(described)
}

/// Writes a directory so that a reader sees the old contents or the new ones, never a mixture: it is
/// written beside its place, flushed to the disk, and renamed. Other files in it stay.
pub fn save(decoder: &Decoder, directory: &Path) -> Result<(), CheckpointError> {
    let io = |reason| CheckpointError::Io { action: "write", path: directory.into(), reason };
    // A path such as `.` has no name beside which something could be written.
    let place = if directory.exists() {
        directory.canonicalize().map_err(io)?
    } else {
        std::path::absolute(directory).map_err(io)?
    };
    if place.exists() && !place.is_dir() {
        return Err(io(io::ErrorKind::NotADirectory.into()));
    }
    let staging = sibling(&place, "new");
    let written = clear(&staging)
        .and_then(|()| write_all(decoder, &staging))
        .and_then(|()| put_in_place(&staging, &place));
    if written.is_err() {
        // The first failure is what the user must know; leftovers are only untidy.
        let _ = fs::remove_dir_all(&staging);
    }
    written
}

/// Changes the config of a model directory and leaves its weights alone. A reader sees the old config or the new
/// one.
pub fn replace_config(directory: &Path, config: &ModelConfig) -> Result<(), CheckpointError> {
    let path = directory.join(CONFIG);
    let beside = sibling(&path, "new");
    let io = |reason| CheckpointError::Io { action: "write", path: path.clone(), reason };
    let written = write_config(config, &beside)
        .and_then(|()| fs::rename(&beside, &path).map_err(io))
        .and_then(|()| File::open(directory).and_then(|place| place.sync_all()).map_err(io));
    if written.is_err() {
        // The first failure is what the user must know; leftovers are only untidy.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn write_config(config: &ModelConfig, path: &Path) -> Result<(), CheckpointError> {
    let json = serde_json::to_string_pretty(config).map_err(|error| CheckpointError::Config {
        path: path.into(),
        reason: error.to_string(),
    })?;
    File::create(path)
        .and_then(|mut file| file.write_all(json.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|reason| CheckpointError::Io { action: "write", path: path.into(), reason })
}

fn sibling(directory: &Path, suffix: &str) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{suffix}-{}", std::process::id()));
    directory.with_file_name(name)
}

/// Removes what a crashed process of the same number may have left.
fn clear(directory: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(directory) {
        Err(reason) if reason.kind() != io::ErrorKind::NotFound => {
            Err(CheckpointError::Io { action: "write", path: directory.into(), reason })
        }
        _ => Ok(()),
    }
}

fn write_all(decoder: &Decoder, staging: &Path) -> Result<(), CheckpointError> {
    let write = |path: &Path| {
        let path = path.to_owned();
        move |reason| CheckpointError::Io { action: "write", path, reason }
    };
    fs::create_dir_all(staging).map_err(write(staging))?;

    write_config(decoder.config(), &staging.join(CONFIG))?;

    let weights = staging.join(WEIGHTS);
    let malformed = |reason| TensorFileError::Malformed { path: weights.clone(), reason };
    let tensors: Vec<(String, Vec<u8>)> = decoder
        .parameters()
        .into_iter()
        .map(|(name, values)| (name, values.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let mut views = Vec::new();
    for (name, bytes) in &tensors {
        let declared = decoder.declared().iter().find(|declared| declared.name == *name);
        let shape = declared.map(|declared| declared.shape.clone()).unwrap_or_default();
        views.push((name, TensorView::new(Dtype::F32, shape, bytes).map_err(malformed)?));
    }
    safetensors::serialize_to_file(views, None, &weights).map_err(|error| match error {
        SafeTensorError::IoError(reason) => write(&weights)(reason),
        other => malformed(other).into(),
    })?;
    for path in [&weights, &staging.to_owned()] {
        File::open(path).and_then(|file| file.sync_all()).map_err(write(path))?;
    }
    Ok(())
}

/// Renames the staging directory to its place. An old directory steps aside first and is removed
/// last, so that nothing is lost at any point.
fn put_in_place(staging: &Path, directory: &Path) -> Result<(), CheckpointError> {
    let rename = |from: &Path, to: &Path| {
        fs::rename(from, to).map_err(|reason| CheckpointError::Io {
            action: "rename to",
            path: to.into(),
            reason,
        })
    };
    if !directory.exists() {
        return rename(staging, directory);
    }
    let old = sibling(directory, "old");
    clear(&old)?;
    rename(directory, &old)?;
    if let Err(error) = rename(staging, directory) {
        rename(&old, directory)?;
        return Err(error);
    }
    for entry in fs::read_dir(&old).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name != CONFIG && name != WEIGHTS {
            rename(&entry.path(), &directory.join(name))?;
        }
    }
    // The new checkpoint is in place; an old one that cannot be removed does no harm.
    let _ = fs::remove_dir_all(&old);
    Ok(())
}
