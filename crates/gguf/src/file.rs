//! An open file.

use crate::error::GgufError;
use crate::header::Header;
use crate::metadata::{FromValue, Metadata, MetadataError};
use crate::tensor::{Tensor, TensorInfo};
use hadal_files::{Action, file_error};
use memmap2::Mmap;
use std::path::{Path, PathBuf};

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    contents: Contents,
    header: Header,
}

#[derive(Debug)]
enum Contents {
    Mapped(Mmap),
    Held(Vec<u8>),
}

impl Contents {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Held(bytes) => bytes,
        }
    }
}

impl Gguf {
    /// Maps a file into memory and checks its whole header against its length.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = hadal_files::open(path)?;
        // SAFETY: the mapping is read-only. Should another process truncate the file meanwhile, the
        // kernel stops us; our own writer does not, it writes beside and renames.
        let map = unsafe { Mmap::map(&file) }.map_err(file_error(Action::Read, path))?;
        Self::new(path, Contents::Mapped(map))
    }

    /// Reads a file that is already in memory; `path` is its name in errors.
    ///
    /// ```
    /// use hadal_gguf::Gguf;
    /// use std::path::Path;
    ///
    /// // Nothing is believed: this file claims more tensors than its bytes can hold.
    /// let mut bytes = b"GGUF".to_vec();
    /// bytes.extend(3u32.to_le_bytes());
    /// bytes.extend(u64::MAX.to_le_bytes());
    /// bytes.extend(0u64.to_le_bytes());
    /// let refusal = Gguf::from_bytes(Path::new("hostile.gguf"), bytes).unwrap_err();
    /// assert!(refusal.to_string().contains("hostile.gguf"));
    /// ```
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::new(path, Contents::Held(bytes))
    }

    fn new(path: &Path, contents: Contents) -> Result<Self, GgufError> {
        let header = Header::parse(path, contents.bytes())?;
        Ok(Self { path: path.into(), contents, header })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the format.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// Tensors begin at multiples of this.
    pub fn alignment(&self) -> usize {
        self.header.alignment
    }

    /// Keys and values.
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// A value that may be absent, with errors that name the file.
    pub fn find<T: FromValue>(&self, key: &str) -> Result<Option<T>, GgufError> {
        self.named(self.metadata().find(key))
    }

    /// A value that must exist, with errors that name the file.
    pub fn get<T: FromValue>(&self, key: &str) -> Result<T, GgufError> {
        self.named(self.metadata().get(key))
    }

    /// The value for a block: [`Metadata::get_for_block`], with errors that name the file.
    pub fn get_for_block<T: FromValue>(&self, key: &str, block: usize) -> Result<T, GgufError> {
        self.named(self.metadata().get_for_block(key, block))
    }

    fn named<T>(&self, found: Result<T, MetadataError>) -> Result<T, GgufError> {
        found.map_err(|reason| GgufError::Metadata { path: self.path.clone(), reason })
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.header.tensors.iter().map(|placed| self.view(placed))
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_ok()
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, GgufError> {
        match self.position(name) {
            Ok(position) => Ok(self.view(&self.header.tensors[self.header.by_name[position]])),
            Err(_) => Err(GgufError::Missing { path: self.path.clone(), name: name.into() }),
        }
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        let tensors = &self.header.tensors;
        self.header.by_name.binary_search_by(|&index| tensors[index].0.name().cmp(name))
    }

    fn view<'a>(&'a self, (info, start): &'a (TensorInfo, usize)) -> Tensor<'a> {
        Tensor::new(&self.path, info, &self.contents.bytes()[*start..start + info.byte_length()])
    }
}
