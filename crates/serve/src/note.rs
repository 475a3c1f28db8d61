//! A note that people leave with a run, `note.txt` in its folder.

use hadal_files::{Action, FileError, file_error, write_whole};
use std::fs;
use std::io;
use std::path::Path;

/// Longer notes are refused, and only this much of a file is shown.
pub(crate) const LONGEST: usize = 4000;

/// The note; empty if there is none.
pub(crate) fn read(run: &Path) -> String {
    let bytes = fs::read(run.join("note.txt")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().chars().take(LONGEST).collect()
}

/// Replaces the note; an empty one is removed.
pub(crate) fn write(run: &Path, text: &str) -> Result<(), FileError> {
    let place = run.join("note.txt");
    if text.trim().is_empty() {
        return match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(file_error(Action::Remove, &place)(error))
            }
            _ => Ok(()),
        };
    }
    write_whole(&place, format!("{}\n", text.trim()))
}
