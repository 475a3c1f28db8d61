//! A model's parameters as they are on disk, by their headers alone.

use crate::checkpoint::CheckpointError;
use crate::model_files::ModelFiles;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What is on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// Bytes of the files that hold the parameters.
    pub bytes: u64,
    /// Parameters of each type, the most frequent first.
    pub types: Vec<(String, u64)>,
}

impl Stored {
    /// Looks at a model's files.
    pub fn of(path: &Path) -> Result<Self, CheckpointError> {
        let weights = ModelFiles::open(path)?.weights;
        let length =
            |file: &std::path::PathBuf| std::fs::metadata(file).map_or(0, |file| file.len());
        let bytes = weights.files().iter().map(length).sum();
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for name in weights.names() {
            let shape = weights.shape(&name).unwrap_or_default();
            let elements =
                shape.iter().fold(1u64, |all, &length| all.saturating_mul(length as u64));
            let count = counts.entry(weights.stored_type(&name)).or_default();
            *count = count.saturating_add(elements);
        }
        let mut types: Vec<(String, u64)> = counts.into_iter().collect();
        types.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Ok(Self { bytes, types })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_bytes_are_those_of_the_files() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
        let stories = Stored::of(&models.join("models/stories260K")).unwrap();
        assert_eq!(stories.types, [("f32".into(), 260_032)]);
        assert!(stories.bytes > 4 * 260_032);
        let half = Stored::of(&models.join("golden-hf/llama-bf16")).unwrap();
        assert_eq!(half.types[0].0, "bf16");
    }
}
