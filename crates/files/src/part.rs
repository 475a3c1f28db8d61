//! What is written beside its place before it gets its name.

use super::{Action, FileError, PART, file_error};
use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};

/// Whether a name was left by a process that was killed while it wrote.
pub fn is_part(name: &str) -> bool {
    // Older versions used the other suffix.
    name.ends_with(".part") || name.ends_with(".partial")
}

/// A file or directory beside its place, locked for the process that writes it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
}

impl Part {
    /// Makes a part for a place. `create` makes and opens it and fails if the name is taken. Numbers of processes would
    /// not do for names: two containers that share a disk have the same ones.
    pub(crate) fn create(
        place: &Path,
        create: impl Fn(&Path) -> io::Result<File>,
    ) -> Result<Self, FileError> {
        const TRIES: usize = 16;
        let failed = file_error(Action::Write, place);
        super::point(Action::Write, place)?;
        let name =
            place.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        sweep(place, name);
        for _ in 0..TRIES {
            let path = place.with_file_name(random(name));
            let file = match create(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(failed(error)),
            };
            // Between the two lines another process may take it for a killed one's and remove it.
            if !matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) && path.exists() {
                return Ok(Self { path, file });
            }
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }
}

fn random(name: &OsStr) -> OsString {
    let number = RandomState::new().hash_one(std::process::id());
    let mut random = name.to_owned();
    random.push(format!(".{number:016x}.{PART}"));
    random
}

/// Removes what killed processes left at a place. Whoever is alive holds a lock.
fn sweep(place: &Path, name: &OsStr) {
    let parent = match place.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let Some(name) = name.to_str() else { return };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = |other: &str| {
            let between = other.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(PART)?;
            let between = between.strip_suffix('.')?;
            between.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(())
        };
        let Ok(kind) = entry.file_type() else { continue };
        // Neither a link nor a pipe is ours.
        if entry.file_name().to_str().and_then(ours).is_none() || !(kind.is_file() || kind.is_dir())
        {
            continue;
        }
        let path = entry.path();
        if File::open(&path).is_ok_and(|part| part.try_lock().is_ok()) {
            // Another process may be faster, and what cannot be removed is no reason not to write.
            let _ = if kind.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}
