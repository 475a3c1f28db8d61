//! The local cache, laid out like that of Hugging Face's own tools, so that each finds what another has fetched:
//!
//! ```text
//! models--owner--name/blobs/ETAG                          what arrived, under the server's name for the content
//!                     snapshots/COMMIT/FILE -> ../../blobs/ETAG
//!                     refs/BRANCH                         the commit it stood for
//! .locks/models--owner--name/ETAG.lock
//! ```

use super::RepositoryKind;
use super::error::RequestError;
use hadal_files::{Action, create_directory, file_error, write_whole};
use std::fs::{self, File, TryLockError};
use std::path::{Component, Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

const LOCK_TRIES: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// The cache of one repository.
pub(super) struct Cache {
    root: PathBuf,
    locks: PathBuf,
}

impl Cache {
    pub(super) fn new(cache: &Path, kind: RepositoryKind, owner: &str, name: &str) -> Self {
        let folder = format!("{}--{owner}--{name}", kind.plural());
        Self { root: cache.join(&folder), locks: cache.join(".locks").join(folder) }
    }

    /// The commit that a revision meant when it was fetched.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.into());
        }
        let commit = fs::read_to_string(self.root.join("refs").join(inside(revision)?)).ok()?;
        Some(commit.trim().to_owned())
    }

    /// Remembers the commit of a revision.
    pub(super) fn remember(&self, revision: &str, commit: &str) -> Result<(), RequestError> {
        let Some(revision) = inside(revision).filter(|_| !is_commit(revision)) else {
            return Ok(());
        };
        let path = self.root.join("refs").join(revision);
        make_parent(&path)?;
        Ok(write_whole(&path, commit)?)
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// A file of a commit, if it is cached.
    pub(super) fn file(&self, commit: &str, file: &str) -> Option<PathBuf> {
        Some(self.snapshot(commit).join(inside(file)?)).filter(|path| path.exists())
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    /// Links a file of a commit to a blob, and returns its path.
    pub(super) fn link(
        &self,
        commit: &str,
        file: &str,
        etag: &str,
    ) -> Result<PathBuf, RequestError> {
        let file = inside(file).ok_or(RequestError::NoEntry)?;
        let path = self.snapshot(commit).join(file);
        make_parent(&path)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(file_error(Action::Remove, &path)(error).into());
            }
            _ => {}
        }
        let up: PathBuf = file.components().map(|_| "..").chain([".."]).collect();
        let linked = link(&up.join("blobs").join(etag), &self.blob(etag), &path);
        match linked {
            // Another process was faster.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(path),
            other => {
                other.map_err(file_error(Action::Write, &path))?;
                Ok(path)
            }
        }
    }

    /// Waits a while for other processes that fetch the same content. The lock is released when the file is dropped.
    pub(super) fn lock(&self, etag: &str) -> Result<File, RequestError> {
        let path = self.locks.join(format!("{etag}.lock"));
        make_parent(&path)?;
        let file = File::create(&path).map_err(file_error(Action::Write, &path))?;
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => sleep(LOCK_PAUSE),
                Err(TryLockError::Error(error)) => {
                    return Err(file_error(Action::Lock, &path)(error).into());
                }
            }
        }
        Err(RequestError::Busy { path })
    }
}

#[cfg(unix)]
fn link(target: &Path, _blob: &Path, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

/// Links need special rights on other systems.
#[cfg(not(unix))]
fn link(_target: &Path, blob: &Path, path: &Path) -> std::io::Result<()> {
    fs::copy(blob, path).map(|_| ())
}

pub(super) fn make_parent(path: &Path) -> Result<(), RequestError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    Ok(create_directory(parent)?)
}

/// Whether a revision is a commit, whose meaning never changes.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A name that stays inside its folder: names come from a server.
pub(super) fn inside(name: &str) -> Option<&Path> {
    let path = Path::new(name);
    let sound = path.components().all(|part| matches!(part, Component::Normal(_)));
    (sound && !name.is_empty()).then_some(path)
}
