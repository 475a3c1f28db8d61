//! Why a chat cannot become tokens.

use crate::TokenizerError;
use hadal_files::{FileError, HashError};
use hadal_gguf::GgufError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

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
    /// Nobody computed it.
    #[error("the chat template of {} cannot be computed: {reason}", path.display())]
    Helper { path: PathBuf, reason: String },
    /// The text has no tokens.
    #[error(transparent)]
    Tokenizer(TokenizerError),
}

/// What a template does wrong, whatever its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Trouble {
    Malformed(String),
    Refused(String),
    Stopped(String),
    Helper(String),
}

impl Trouble {
    /// The error of a file.
    pub(super) fn of(self, path: &Path) -> ChatError {
        let path = path.to_owned();
        match self {
            Self::Malformed(reason) => ChatError::Malformed { path, reason },
            Self::Refused(reason) => ChatError::Refused { path, reason },
            Self::Stopped(reason) => ChatError::Stopped { path, reason },
            Self::Helper(reason) => ChatError::Helper { path, reason },
        }
    }
}
