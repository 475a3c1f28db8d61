//! Copying `.safetensors` tensor by tensor: bytes are moved from a mapped file to a new one and never held.

use super::error::PruneError;
use hadal_files::{Action, WholeFile, file_error};
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What becomes of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    /// It gets this name.
    Kept(String),
    /// It gets this name, and zeros for numbers.
    Silent(String),
    /// It is gone.
    Dropped,
}

/// An open file of tensors.
pub(super) struct Shard {
    path: PathBuf,
    map: Mmap,
    /// Where tensor bytes begin.
    data: usize,
    metadata: Metadata,
}

impl Shard {
    pub(super) fn open(path: &Path) -> Result<Self, PruneError> {
        let file = hadal_files::open(path)?;
        // SAFETY: the mapping is read-only. Should another process truncate the file meanwhile, the
        // kernel stops us.
        let map = unsafe { Mmap::map(&file) }.map_err(file_error(Action::Read, path))?;
        let (header, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|reason| PruneError::Tensors { path: path.into(), reason })?;
        Ok(Self { path: path.into(), data: header + size_of::<u64>(), map, metadata })
    }

    /// Names and descriptions in the order of the file.
    fn tensors(&self) -> Vec<(String, &TensorInfo)> {
        let mut tensors: Vec<_> = self.metadata.tensors().into_iter().collect();
        tensors.sort_by(|(a, x), (b, y)| x.data_offsets.cmp(&y.data_offsets).then(a.cmp(b)));
        tensors
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.tensors().into_iter().map(|(name, _)| name).collect()
    }

    /// Writes a copy in which each tensor has met its fate, and returns the new names with their lengths in bytes.
    /// Writes nothing if no tensor is left.
    pub(super) fn copy(
        &self,
        to: &Path,
        fate: impl Fn(&str) -> Fate,
    ) -> Result<Vec<(String, u64)>, PruneError> {
        let mut header = Map::new();
        if let Some(about) = self.metadata.metadata() {
            header.insert("__metadata__".into(), json!(about));
        }
        let (mut copied, mut offset) = (Vec::new(), 0);
        for (name, info) in self.tensors() {
            let (name, silent) = match fate(&name) {
                Fate::Kept(name) => (name, false),
                Fate::Silent(name) => (name, true),
                Fate::Dropped => continue,
            };
            let (from, end) = info.data_offsets;
            let length = end - from;
            let mut entry = serde_json::to_value(info).map_err(|error| PruneError::Malformed {
                path: self.path.clone(),
                reason: error.to_string(),
            })?;
            entry["data_offsets"] = json!([offset, offset + length]);
            header.insert(name.clone(), entry);
            copied.push((name, from, length, silent));
            offset += length;
        }
        if copied.is_empty() {
            return Ok(Vec::new());
        }
        let mut out = WholeFile::create(to)?;
        self.write(&mut out, &header, &copied).map_err(file_error(Action::Write, to))?;
        out.finish()?;
        Ok(copied.into_iter().map(|(name, _, length, _)| (name, length as u64)).collect())
    }

    fn write(
        &self,
        out: &mut WholeFile,
        header: &Map<String, Value>,
        tensors: &[(String, usize, usize, bool)],
    ) -> io::Result<()> {
        let mut text = serde_json::to_vec(header)?;
        // The format requires tensors to begin at a multiple of eight.
        text.resize(text.len().next_multiple_of(8), b' ');
        out.write_all(&(text.len() as u64).to_le_bytes())?;
        out.write_all(&text)?;
        for &(_, from, length, silent) in tensors {
            if silent {
                io::copy(&mut io::repeat(0).take(length as u64), out)?;
                continue;
            }
            let bytes = self.map.get(self.data + from..self.data + from + length);
            let bytes = bytes.ok_or_else(|| {
                io::Error::other(format!("{} ends before its tensors do", self.path.display()))
            })?;
            out.write_all(bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView};
    use std::fs;

    fn file(directory: &Path) -> PathBuf {
        let path = directory.join("in.safetensors");
        let bytes: Vec<u8> = (0..24).collect();
        let view = |dtype, shape: &[usize], range: std::ops::Range<usize>| {
            TensorView::new(dtype, shape.to_vec(), &bytes[range]).unwrap()
        };
        let tensors = vec![
            ("a", view(Dtype::F32, &[2], 0..8)),
            ("b", view(Dtype::BF16, &[3, 1], 8..14)),
            ("c", view(Dtype::I8, &[2, 5], 14..24)),
        ];
        let about = [("format".to_owned(), "pt".to_owned())].into();
        safetensors::serialize_to_file(tensors, Some(about), &path).unwrap();
        path
    }

    #[test]
    fn a_copy_that_drops_nothing_holds_the_same_tensors() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (file(directory.path()), directory.path().join("out.safetensors"));
        Shard::open(&from).unwrap().copy(&to, |name| Fate::Kept(name.into())).unwrap();
        let (old, new) = (fs::read(&from).unwrap(), fs::read(&to).unwrap());
        let (old, new) =
            (SafeTensors::deserialize(&old).unwrap(), SafeTensors::deserialize(&new).unwrap());
        for name in ["a", "b", "c"] {
            assert_eq!(old.tensor(name).unwrap(), new.tensor(name).unwrap());
        }
        assert_eq!(
            SafeTensors::read_metadata(&fs::read(&to).unwrap())
                .unwrap()
                .1
                .metadata()
                .as_ref()
                .unwrap()["format"],
            "pt"
        );
    }

    #[test]
    fn tensors_are_renamed_silenced_and_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (file(directory.path()), directory.path().join("out.safetensors"));
        let fate = |name: &str| match name {
            "a" => Fate::Dropped,
            "b" => Fate::Silent("x".into()),
            _ => Fate::Kept("y".into()),
        };
        let copied = Shard::open(&from).unwrap().copy(&to, fate).unwrap();
        assert_eq!(copied.iter().map(|(_, bytes)| bytes).sum::<u64>(), 16);
        let bytes = fs::read(&to).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.len(), 2);
        assert_eq!(tensors.tensor("x").unwrap().data(), [0; 6]);
        assert_eq!(tensors.tensor("y").unwrap().data(), (14..24).collect::<Vec<u8>>());
        assert_eq!(tensors.tensor("x").unwrap().dtype(), Dtype::BF16);
    }

    #[test]
    fn what_holds_nothing_more_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("out.safetensors");
        let shard = Shard::open(&file(directory.path())).unwrap();
        assert!(shard.copy(&to, |_| Fate::Dropped).unwrap().is_empty());
        assert!(!to.exists());
    }
}
