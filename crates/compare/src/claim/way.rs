//! The way into a run's folder, one for each claim, so that a process that has lost its claim writes nothing there.
//!
//! No check before a write would do: a process can be stopped between the two. So a run's process knows its folder only
//! by a link inside of its claim, and whoever takes over puts a file in the link's place first. From then on every path
//! of the old process leads nowhere, and the file system says so. What it has open are logs, to which it appends: they
//! are replaced by copies, so that it appends to files without a name.

use hadal_files::{Action, FileError, file_error, point, read, write_whole};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the way of a claim is; the run's process is called by the last part.
fn link(claim: &Path, name: &str) -> Option<PathBuf> {
    // What has no folder of its own needs no way.
    let (_, last) = name.rsplit_once('/')?;
    Some(claim.join(last))
}

/// Makes the way from a new claim to what is claimed. Where there are no such links, there is none.
pub(super) fn make(claim: &Path, name: &str) {
    if let Some(link) = link(claim, name) {
        // Behind `claims`, the name and the number. A folder may be called otherwise on another machine.
        let up = "../".repeat(name.split('/').count() + 2);
        #[cfg(unix)]
        let _ = std::os::unix::fs::symlink(format!("{up}{name}"), link);
        #[cfg(not(unix))]
        let _ = (up, link);
    }
}

/// The way from a claim, if there is one.
pub(super) fn through(claim: &Path, name: &str) -> Option<PathBuf> {
    link(claim, name).filter(|link| link.is_symlink())
}

/// Closes the way of an earlier claim to this folder.
pub(super) fn close(claim: &Path, run: &Path) -> Result<(), FileError> {
    let Some(name) = run.file_name() else { return Ok(()) };
    let way = claim.join(name);
    if way.is_symlink() {
        // A file, below which no folder can be made.
        write_whole(&way, "Another process has taken over.\n")?;
    }
    Ok(())
}

/// Replaces the files that a run's process may have open by copies.
pub(super) fn renew(run: &Path) -> Result<(), FileError> {
    let Ok(entries) = fs::read_dir(run) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_log = entry.file_type().is_ok_and(|kind| kind.is_file())
            && path.file_name() != Some("lock".as_ref());
        if is_log && !hadal_files::is_part(&entry.file_name().to_string_lossy()) {
            point(Action::Copy, &path)?;
            write_whole(&path, read(&path)?)
                .map_err(|error| file_error(Action::Copy, &path)(error.source))?;
        }
    }
    Ok(())
}
