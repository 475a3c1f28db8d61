//! Checkpoints: a directory with `config.json`, `model.safetensors` and `manifest.json`, the hashes of all files.

use crate::config::{ConfigError, ModelConfig};
use crate::decoder::Decoder;
use crate::memory::{MemoryError, Need, check, is_ours};
use crate::model_files::{ModelFiles, Reading, describe_file, is_gguf, model_at};
use crate::not_a_model::refuse_others;
use crate::tensor_file::{TensorFileError, write_tensors};
use burn::tensor::Device;
use hadal_files::{
    Action, FileError, HashError, Hashes, MANIFEST, StagedDirectory, Verification, file_error,
    pretty_json, read_manifest, write_manifest_with, write_whole,
};
use hadal_gguf::GgufError;
use hadal_residual::Weights;
use hadal_tokenizer::{ChatError, TokenizerError};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView};
use std::ffi::OsStr;
use std::io;
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
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum CheckpointError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not what was written.
    #[error(transparent)]
    Damaged(#[from] HashError),
    /// The config is not a config.
    #[error("{}: {reason}", path.display())]
    Config { path: PathBuf, reason: String },
    /// The config makes no model.
    #[error("{}: {reason}", path.display())]
    Invalid { path: PathBuf, reason: ConfigError },
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(#[from] TensorFileError),
    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The tokenizer of a GGUF file cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be read.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Something else than a model.
    #[error(
        "{} is no model but {what}. A model is a directory with config.json and model.safetensors, the folder of a \
         finished run, or a .gguf file",
        path.display()
    )]
    NotAModel { path: PathBuf, what: String },
    /// It does not fit into memory.
    #[error("{}: {reason}", path.display())]
    Memory { path: PathBuf, reason: MemoryError },
    /// A model would be written over something.
    #[error("{} exists already; name another directory, or remove it", path.display())]
    Exists { path: PathBuf },
    /// The weights are not those of the config.
    #[error("{} does not fit its config:{}", path.display(), list(problems))]
    Mismatch { path: PathBuf, problems: Vec<String> },
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

/// Reads a model: one of our directories, a Hugging Face one of a known family, or a GGUF file. What does not fit into
/// memory is refused before any of it is read; `HADAL_MEMORY` names another size, or `any`.
///
/// ```
/// use hadal_model::{Device, Pass, Tokens, load};
/// use std::path::Path;
///
/// let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/mgr-competitive");
/// let model = load(&golden, &Device::flex())?;
/// let logits = model.decoder.logits(&Tokens::row(&[1, 2, 3]), Pass::default())?;
/// assert_eq!(logits.dims(), [1, 3, 41]); // batch, time, vocabulary
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load(path: &Path, device: &Device) -> Result<Checkpoint, CheckpointError> {
    load_for(path, device, 0)
}

/// The same, if there is memory for the model and for the keys and values of a text of this many tokens.
pub fn load_for(
    path: &Path,
    device: &Device,
    tokens: usize,
) -> Result<Checkpoint, CheckpointError> {
    let ModelFiles { config, begin, ends, weights } = ModelFiles::open(path)?;
    if is_ours(device) {
        let need = Need::of(&*weights, &config, tokens);
        check(&need).map_err(|reason| CheckpointError::Memory { path: path.into(), reason })?;
    }
    // Hashing takes about as long as reading, so both go on at once.
    let verification = Verification::start(weights.files());
    let mut reading = Reading::new(&*weights);
    let mut find = |name: &str, shape: &[usize]| reading.floats(name, shape);
    let decoder = Decoder::declare(&config, Weights::stored(&mut find, device));
    let read = reading.finish();
    // Damage explains whatever else is wrong.
    verification.finish()?;
    read?;
    Ok(Checkpoint { decoder, begin, ends })
}

/// Reads the config alone: from a `config.json`, or from whatever [`load`] reads.
pub fn read_config(path: &Path) -> Result<ModelConfig, CheckpointError> {
    let path = &model_at(path);
    if is_gguf(path) {
        return Ok(ModelFiles::open(path)?.config);
    }
    if path.extension().is_none_or(|extension| extension != "json") {
        refuse_others(path)?;
    }
    let file = if path.is_dir() { path.join(CONFIG) } else { path.into() };
    Ok(describe_file(&file)?.0.config)
}

/// Writes a directory so that a reader sees the old contents or the new ones, never a mixture: it is
/// written beside its place, flushed to the disk, and renamed. Other files in it stay.
pub fn save(decoder: &Decoder, directory: &Path) -> Result<(), CheckpointError> {
    save_with(decoder, directory, &[])
}

/// The same with more files, by name, which are in the directory from its first moment on.
pub fn save_with(
    decoder: &Decoder,
    directory: &Path,
    more: &[(&str, &[u8])],
) -> Result<(), CheckpointError> {
    replace(directory, |staging| {
        for (name, content) in more {
            write_whole(&staging.join(name), content)?;
        }
        write_config(decoder.config(), &staging.join(CONFIG))?;
        write_weights(decoder, &staging.join(WEIGHTS))
    })
}

/// Changes the config of a model directory and leaves its weights alone. A reader sees the old config or the new
/// one.
pub fn replace_config(directory: &Path, config: &ModelConfig) -> Result<(), CheckpointError> {
    replace(directory, |staging| write_config(config, &staging.join(CONFIG)))
}

/// Writes some files of a directory, all at once. The others stay, with the hashes that they had.
fn replace(
    directory: &Path,
    write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let io = file_error(Action::Write, directory);
    // A path such as `.` has no name beside which something could be written.
    let place = if directory.exists() {
        directory.canonicalize().map_err(&io)?
    } else {
        std::path::absolute(directory).map_err(&io)?
    };
    if place.exists() && !place.is_dir() {
        return Err(io(io::ErrorKind::NotADirectory.into()).into());
    }
    let staged = StagedDirectory::create(&place)?;
    write(staged.path())?;
    // A damaged manifest is no reason not to write a new model.
    let mut kept: Hashes = read_manifest(&place).ok().flatten().unwrap_or_default();
    kept.retain(|name, _| place.join(name).is_file());
    write_manifest_with(staged.path(), kept)?;
    Ok(staged.replace(|name| name != OsStr::new(MANIFEST))?)
}

fn write_config(config: &ModelConfig, path: &Path) -> Result<(), CheckpointError> {
    Ok(write_whole(path, pretty_json(path, config)?)?)
}

fn write_weights(decoder: &Decoder, path: &Path) -> Result<(), CheckpointError> {
    let malformed = |reason| TensorFileError::Malformed { path: path.into(), reason };
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
    write_tensors(views, None, path).map_err(|error| match error {
        SafeTensorError::IoError(reason) => file_error(Action::Write, path)(reason).into(),
        other => malformed(other).into(),
    })
}
