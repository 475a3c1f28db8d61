//! Errors of files.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What was tried with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// To read it.
    Read,
    /// To write it.
    Write,
    /// To make the directory.
    Create,
    /// To copy it.
    Copy,
    /// To draw what it should show.
    Draw,
    /// To be the only process that uses it.
    Lock,
    /// To remove it.
    Remove,
    /// To give something its name.
    Rename,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::Copy => "copy",
            Self::Draw => "draw",
            Self::Lock => "lock",
            Self::Remove => "remove",
            Self::Rename => "rename to",
        })
    }
}

/// A file that cannot be read or written.
#[derive(Debug)]
pub struct FileError {
    /// What was tried.
    pub action: Action,
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.action, self.path.display(), self.source)
    }
}

impl Error for FileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// For code that uses `io::Error`: the message is kept in full.
impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// Names the action and the file in an error of the system.
pub fn file_error(action: Action, path: &Path) -> impl Fn(io::Error) -> FileError + use<> {
    let path = path.to_owned();
    move |source| FileError { action, path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_action_file_and_reason_and_keeps_its_source() {
        let refused = io::Error::from(io::ErrorKind::PermissionDenied);
        let said = refused.to_string();
        let error = file_error(Action::Rename, Path::new("a/b"))(refused);
        assert_eq!(error.to_string(), format!("cannot rename to a/b: {said}"));
        assert_eq!(error.source().unwrap().to_string(), said);
    }
}
