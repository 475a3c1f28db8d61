//! A note that people leave with a run, `note.txt` in its folder.

use std::fs;
use std::io;
use std::path::Path;

/// Longer notes are refused, and only this much of a file is shown.
pub(crate) const LONGEST: usize = 4000;

/// The note, or nothing.
pub(crate) fn read(run: &Path) -> String {
    let bytes = fs::read(run.join("note.txt")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().chars().take(LONGEST).collect()
}

/// Replaces the note; an empty one is removed. Written beside its place and renamed, so that nobody
/// reads half of it.
pub(crate) fn write(run: &Path, text: &str) -> io::Result<()> {
    let place = run.join("note.txt");
    if text.trim().is_empty() {
        return match fs::remove_file(place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let beside = run.join(format!("note.{}.tmp", std::process::id()));
    fs::write(&beside, format!("{}\n", text.trim()))?;
    fs::rename(&beside, place)
}
