//! Reading `.safetensors`: memory-mapped, checked, converted to f32 one tensor at a time.

use hadal_files::{Action, FileError, file_error, point};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use safetensors::{SafeTensorError, SafeTensors};
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};

/// An open file of named tensors.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    map: Mmap,
    /// Where tensor bytes begin.
    data: usize,
    metadata: Metadata,
}

/// Writes named tensors. The library writes through a temporary file with private permissions; the result gets those of
/// any other new file.
pub fn write_tensors<S: AsRef<str> + Ord + Display, V: View>(
    tensors: impl IntoIterator<Item = (S, V)>,
    about: Option<HashMap<String, String>>,
    path: &Path,
) -> Result<(), SafeTensorError> {
    point(Action::Write, path).map_err(|error| SafeTensorError::IoError(error.source))?;
    let permissions = File::create(path)?.metadata()?.permissions();
    safetensors::serialize_to_file(tensors, about, path)?;
    Ok(std::fs::set_permissions(path, permissions)?)
}

/// Why a tensor cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TensorFileError {
    /// The file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is damaged.
    #[error(
        "{} is not a whole safetensors file ({reason}); it may be truncated: copy or download it again",
        path.display()
    )]
    Malformed { path: PathBuf, reason: SafeTensorError },
    /// There is no such tensor.
    #[error("{} holds no tensor `{name}`", path.display())]
    Missing { path: PathBuf, name: String },
    /// The tensor's numbers are of a kind that cannot be used.
    #[error("{}: `{name}` has dtype {dtype}, but it must be {accepted}", path.display())]
    Dtype { path: PathBuf, name: String, dtype: Dtype, accepted: &'static str },
    /// A value is NaN or infinite.
    #[error(
        "{}: `{name}` holds {value} at element {index}; the run that wrote it has diverged or the file is damaged",
        path.display()
    )]
    NotFinite { path: PathBuf, name: String, value: f32, index: usize },
}

impl TensorFile {
    /// Opens a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<Self, TensorFileError> {
        let file = hadal_files::open(path)?;
        // SAFETY: the mapping is read-only. Should another process truncate the file meanwhile, the
        // kernel stops us; no checkpoint writer of ours does, they write beside and rename.
        let map = unsafe { Mmap::map(&file) }.map_err(file_error(Action::Read, path))?;
        let (header, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|reason| TensorFileError::Malformed { path: path.into(), reason })?;
        Ok(Self { path: path.into(), data: header + size_of::<u64>(), map, metadata })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.metadata.tensors().into_keys().collect();
        names.sort();
        names
    }

    /// The shape of a tensor, if it exists.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.metadata.info(name).map(|info| info.shape.as_slice())
    }

    /// The type of a tensor's elements, if it exists.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.metadata.info(name).map(|info| info.dtype)
    }

    /// The elements of a tensor of f32, f16 or bf16, all finite.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>, TensorFileError> {
        let (info, bytes) = self.find(name)?;
        let values: Vec<f32> = match info.dtype {
            Dtype::F32 => each(bytes, f32::from_le_bytes).collect(),
            Dtype::F16 => each(bytes, f16::from_le_bytes).map(f32::from).collect(),
            Dtype::BF16 => each(bytes, bf16::from_le_bytes).map(f32::from).collect(),
            _ => return Err(self.wrong_dtype(name, info, "F32, F16 or BF16")),
        };
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(index) => Err(TensorFileError::NotFinite {
                path: self.path.clone(),
                name: name.into(),
                value: values[index],
                index,
            }),
        }
    }

    /// The elements of a tensor of integers.
    pub fn integers(&self, name: &str) -> Result<Vec<i64>, TensorFileError> {
        let (info, bytes) = self.find(name)?;
        match info.dtype {
            Dtype::I32 => Ok(each(bytes, i32::from_le_bytes).map(i64::from).collect()),
            Dtype::I64 => Ok(each(bytes, i64::from_le_bytes).collect()),
            _ => Err(self.wrong_dtype(name, info, "I32 or I64")),
        }
    }

    fn find(&self, name: &str) -> Result<(&TensorInfo, &[u8]), TensorFileError> {
        let missing = || TensorFileError::Missing { path: self.path.clone(), name: name.into() };
        let info = self.metadata.info(name).ok_or_else(missing)?;
        let (from, to) = info.data_offsets;
        let bytes = self.map.get(self.data + from..self.data + to).ok_or_else(missing)?;
        Ok((info, bytes))
    }

    fn wrong_dtype(
        &self,
        name: &str,
        info: &TensorInfo,
        accepted: &'static str,
    ) -> TensorFileError {
        TensorFileError::Dtype {
            path: self.path.clone(),
            name: name.into(),
            dtype: info.dtype,
            accepted,
        }
    }
}

/// Little-endian elements; the bytes need no alignment.
fn each<const N: usize, T>(bytes: &[u8], convert: fn([u8; N]) -> T) -> impl Iterator<Item = T> {
    bytes.as_chunks::<N>().0.iter().map(move |chunk| convert(*chunk))
}
