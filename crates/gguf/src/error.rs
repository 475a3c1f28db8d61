//! What can be wrong with a file.

use crate::MAX_DEPTH;
use crate::dequantise::readable;
use crate::metadata::MetadataError;
use crate::tensor::MAX_RANK;
use crate::types::{TensorType, listed};
use hadal_files::FileError;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// Why a file, or something in it, cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum GgufError {
    /// The file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file begins with something else.
    #[error("{} is not a GGUF file: it does not begin with `GGUF`", path.display())]
    NotGguf { path: PathBuf },
    /// The file was written for machines of the other byte order.
    #[error(
        "{} is big-endian; take the little-endian file, or convert it with gguf-py's gguf_convert_endian.py",
        path.display()
    )]
    BigEndian { path: PathBuf },
    /// The file is of a version that is not read.
    #[error(
        "{} is of GGUF version {version}, but versions 2 and 3 are read; convert the model again with a current llama.cpp",
        path.display()
    )]
    Version { path: PathBuf, version: u32 },
    /// The file contradicts itself or its length.
    #[error("{}: {place} {fault}", path.display())]
    Malformed { path: PathBuf, place: Place, fault: Fault },
    /// A value of the metadata cannot be used.
    #[error("{}: {reason}", path.display())]
    Metadata { path: PathBuf, reason: MetadataError },
    /// There is no such tensor.
    #[error("{} holds no tensor `{}`", path.display(), name.escape_debug())]
    Missing { path: PathBuf, name: String },
    /// The tensor's numbers are packed in a way that is not understood.
    #[error(
        "{}: tensor `{}` is of type {kind}, which cannot be dequantised; the types that can are {}",
        path.display(), name.escape_debug(), listed(readable())
    )]
    Unreadable { path: PathBuf, name: String, kind: TensorType },
    /// The requested rows do not exist.
    #[error("{}: tensor `{}` has {rows} rows; rows {asked:?} are not among them", path.display(), name.escape_debug())]
    Rows { path: PathBuf, name: String, rows: usize, asked: Range<usize> },
    /// The buffer for the numbers has another size.
    #[error("{}: tensor `{}`: {expected} numbers do not fit a buffer of {found}", path.display(), name.escape_debug())]
    Buffer { path: PathBuf, name: String, expected: usize, found: usize },
}

/// A part of a file, as a message names it. Names are escaped: files come from anywhere, and messages go to terminals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the metadata.
    Header,
    /// An entry of the metadata whose key is not known yet, from 0.
    Entry(u64),
    /// An entry of the metadata.
    Key(String),
    /// A tensor whose name is not known yet, from 0.
    TensorEntry(u64),
    /// A tensor.
    Tensor(String),
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => formatter.write_str("the header"),
            Self::Entry(index) => write!(formatter, "metadata entry {index}"),
            Self::Key(key) => write!(formatter, "key {}", key.escape_debug()),
            Self::TensorEntry(index) => write!(formatter, "tensor entry {index}"),
            Self::Tensor(name) => write!(formatter, "tensor `{}`", name.escape_debug()),
        }
    }
}

/// What is wrong with a part of a file that is read or to be written. Follows the part's name in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum Fault {
    /// More is announced than exists.
    #[error(
        "needs {needed} bytes where {left} are left; the file is truncated or damaged: copy or download it again"
    )]
    Ends { needed: u64, left: u64 },
    /// A text is not UTF-8.
    #[error("is not valid UTF-8; the file is damaged: copy or download it again")]
    Text,
    /// The number of a value's type is unknown.
    #[error("has value type {0}, which GGUF does not define; the file is damaged")]
    ValueType(u32),
    /// A truth value is neither 0 nor 1.
    #[error("holds the bool {0}, which must be 0 or 1; the file is damaged")]
    Bool(u8),
    /// Arrays in arrays in arrays.
    #[error("nests arrays deeper than {MAX_DEPTH} levels")]
    Nesting,
    /// The key or name occurs twice.
    #[error("occurs twice")]
    Duplicate,
    /// The alignment is not a valid one.
    #[error("must be a power of two as a u32, but is {0}")]
    Alignment(String),
    /// The name is longer than llama.cpp allows.
    #[error("has a name of {0} bytes, but llama.cpp loads names of at most 63")]
    Name(usize),
    /// Too many dimensions.
    #[error("has {0} dimensions, but at most {MAX_RANK} are possible")]
    Rank(u64),
    /// A dimension is zero.
    #[error("has no elements: dimension {0} is 0")]
    Empty(usize),
    /// The number of elements or bytes overflows.
    #[error("is larger than memory can be addressed")]
    Huge,
    /// The number of a tensor's type is unknown.
    #[error("has tensor type {0}, which is not known; it may be newer than this program")]
    TensorType(u32),
    /// Rows do not consist of whole blocks.
    #[error("has rows of {row} elements, but {kind} packs {} at a time", kind.block_elements())]
    Row { row: usize, kind: TensorType },
    /// The tensor's bytes do not begin at an allowed place.
    #[error(
        "begins at byte {offset} of the data, which is no multiple of the alignment {alignment}"
    )]
    Misaligned { offset: u64, alignment: usize },
    /// The tensor overlaps another one.
    #[error("overlaps tensor `{}`", .0.escape_debug())]
    Overlap(String),
}
