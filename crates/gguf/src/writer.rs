//! Writing a file: the header at once, then the tensors, rows at a time.

use crate::error::{Fault, Place};
use crate::header::alignment;
use crate::metadata::Metadata;
use crate::quantise::{Unfit, encoder, writable};
use crate::tensor::TensorInfo;
use crate::types::{TensorType, listed};
use crate::value::Value;
use crate::{ALIGNMENT_KEY, MAGIC, MAX_DEPTH, VERSION, encode};
use hadal_files::{Action, FileError, WholeFile, file_error};
use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How many elements are encoded before they are written: whole blocks, and not all of a tensor.
const PIECE: usize = 1 << 16;
/// llama.cpp's limit, without the terminating zero.
const MAX_NAME: usize = 63;

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum WriteError {
    /// The system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// The contents would make a file that cannot be read.
    #[error("cannot write {}: {place} {fault}", path.display())]
    Malformed { path: PathBuf, place: Place, fault: Fault },
    /// Tensors must come in the order in which they were declared.
    #[error(
        "cannot write {}: tensor `{}` was given where {} was expected; tensors come in the order in which they were declared",
        path.display(), name.escape_debug(), named(expected)
    )]
    Order { path: PathBuf, name: String, expected: Option<String> },
    /// The values are not whole rows, or too many.
    #[error(
        "cannot write {}: tensor `{}` was given {given} {unit}, but takes multiples of {row} and {left} more",
        path.display(), name.escape_debug()
    )]
    Rows { path: PathBuf, name: String, unit: &'static str, given: usize, row: usize, left: usize },
    /// The type can only be copied.
    #[error(
        "cannot write {}: tensor `{}` is of type {kind}, which is only copied byte by byte; numbers are written as {}",
        path.display(), name.escape_debug(), listed(writable())
    )]
    Unwritable { path: PathBuf, name: String, kind: TensorType },
    /// A number is too large for its type.
    #[error(
        "cannot write {}: tensor `{}` holds {value} at element {index}, which {kind} cannot; choose F32 for it",
        path.display(), name.escape_debug()
    )]
    Overflow { path: PathBuf, name: String, kind: TensorType, value: f32, index: usize },
    /// A value is NaN or infinite.
    #[error(
        "cannot write {}: tensor `{}` holds {value} at element {index}; the run that made it has diverged or its file is damaged",
        path.display(), name.escape_debug()
    )]
    NotFinite { path: PathBuf, name: String, value: f32, index: usize },
    /// A declared tensor was not written.
    #[error("cannot write {}: {left} bytes of tensor `{}` are missing", path.display(), name.escape_debug())]
    Incomplete { path: PathBuf, name: String, left: usize },
}

fn named(tensor: &Option<String>) -> String {
    match tensor {
        Some(name) => format!("`{}`", name.escape_debug()),
        None => "nothing more".into(),
    }
}

/// A file that is being written beside its place. If it is dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct Writer {
    place: PathBuf,
    file: WholeFile,
    alignment: usize,
    tensors: Vec<TensorInfo>,
    /// The tensor that is being written, and how many of its bytes are done.
    current: usize,
    written: usize,
    encoded: Vec<u8>,
}

impl Writer {
    /// Begins a file with everything but the tensors' contents, which follow in the order of `tensors`.
    pub fn create(
        path: &Path,
        metadata: &Metadata,
        tensors: Vec<TensorInfo>,
    ) -> Result<Self, WriteError> {
        let io = file_error(Action::Write, path);
        let malformed = |(place, fault)| WriteError::Malformed { path: path.into(), place, fault };
        let (header, alignment) = header(metadata, &tensors).map_err(malformed)?;
        // A link stays a link, and its target is replaced.
        let place = if path.exists() {
            path.canonicalize().map_err(&io)?
        } else {
            std::path::absolute(path).map_err(&io)?
        };
        if place.is_dir() {
            return Err(io(io::ErrorKind::IsADirectory.into()).into());
        }
        let mut writer = Self {
            file: WholeFile::create(&place)?,
            place,
            alignment,
            tensors,
            current: 0,
            written: 0,
            encoded: Vec::new(),
        };
        writer.put(&header)?;
        writer.pad(header.len())?;
        Ok(writer)
    }

    /// Appends rows of numbers to a tensor, converted to its type.
    ///
    /// # Shapes
    /// `values` are whole rows.
    pub fn rows(&mut self, name: &str, values: &[f32]) -> Result<(), WriteError> {
        let info = self.current(name)?;
        let (kind, row) = (info.kind(), info.row_length());
        let left = info.elements() - self.elements_written(kind);
        self.check("numbers", values.len(), row, left)?;
        let encode = encoder(kind).ok_or_else(|| WriteError::Unwritable {
            path: self.place.clone(),
            name: name.into(),
            kind,
        })?;
        for piece in values.chunks(PIECE) {
            let mut encoded = std::mem::take(&mut self.encoded);
            encoded.clear();
            if let Err(Unfit { index, value }) = encode(piece, &mut encoded) {
                let index = self.elements_written(kind) + index;
                let (path, name) = (self.place.clone(), name.into());
                return Err(match value.is_finite() {
                    true => WriteError::Overflow { path, name, kind, value, index },
                    false => WriteError::NotFinite { path, name, value, index },
                });
            }
            self.append(&encoded)?;
            self.encoded = encoded;
        }
        self.advance()
    }

    /// Appends rows that are already of the tensor's type, byte by byte.
    pub fn raw(&mut self, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let info = self.current(name)?;
        let (row, left) = (info.row_bytes(), info.byte_length() - self.written);
        self.check("bytes", bytes.len(), row, left)?;
        self.append(bytes)?;
        self.advance()
    }

    /// Waits for the disk and gives the file its name.
    pub fn finish(self) -> Result<(), WriteError> {
        if let Some(info) = self.tensors.get(self.current) {
            return Err(WriteError::Incomplete {
                path: self.place.clone(),
                name: info.name().into(),
                left: info.byte_length() - self.written,
            });
        }
        Ok(self.file.finish()?)
    }

    fn current(&self, name: &str) -> Result<&TensorInfo, WriteError> {
        let expected = self.tensors.get(self.current);
        expected.filter(|info| info.name() == name).ok_or_else(|| WriteError::Order {
            path: self.place.clone(),
            name: name.into(),
            expected: expected.map(|info| info.name().into()),
        })
    }

    fn elements_written(&self, kind: TensorType) -> usize {
        self.written / kind.block_bytes() * kind.block_elements()
    }

    fn check(
        &self,
        unit: &'static str,
        given: usize,
        row: usize,
        left: usize,
    ) -> Result<(), WriteError> {
        if given.is_multiple_of(row) && given <= left {
            return Ok(());
        }
        let name = self.tensors[self.current].name().into();
        Err(WriteError::Rows { path: self.place.clone(), name, unit, given, row, left })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.put(bytes)?;
        self.written += bytes.len();
        Ok(())
    }

    /// Moves to the next tensor if this one is whole.
    fn advance(&mut self) -> Result<(), WriteError> {
        let length = self.tensors[self.current].byte_length();
        if self.written == length {
            self.pad(length)?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Zeros up to the next place where a tensor may begin; the last one has them too, as in llama.cpp.
    fn pad(&mut self, length: usize) -> Result<(), WriteError> {
        let missing = padding(length, self.alignment);
        io::copy(&mut io::repeat(0).take(missing as u64), &mut self.file)
            .map_err(file_error(Action::Write, &self.place))?;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        Ok(self.file.put(bytes)?)
    }
}

fn padding(length: usize, alignment: usize) -> usize {
    // The alignment is a power of two.
    length.wrapping_neg() & (alignment - 1)
}

/// Everything before the tensors, without padding, and the alignment.
fn header(metadata: &Metadata, tensors: &[TensorInfo]) -> Result<(Vec<u8>, usize), (Place, Fault)> {
    let alignment = alignment(metadata)?;
    if let Some(value) = metadata.value(ALIGNMENT_KEY)
        && !matches!(value, Value::U32(_))
    {
        // We could read it, but other readers accept only this type.
        return Err((Place::Key(ALIGNMENT_KEY.into()), Fault::Alignment(value.describe())));
    }
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        if let Value::Array(array) = value
            && array.depth() > MAX_DEPTH
        {
            return Err((Place::Key(key.into()), Fault::Nesting));
        }
        encode::string(&mut out, key);
        encode::value(&mut out, value);
    }
    let mut names = HashSet::new();
    let mut offset = 0usize;
    for info in tensors {
        let fault = |fault| (Place::Tensor(info.name().into()), fault);
        if info.name().len() > MAX_NAME {
            return Err(fault(Fault::Name(info.name().len())));
        }
        if !names.insert(info.name()) {
            return Err(fault(Fault::Duplicate));
        }
        encode::string(&mut out, info.name());
        out.extend((info.dimensions().len() as u32).to_le_bytes());
        for &size in info.dimensions() {
            out.extend((size as u64).to_le_bytes());
        }
        out.extend(info.kind().id().to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        let length = info.byte_length();
        let end = length.checked_add(padding(length, alignment));
        offset = end.and_then(|end| offset.checked_add(end)).ok_or(fault(Fault::Huge))?;
    }
    Ok((out, alignment))
}
