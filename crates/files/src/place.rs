//! Whether something could be written at a place, found out before there is anything to write.

use super::{Action, FileError, WholeFile, file_error};
use std::path::Path;

/// Refuses a place where nothing can be written, so that long work for it need not begin. A file is begun there, in a
/// directory that exists, or else in the nearest one above it, and removed again.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// hadal_files::check_writable(&directory.path().join("results/plan.json"))?;
/// assert!(std::fs::read_dir(directory.path())?.next().is_none());
/// # Ok(())
/// # }
/// ```
pub fn check_writable(place: &Path) -> Result<(), FileError> {
    let failed = file_error(Action::Write, place);
    let mut nearest = std::path::absolute(place).map_err(&failed)?;
    if nearest.is_dir() {
        nearest.push("new");
    }
    while let Some(parent) = nearest.parent().filter(|parent| !parent.exists()) {
        nearest = parent.into();
    }
    // The place that was asked for is the one to name.
    WholeFile::create(&nearest).map(drop).map_err(|error| failed(error.source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nothing_is_left_of_a_look_at_a_place() {
        let root = tempfile::tempdir().unwrap();
        let there = root.path().join("there");
        fs::create_dir(&there).unwrap();
        let taken = there.join("taken.json");
        fs::write(&taken, "mine").unwrap();
        for place in [&there, &taken, &there.join("a"), &there.join("a/b/c.json")] {
            check_writable(place).unwrap();
        }
        assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
        assert_eq!(fs::read_dir(&there).unwrap().count(), 1);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_below_a_file_cannot_be_written() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let place = file.join("plan.json");
        let error = check_writable(&place).unwrap_err();
        assert_eq!((error.action, &error.path), (Action::Write, &place));
    }

    /// Nobody can write there, not even those whom no permissions stop.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_that_takes_no_files_is_noticed() {
        for place in ["/proc/plan.json", "/proc/a/b", "/proc"] {
            let error = check_writable(Path::new(place)).unwrap_err();
            assert_eq!(error.path, Path::new(place));
        }
    }
}
