//! Writing models for other tools: Hugging Face directories and GGUF files.
//!
//! Elsewhere, prenorm models, and lns with its scales folded into the gains, are Llamas, Mistrals or Qwens, depending
//! on their parts. For `transformers` every other model brings its own code, `modeling_hadal.py`; llama.cpp refuses it.
//! Tensors are read, converted and written one by one.

mod gguf;
mod hugging_face;
mod names;
mod own_code;
mod rope;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod vocabulary;

use crate::checkpoint::CheckpointError;
use hadal_files::{FileError, HashError};
use hadal_gguf::{Fault, GgufError, WriteError};
use hadal_tokenizer::TokenizerError;
use safetensors::SafeTensorError;
use source::Source;
use std::path::{Path, PathBuf};
pub use vocabulary::byte_tokenizer;

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// `config.json`, `model.safetensors` and the tokenizer, for `transformers`.
    HuggingFace,
    /// One file, for llama.cpp.
    Gguf,
}

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportType {
    /// 32 bits, as we compute.
    F32,
    /// 16 bits.
    F16,
    /// The upper 16 bits of 32.
    Bf16,
    /// Blocks of 32 in 8 bits each; GGUF alone.
    Q8_0,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// What other tools call it.
    pub architecture: String,
    /// The files.
    pub files: Vec<PathBuf>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ExportError {
    /// No other tool computes this.
    #[error("cannot export a model with {what} to GGUF: {reason}")]
    Unsupported {
        what: String,
        /// Why, and what can be done instead.
        reason: String,
    },
    /// The format does not store numbers like this.
    #[error("q8_0 is a type of GGUF files; choose f32, f16 or bf16 for a Hugging Face directory")]
    Quantised,
    /// Something is there already.
    #[error("{} exists already; name another place with --out, or remove it", path.display())]
    Exists { path: PathBuf },
    /// A number is too large for its type.
    #[error("`{name}` holds {value}, which f16 cannot; choose bf16 or f32")]
    Overflow { name: String, value: f32 },
    /// The tokenizer has no equivalent.
    #[error("cannot export the tokenizer {}: {reason}", path.display())]
    Vocabulary { path: PathBuf, reason: String },
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not what was written.
    #[error(transparent)]
    Damaged(#[from] HashError),
    /// The model cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A parameter cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Weights { path: PathBuf, reason: String },
    /// The tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The GGUF file to read cannot be read.
    #[error(transparent)]
    Source(#[from] GgufError),
    /// The tensors cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Tensors { path: PathBuf, reason: SafeTensorError },
    /// A tensor makes no GGUF tensor.
    #[error("`{name}` {reason}")]
    Shape { name: String, reason: Fault },
    /// The GGUF file cannot be written.
    #[error(transparent)]
    Gguf(#[from] WriteError),
}

impl ExportError {
    /// Whether the request makes no sense, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Unsupported { .. }
                | Self::Quantised
                | Self::Exists { .. }
                | Self::Overflow { .. }
                | Self::Vocabulary { .. }
        )
    }
}

/// Exports a model: one of our directories or of Hugging Face's, the folder of a finished run, or a GGUF file. Nothing
/// is overwritten. `progress` receives the number of bytes written and their total.
pub fn export(
    model: &Path,
    out: &Path,
    format: ExportFormat,
    kind: ExportType,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Exported, ExportError> {
    if format == ExportFormat::HuggingFace && kind == ExportType::Q8_0 {
        return Err(ExportError::Quantised);
    }
    if out.exists() {
        return Err(ExportError::Exists { path: out.into() });
    }
    let source = Source::open(model)?;
    match format {
        ExportFormat::HuggingFace => hugging_face::write(&source, out, kind, progress),
        ExportFormat::Gguf => gguf::write(&source, out, kind, progress),
    }
}
