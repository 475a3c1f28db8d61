//! Files to test with.

use hadal_gguf::{Gguf, GgufError};
use std::path::{Path, PathBuf};

/// A file of the reference implementation.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Reads a file from memory, and everything in it: none of this may panic.
pub(crate) fn read_all(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    let file = Gguf::from_bytes(Path::new("hostile.gguf"), bytes)?;
    for (key, _) in file.metadata().iter() {
        // Its value does not matter here, and errors describe it.
        let _ = file.get::<Vec<u32>>(key).map_err(|error| error.to_string());
    }
    for tensor in file.tensors() {
        assert_eq!(tensor.bytes().len(), tensor.info().byte_length());
        match tensor.to_f32() {
            Ok(values) => assert_eq!(values.len(), tensor.info().elements()),
            Err(GgufError::Unreadable { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(file.contains(tensor.info().name()));
    }
    Ok(file)
}

/// A file put together by hand.
#[derive(Clone)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    pub(crate) fn new(tensors: u64, entries: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(tensors).u64(entries)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn string(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// A key and the type of its value, which must follow.
    pub(crate) fn key(self, key: &str, kind: u32) -> Self {
        self.string(key.as_bytes()).u32(kind)
    }

    /// The description of a tensor.
    pub(crate) fn tensor(self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Self {
        let raw = self.string(name.as_bytes()).u32(dimensions.len() as u32);
        let raw = dimensions.iter().fold(raw, |raw, &size| raw.u64(size));
        raw.u32(kind).u64(offset)
    }

    /// Padding, and this many bytes of tensors.
    pub(crate) fn data(mut self, length: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + length, 0);
        self
    }
}
