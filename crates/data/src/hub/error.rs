//! How a request can fail.

use hadal_files::FileError;
use std::path::PathBuf;

/// Why something in a repository is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// No answer: no network, no such host, or a connection that broke or stalled.
    #[error("{0}")]
    Unreachable(String),
    /// The cache does not hold it, and nothing may be fetched.
    #[error("the local cache does not hold it")]
    NotCached,
    /// The server does not know the client, or hides what exists.
    #[error("the server asks for a token")]
    Unauthorized,
    /// The token does not give access.
    #[error("the server forbids it")]
    Forbidden,
    #[error("there is no such repository")]
    NoRepository,
    #[error("there is no revision {0}")]
    NoRevision(String),
    #[error("there is no such file or folder")]
    NoEntry,
    /// Any other answer that is not a success.
    #[error("the server answers {status} to {url}{}{message}", if message.is_empty() { "" } else { ": " })]
    Refused { status: u16, url: String, message: String },
    /// An answer that makes no sense.
    #[error("the answer of {url} cannot be used: {reason}")]
    Unusable { url: String, reason: String },
    /// A setting that makes no sense.
    #[error("{name} is `{value}`, but must be {must}")]
    Setting { name: &'static str, value: String, must: &'static str },
    /// The cache cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process fetches the same file.
    #[error("{} is locked: another process fetches the same file; wait for it", path.display())]
    Busy { path: PathBuf },
}

impl RequestError {
    /// Whether it may pass in a moment: then a retry is worthwhile, and what was fetched earlier will do.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }
}
