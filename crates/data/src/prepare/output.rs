//! The output directory: its lock, what it already holds, and how it is completed.

use super::reader::Position;
use crate::encoder::Encoder;
use crate::error::DataError;
use crate::manifest::{Manifest, SourceRecord, read_json, write_json};
use hadal_files::{Action, create_directory, file_error, is_part, write_whole};
use hadal_tokenizer::TOKENIZER;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Where a preparation remembers how far it has come.
pub(crate) const PROGRESS: &str = "progress.json";

/// Held by the one process that writes.
const LOCK: &str = "prepare.lock";

/// An unfinished preparation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// Where the first piece after the last finished shard is.
    pub(super) position: Position,
    /// The plan, with the shards that are finished.
    pub(super) manifest: Manifest,
}

impl State {
    /// Nothing done yet.
    pub(super) fn new(plan: Manifest) -> Self {
        Self { position: Position::default(), manifest: plan }
    }
}

/// What a directory holds.
pub(super) enum Found {
    Nothing,
    Unfinished(State),
    Finished(Manifest),
}

impl Found {
    /// The sources read so far.
    pub(super) fn sources(&self) -> &[SourceRecord] {
        match self {
            Self::Nothing => &[],
            Self::Unfinished(state) => &state.manifest.sources,
            Self::Finished(manifest) => &manifest.sources,
        }
    }
}

/// A directory that no other process writes to.
pub(super) struct Output {
    directory: PathBuf,
    existed: bool,
    /// Closing it releases the directory, also when the process is killed.
    _lock: File,
}

impl Output {
    /// Creates the directory if need be, and locks it.
    pub(super) fn open(directory: &Path) -> Result<Self, DataError> {
        let existed = directory.exists();
        loop {
            create_directory(directory)?;
            let path = directory.join(LOCK);
            let lock = match File::create(&path) {
                Ok(lock) => lock,
                // Whoever made the directory found nothing to write and has removed it again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(file_error(Action::Write, &path)(error).into()),
            };
            match take(&lock, &path) {
                Ok(Some(())) => {
                    return Ok(Self { directory: directory.into(), existed, _lock: lock });
                }
                Ok(None) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(DataError::Busy { path: directory.into() });
                }
                Err(TryLockError::Error(error)) => {
                    return Err(file_error(Action::Lock, &path)(error).into());
                }
            }
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Looks at what already exists.
    pub(super) fn find(&self) -> Result<Found, DataError> {
        if let Some(manifest) = Manifest::find(&self.directory)? {
            return Ok(Found::Finished(manifest));
        }
        let path = self.path(PROGRESS);
        if let Some(state) = read_json::<State>(&path)? {
            state.manifest.check(&path)?;
            return Ok(Found::Unfinished(state));
        }
        let entries = fs::read_dir(&self.directory)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(file_error(Action::Read, &self.directory))?;
        let foreign = entries.iter().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name != LOCK && !is_part(&name)
        });
        if foreign {
            return Err(DataError::Occupied { path: self.directory.clone() });
        }
        Ok(Found::Nothing)
    }

    /// Refuses a mix of two preparations.
    pub(super) fn same(&self, found: &Manifest, plan: &Manifest) -> Result<(), DataError> {
        match found.differences(plan) {
            differences if differences.is_empty() => Ok(()),
            differences => Err(DataError::Different { path: self.directory.clone(), differences }),
        }
    }

    /// Writes what must exist before the first shard.
    pub(super) fn begin(&self, state: &State, encoder: &Encoder) -> Result<(), DataError> {
        self.save(state)?;
        if let Some(content) = encoder.content() {
            write_whole(&self.path(TOKENIZER), content)?;
        }
        Ok(())
    }

    /// The hash of a file in the directory.
    pub(super) fn hash(&self, name: &str) -> Result<String, DataError> {
        Ok(hadal_files::hash(&self.path(name))?.0)
    }

    /// Remembers how far the work has come.
    pub(super) fn save(&self, state: &State) -> Result<(), DataError> {
        write_json(&self.path(PROGRESS), state)
    }

    /// The manifest makes the directory whole.
    pub(super) fn finish(&self, manifest: &Manifest) -> Result<(), DataError> {
        manifest.write(&self.directory)?;
        self.tidy();
        Ok(())
    }

    /// Removes files that were needed only until the manifest existed; they do no harm if they stay.
    pub(super) fn tidy(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name == PROGRESS || is_part(&name.to_string_lossy()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Locks an open file. Nothing if the one that held it before has removed it meanwhile: then others lock another file of
/// the same name. Only who holds the lock removes the file, so what is there now stays.
fn take(lock: &File, path: &Path) -> Result<Option<()>, TryLockError> {
    lock.try_lock()?;
    Ok(is_at(lock, path).then_some(()))
}

/// Whether this is the file of that name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (here, there) = (file.metadata().map(place), fs::metadata(path).map(place));
    matches!((here, there), (Ok(here), Ok(there)) if here == there)
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

impl Drop for Output {
    fn drop(&mut self) {
        // Both are only tidiness: the second succeeds if nothing was ever written. Where files have no numbers to
        // compare, the lock stays.
        if cfg!(unix) {
            let _ = fs::remove_file(self.path(LOCK));
        }
        if !self.existed {
            let _ = fs::remove_dir(&self.directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a process saw that opened the lock just before its holder removed it.
    #[test]
    fn a_lock_that_was_removed_meanwhile_locks_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let path = out.join(LOCK);
        let first = Output::open(&out).unwrap();
        fs::write(out.join("kept"), "").unwrap();
        let late = File::create(&path).unwrap();
        assert!(matches!(take(&late, &path), Err(TryLockError::WouldBlock)));
        drop(first);
        // Nobody holds it any more, but it is not the lock any more either.
        assert!(matches!(take(&late, &path), Ok(None)));
        let _second = Output::open(&out).unwrap();
        assert!(matches!(take(&late, &path), Ok(None)));
        assert!(matches!(Output::open(&out), Err(DataError::Busy { .. })));
    }
}
