//! GGUF, the file format of llama.cpp: one file with typed metadata and (mostly quantised) tensors.
//!
//! Reading is memory-mapped and trusts nothing: every length, count and offset is checked against the file's size
//! before memory is allocated for it. Numbers become f32 row by row, so that a model can be converted without holding
//! it twice. Writing is streamed beside the target and renamed.
//!
//! Dimensions are in ggml's order everywhere: the first one is the length of a row.
//!
//! ```
//! use hadal_gguf::{Gguf, Metadata, TensorInfo, TensorType, Writer};
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("tiny.gguf");
//! let mut metadata = Metadata::default();
//! metadata.set("general.architecture", "llama");
//! metadata.set("llama.block_count", 1u32);
//!
//! let tensors = vec![TensorInfo::new("output.weight", &[2, 3], TensorType::F16)?];
//! let mut writer = Writer::create(&path, &metadata, tensors)?;
//! writer.rows("output.weight", &[1.0, 2.0, 3.0, 4.0])?;
//! writer.rows("output.weight", &[5.0, 6.0])?;
//! writer.finish()?;
//!
//! let file = Gguf::open(&path)?;
//! assert_eq!(file.get::<u64>("llama.block_count")?, 1);
//! let mut row = [0.0; 2];
//! file.tensor("output.weight")?.dequantise_rows(1..2, &mut row)?;
//! assert_eq!(row, [3.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod array;
mod bytes;
mod decode;
mod dequantise;
mod encode;
mod error;
mod file;
mod header;
mod metadata;
mod quantise;
mod tensor;
mod types;
mod value;
mod writer;

pub use array::Array;
pub use error::{Fault, GgufError, Place};
pub use file::Gguf;
pub use metadata::{FromValue, Metadata, MetadataError};
pub use tensor::{Tensor, TensorInfo};
pub use types::TensorType;
pub use value::Value;
pub use writer::{WriteError, Writer};

/// What a file begins with.
const MAGIC: [u8; 4] = *b"GGUF";
/// The version that is written; version 2 differs only in that it cannot be big-endian.
const VERSION: u32 = 3;
/// The key of the tensors' alignment, and its default.
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: usize = 32;
/// How deep arrays may be nested. Reading and comparing recurse; no model nests at all.
const MAX_DEPTH: usize = 8;
