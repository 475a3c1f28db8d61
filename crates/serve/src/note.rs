//! A note that people leave with a run, `note.txt` in its folder.

use crate::files;
use hadal_files::{Action, FileError, file_error, write_whole};
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Longer notes are refused, and only this much of a file is shown, in characters.
pub(crate) const LONGEST: usize = 4000;

/// The note; empty if there is none, or one that is not shown.
pub(crate) fn read(run: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = files::open(run, "note.txt") {
        // A note that cannot be read to its end is shown as far as it can.
        let _ = file.take(files::NOTE).read_to_end(&mut bytes);
    }
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
