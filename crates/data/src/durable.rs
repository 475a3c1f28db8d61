//! Files that are whole or absent, whenever the power fails.

use hadal_files::{Action, file_error};
use super::error::DataError;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// What the name of a file ends in while it is written.
const PARTIAL: &str = ".partial";

/// The name under which a file is written before it is renamed to its own.
pub(super) fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(PARTIAL);
    path.with_file_name(name)
}

/// Whether a file was left behind by a process that was killed while it wrote.
pub(super) fn is_partial(name: &str) -> bool {
    name.ends_with(PARTIAL)
}

/// Puts a file in the place of another one; afterwards the disk holds all of the new one.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), DataError> {
    let beside = partial(path);
    let mut file = File::create(&beside).map_err(file_error(Action::Write, &beside))?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(file_error(Action::Write, &beside))
        .and_then(|()| put_in_place(&beside, path))
        .inspect_err(|_| {
            // The failure itself is what the user must know; a leftover is only untidy.
            let _ = fs::remove_file(&beside);
        })
}

/// Renames a file that is already on the disk, and makes the new name last as well.
pub(super) fn put_in_place(from: &Path, to: &Path) -> Result<(), DataError> {
    fs::rename(from, to).map_err(file_error(Action::Write, to))?;
    // Where directories cannot be opened the system looks after them itself.
    if cfg!(unix)
        && let Some(directory) = to.parent()
    {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(file_error(Action::Write, directory))?;
    }
    Ok(())
}

/// The blake3 hash of a file, as `b3sum` prints it.
pub(super) fn hash(path: &Path) -> Result<String, DataError> {
    let read = || file_error(Action::Read, path);
    let mut file = File::open(path).map_err(read())?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(read())? {
            0 => return Ok(hasher.finalize().to_string()),
            count => hasher.update(&buffer[..count]),
        };
    }
}
