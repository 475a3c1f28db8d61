//! Why a chat cannot become tokens.

use crate::TokenizerError;
use hadal_files::{FileError, HashError};
use hadal_gguf::GgufError;
use std::path::PathBuf;

/// What can go wrong between turns and tokens.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ChatError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not what it was.
    #[error(transparent)]
    Damaged(#[from] HashError),
    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// It is no template, or it cannot be computed.
    #[error(
        "the chat template of {} is not usable: {reason}; name another with --template FILE|chatml",
        path.display()
    )]
    Malformed { path: PathBuf, reason: String },
    /// The template says that the model knows no such chat.
    #[error("the chat template of {} refuses this chat: {reason}", path.display())]
    Refused { path: PathBuf, reason: String },
    /// It does not end, or writes without end.
    #[error(
        "the chat template of {} was stopped: {reason}; no real one does that, so do not trust the file",
        path.display()
    )]
    Stopped { path: PathBuf, reason: String },
    /// The text has no tokens.
    #[error(transparent)]
    Tokenizer(TokenizerError),
}
