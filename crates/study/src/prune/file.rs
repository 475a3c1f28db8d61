//! The files of a model, what they are and what is in them.

use super::error::{PruneError, unfit};
use hadal_files::{pretty_json, write_whole};
use hadal_model::CheckpointError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub(super) const CONFIG: &str = "config.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// What kind of model it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A directory of ours.
    Hadal,
    /// A directory of Hugging Face's.
    HuggingFace,
    /// A file of llama.cpp's.
    Gguf,
}

/// A file and what was in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHash {
    /// Its name within the model's directory.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// blake3 of its contents.
    pub blake3: String,
}

/// A model on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The directory, or the GGUF file.
    pub path: PathBuf,
    /// What it is.
    pub kind: SourceKind,
    /// What decides its numbers: config and weights.
    pub files: Vec<FileHash>,
}

impl Source {
    /// A name for its cut, as `hadal prune apply --out` wants it: a file of a file, a directory of a directory.
    pub fn cut_name(&self) -> &'static str {
        match self.kind {
            SourceKind::Gguf => "smaller.gguf",
            SourceKind::Hadal | SourceKind::HuggingFace => "smaller",
        }
    }

    /// Compares its files with their hashes in a manifest, or those of their first use: a cut must not make damage look
    /// whole.
    pub(crate) fn verify(&self) -> Result<(), PruneError> {
        let place = |file: &FileHash| match self.kind {
            SourceKind::Gguf => self.path.clone(),
            _ => self.path.join(&file.name),
        };
        let mut files = self.files.iter();
        let verified = files.try_for_each(|file| hadal_files::verify(&place(file)));
        Ok(verified.map_err(CheckpointError::from)?)
    }

    /// What kind of model is there.
    pub(super) fn kind_of(path: &Path) -> Result<SourceKind, PruneError> {
        Ok(find(path)?.1)
    }

    /// Finds a model: a directory, a run's finished model, or a GGUF file. Hashes all of it.
    pub fn open(path: &Path) -> Result<Self, PruneError> {
        let (path, kind) = find(path)?;
        let files = match kind {
            SourceKind::Gguf => vec![hash(&path)?],
            _ => {
                let mut names = vec![CONFIG.to_owned()];
                names.extend(weight_files(&path)?);
                if path.join(INDEX).is_file() {
                    names.push(INDEX.into());
                }
                names.iter().map(|name| hash(&path.join(name))).collect::<Result<_, _>>()?
            }
        };
        let path = std::path::absolute(&path).unwrap_or(path);
        Ok(Self { path, kind, files })
    }

    /// Refuses a model whose files have changed since the other look at it.
    pub(super) fn same_as(&self, other: &Self, since: &'static str) -> Result<(), PruneError> {
        let differs = |file: &&FileHash| !other.files.contains(file);
        let changed = self
            .files
            .iter()
            .find(differs)
            .or(other.files.iter().find(|f| !self.files.contains(f)));
        match changed {
            None => Ok(()),
            Some(file) => Err(PruneError::Changed { path: self.place(&file.name), since }),
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        match self.kind {
            SourceKind::Gguf => self.path.clone(),
            _ => self.path.join(name),
        }
    }
}

fn find(path: &Path) -> Result<(PathBuf, SourceKind), PruneError> {
    if path.is_file() {
        return match path.extension().is_some_and(|extension| extension == "gguf") {
            true => Ok((path.into(), SourceKind::Gguf)),
            false => Err(unfit(path, "this is no model; name a model directory or a .gguf file")),
        };
    }
    let finished = path.join("model");
    let path = if finished.join(CONFIG).is_file() { finished } else { path.into() };
    if !path.join(CONFIG).is_file() {
        return Err(unfit(
            &path,
            "there is no config.json; name a model directory or a .gguf file",
        ));
    }
    let json = read_json(&path.join(CONFIG))?;
    let kind = match json["model_type"] == "hadal" {
        true => SourceKind::Hadal,
        false => SourceKind::HuggingFace,
    };
    Ok((path, kind))
}

/// The files that hold a directory's tensors, in order.
pub(super) fn weight_files(directory: &Path) -> Result<Vec<String>, PruneError> {
    let index = directory.join(INDEX);
    if !index.is_file() {
        return match directory.join(WEIGHTS).is_file() {
            true => Ok(vec![WEIGHTS.into()]),
            false => Err(unfit(directory, format!("it holds neither {WEIGHTS} nor {INDEX}"))),
        };
    }
    let json = read_json(&index)?;
    let map = json["weight_map"].as_object();
    let map = map.ok_or_else(|| unfit(&index, "it has no weight_map"))?;
    let names =
        map.values().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    let mut names = names
        .filter(|names| !names.is_empty())
        .ok_or_else(|| unfit(&index, "its weight_map does not name a file for each tensor"))?;
    names.sort();
    names.dedup();
    // The author of the index does not decide where in the file system we read.
    let strange =
        |name: &&String| Path::new(name).file_name().is_none_or(|file| file != name.as_str());
    if let Some(name) = names.iter().find(strange) {
        return Err(unfit(
            &index,
            format!("it names `{name}`, which is not a file of the directory"),
        ));
    }
    Ok(names)
}

/// Reads a JSON file of at most some megabytes.
pub(super) fn read_json(path: &Path) -> Result<Value, PruneError> {
    /// The index of the largest model is a few megabytes long.
    const LONGEST: u64 = 64 << 20;
    let text = hadal_files::read_at_most(path, LONGEST)?;
    serde_json::from_slice(&text)
        .map_err(|error| PruneError::Malformed { path: path.into(), reason: error.to_string() })
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), PruneError> {
    Ok(write_whole(path, pretty_json(path, value)? + "\n")?)
}

/// The name, length and blake3 of a file.
pub(super) fn hash(path: &Path) -> Result<FileHash, PruneError> {
    let (blake3, bytes) = hadal_files::hash(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(FileHash { name, bytes, blake3 })
}
