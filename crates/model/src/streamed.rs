//! Writing `.safetensors` without ever holding more than one tensor.

use crate::checkpoint::CheckpointError;
use crate::tensor_file::{TensorFileError, write_tensors};
use hadal_files::{Action, file_error};
use half::{bf16, f16};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, View};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

/// A tensor that is read when it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Streamed {
    /// Its name in the file.
    pub(crate) name: String,
    /// F32, F16 or BF16.
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

impl Streamed {
    /// Bytes that it has in the file.
    pub(crate) fn bytes(&self) -> usize {
        let each = if self.dtype == Dtype::F32 { size_of::<f32>() } else { size_of::<f16>() };
        self.shape.iter().product::<usize>() * each
    }

    fn encode(&self, values: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes());
        match self.dtype {
            Dtype::F16 => each(values, &mut bytes, |value| f16::from_f32(value).to_le_bytes()),
            Dtype::BF16 => each(values, &mut bytes, |value| bf16::from_f32(value).to_le_bytes()),
            _ => each(values, &mut bytes, f32::to_le_bytes),
        }
        bytes
    }
}

fn each<const N: usize>(values: &[f32], bytes: &mut Vec<u8>, encode: impl Fn(f32) -> [u8; N]) {
    for &value in values {
        bytes.extend_from_slice(&encode(value));
    }
}

/// Why a file was not written.
pub(crate) enum Interrupted<E> {
    /// A tensor could not be read.
    Read(E),
    /// The file could not be written.
    Write(SafeTensorError),
}

impl Interrupted<String> {
    /// As the error of a model that is read from `source` and written to `file`.
    pub(crate) fn into_error(self, source: &Path, file: &Path) -> CheckpointError {
        match self {
            Self::Read(problem) => {
                CheckpointError::Mismatch { path: source.into(), problems: vec![problem] }
            }
            Self::Write(SafeTensorError::IoError(reason)) => {
                file_error(Action::Write, file)(reason).into()
            }
            Self::Write(reason) => TensorFileError::Malformed { path: file.into(), reason }.into(),
        }
    }
}

/// Writes tensors, asking `read` for the elements of each by its index in the list. `progress` receives the number of
/// bytes written and their total.
pub(crate) fn write_streamed<E>(
    path: &Path,
    tensors: &[Streamed],
    about: Option<HashMap<String, String>>,
    read: &mut dyn FnMut(usize) -> Result<Vec<f32>, E>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Interrupted<E>> {
    let all = tensors.iter().map(|tensor| tensor.bytes() as u64).sum();
    let shared = RefCell::new(Shared { read, progress, done: 0, all, problem: None });
    let views = tensors
        .iter()
        .enumerate()
        .map(|(place, tensor)| (&tensor.name, Lazy { place, tensor, shared: &shared }));
    let outcome = write_tensors(views, about, path);
    match shared.into_inner().problem {
        Some(problem) => Err(Interrupted::Read(problem)),
        None => outcome.map_err(Interrupted::Write),
    }
}

/// What all tensors have in common while they are written.
struct Shared<'a, E> {
    read: &'a mut dyn FnMut(usize) -> Result<Vec<f32>, E>,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    all: u64,
    problem: Option<E>,
}

struct Lazy<'a, 'b, E> {
    place: usize,
    tensor: &'a Streamed,
    shared: &'a RefCell<Shared<'b, E>>,
}

impl<E> View for Lazy<'_, '_, E> {
    fn dtype(&self) -> Dtype {
        self.tensor.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data_len(&self) -> usize {
        self.tensor.bytes()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut shared = self.shared.borrow_mut();
        // Errors cannot be passed through the library, so the file is completed with zeros and thrown away.
        let nothing = || Cow::Owned(vec![0; self.tensor.bytes()]);
        if shared.problem.is_some() {
            return nothing();
        }
        match (shared.read)(self.place) {
            Ok(values) => {
                let bytes = self.tensor.encode(&values);
                shared.done += bytes.len() as u64;
                let (done, all) = (shared.done, shared.all);
                (shared.progress)(done, all);
                Cow::Owned(bytes)
            }
            Err(problem) => {
                shared.problem = Some(problem);
                nothing()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_file::TensorFile;

    fn tensors() -> Vec<Streamed> {
        let tensor = |name: &str, dtype| Streamed { name: name.into(), dtype, shape: vec![2, 2] };
        vec![tensor("a", Dtype::F16), tensor("b", Dtype::F32), tensor("c", Dtype::BF16)]
    }

    #[test]
    fn tensors_are_read_once_and_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.safetensors");
        let (mut asked, mut last) = (Vec::new(), (0, 0));
        let mut read = |place: usize| {
            asked.push(place);
            Ok::<_, String>(vec![place as f32; 4])
        };
        let outcome = write_streamed(&path, &tensors(), None, &mut read, &mut |done, all| {
            last = (done, all);
        });
        assert!(outcome.is_ok());
        asked.sort_unstable();
        assert_eq!((asked, last), (vec![0, 1, 2], (32, 32)));
        let file = TensorFile::open(&path).unwrap();
        assert_eq!(file.floats("c").unwrap(), [2.0; 4]);
        assert_eq!(file.dtype("a"), Some(Dtype::F16));
    }

    #[test]
    fn what_cannot_be_read_is_reported_and_nothing_more_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let mut asked = 0;
        let mut read = |_: usize| {
            asked += 1;
            Err::<Vec<f32>, _>("damaged")
        };
        let path = directory.path().join("x.safetensors");
        let outcome = write_streamed(&path, &tensors(), None, &mut read, &mut |_, _| {});
        assert!(matches!(outcome, Err(Interrupted::Read("damaged"))));
        assert_eq!(asked, 1);
    }
}
