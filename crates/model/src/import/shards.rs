//! `model.safetensors`, or the files that `model.safetensors.index.json` names.

use super::family;
use super::{Reason, WeightSource};
use crate::checkpoint::{CheckpointError, WEIGHTS};
use crate::tensor_file::{TensorFile, TensorFileError};
use hadal_files::{read_at_most, verify};
use safetensors::tensor::Dtype;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Component, Path, PathBuf};

const INDEX: &str = "model.safetensors.index.json";
/// The index of the largest models has some hundred thousand lines.
const LONGEST_INDEX: u64 = 64 << 20;

/// The naming scheme of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// Ours.
    Ours,
    /// Hugging Face's, for a model that is tied or not.
    HuggingFace {
        /// Whether the head is the embedding.
        tied: bool,
    },
}

/// The files of one model.
#[derive(Debug)]
pub(crate) struct Shards {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// Which file holds a tensor.
    places: HashMap<String, usize>,
    naming: Naming,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Shards {
    /// Maps the files and checks their headers.
    pub(crate) fn open(directory: &Path, naming: Naming) -> Result<Self, CheckpointError> {
        let single = directory.join(WEIGHTS);
        let index = directory.join(INDEX);
        if single.exists() || !index.exists() {
            if !single.exists() && directory.join("pytorch_model.bin").exists() {
                return Err(CheckpointError::Config {
                    path: directory.into(),
                    reason: "it holds pytorch_model.bin alone, which can run code when it is read; take the \
                             model's safetensors, or convert it with transformers' save_pretrained"
                        .into(),
                });
            }
            let file = TensorFile::open(&single)?;
            let places = file.names().into_iter().map(|name| (name, 0)).collect();
            return Ok(Self { path: single, files: vec![file], places, naming });
        }
        let Index { weight_map } = read_index(&index)?;
        let wrong = |reason: String| CheckpointError::Config { path: index.clone(), reason };
        let names: BTreeSet<&String> = weight_map.values().collect();
        if let Some(name) = names.iter().find(|name| !is_plain(name)) {
            return Err(wrong(format!("it names the file {name:?}, but files must lie beside it")));
        }
        let missing: Vec<&str> = names
            .iter()
            .filter(|name| !directory.join(name).is_file())
            .map(|name| name.as_str())
            .collect();
        if !missing.is_empty() {
            return Err(wrong(format!(
                "{} of the {} files that it names are missing: {}; download them again",
                missing.len(),
                names.len(),
                missing.join(", ")
            )));
        }
        let mut files = Vec::new();
        let mut places = HashMap::new();
        for (place, name) in names.into_iter().enumerate() {
            let file = TensorFile::open(&directory.join(name))?;
            for tensor in file.names() {
                if weight_map.get(&tensor) != Some(name) {
                    return Err(wrong(format!(
                        "it does not say that {name} holds {tensor}; index and files belong to different models"
                    )));
                }
                places.insert(tensor, place);
            }
            files.push(file);
        }
        match weight_map.keys().find(|tensor| !places.contains_key(*tensor)) {
            Some(tensor) => Err(wrong(format!(
                "it says that {} holds {tensor}, but it does not; index and files belong to different models",
                weight_map[tensor]
            ))),
            None => Ok(Self { path: index, files, places, naming }),
        }
    }

    fn file(&self, name: &str) -> Option<&TensorFile> {
        self.places.get(name).map(|&place| &self.files[place])
    }
}

fn read_index(path: &Path) -> Result<Index, CheckpointError> {
    let wrong = |reason: String| CheckpointError::Config { path: path.into(), reason };
    let text = match read_at_most(path, LONGEST_INDEX) {
        Err(error) if error.source.kind() == io::ErrorKind::FileTooLarge => {
            return Err(wrong("this file is too long to be an index".into()));
        }
        other => other?,
    };
    verify(path)?;
    serde_json::from_slice(&text)
        .map_err(|error| wrong(format!("this is not an index of safetensors files: {error}")))
}

/// A name without any path: an index must not lead to other places.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
        && !name.contains('\\')
}

impl WeightSource for Shards {
    fn path(&self) -> &Path {
        &self.path
    }

    fn name_of(&self, ours: &str) -> String {
        match self.naming {
            Naming::Ours => ours.into(),
            Naming::HuggingFace { .. } => family::name_of(ours),
        }
    }

    fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }

    fn may_ignore(&self, name: &str) -> bool {
        match self.naming {
            Naming::Ours => false,
            Naming::HuggingFace { tied } => family::may_ignore(name, tied),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.iter().map(|file| file.path().to_owned()).collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.file(name)?.shape(name).map(<[usize]>::to_vec)
    }

    fn dtype(&self, name: &str) -> Dtype {
        match self.file(name).and_then(|file| file.dtype(name)) {
            Some(dtype @ (Dtype::F16 | Dtype::BF16)) => dtype,
            _ => Dtype::F32,
        }
    }

    fn stored_type(&self, name: &str) -> String {
        let dtype = self.file(name).and_then(|file| file.dtype(name));
        dtype.map_or_else(|| "unknown".into(), |dtype| dtype.to_string().to_lowercase())
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, Reason> {
        let Some(file) = self.file(name) else { return Err(format!("missing: {name}")) };
        file.floats(name).map_err(|error| match error {
            TensorFileError::NotFinite { name, value, index, .. } => {
                format!("`{name}` holds {value} at element {index}")
            }
            TensorFileError::Dtype { name, dtype, accepted, .. } => {
                format!("`{name}` has dtype {dtype}, but it must be {accepted}")
            }
            other => other.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        assert!(is_plain("model-00001-of-00002.safetensors"));
        for name in ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "./a", "a/"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
