//! Checkpoints: a directory with `config.json` and `model.safetensors`.

use crate::config::{ConfigError, ModelConfig};
use crate::decoder::Decoder;
use crate::model_files::{ModelFiles, Reading, describe_file, is_gguf, model_at};
use crate::tensor_file::{TensorFileError, write_tensors};
use burn::tensor::Device;
use hadal_gguf::GgufError;
use hadal_residual::Weights;
use hadal_tokenizer::TokenizerError;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(crate) use hadal_tokenizer::CONFIG;
pub(crate) const WEIGHTS: &str = "model.safetensors";

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
    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The tokenizer of a GGUF file cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A model would be written over something.
    #[error("{} exists already; name another directory, or remove it", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// The weights are not those of the config.
    #[error("{} does not fit its config:{}", path.display(), list(problems))]
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

/// Reads a model: a directory of ours, a Hugging Face one of a known family, or a GGUF file.
pub fn load(path: &Path, device: &Device) -> Result<Checkpoint, CheckpointError> {
    let ModelFiles { config, begin, ends, weights } = ModelFiles::open(path)?;
    let mut reading = Reading::new(&*weights);
    let mut find = |name: &str, shape: &[usize]| reading.floats(name, shape);
    let decoder = Decoder::declare(&config, Weights::stored(&mut find, device));
    reading.finish()?;
    Ok(Checkpoint { decoder, begin, ends })
}

/// Reads the config alone: from a `config.json`, or from whatever [`load`] reads.
pub fn read_config(path: &Path) -> Result<ModelConfig, CheckpointError> {
    let path = &model_at(path);
    if is_gguf(path) {
        return Ok(ModelFiles::open(path)?.config);
    }
    let file = if path.is_dir() { path.join(CONFIG) } else { path.into() };
    Ok(describe_file(&file)?.0.config)
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

pub(crate) fn sibling(directory: &Path, suffix: &str) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{suffix}-{}", std::process::id()));
    directory.with_file_name(name)
}

/// Removes what a crashed process of the same number may have left.
pub(crate) fn clear(directory: &Path) -> Result<(), CheckpointError> {
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
    write_tensors(views, None, &weights).map_err(|error| match error {
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
