//! A directory that is whole or absent.

use super::{Action, FileError, PART, beside, file_error, remove_directory, sync};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A directory that is filled beside its place and gets its name at the end. If it is dropped before, nothing is
/// left.
#[derive(Debug)]
pub struct StagedDirectory {
    place: PathBuf,
    beside: PathBuf,
    finished: bool,
}

impl StagedDirectory {
    /// Begins a directory that will be at this place.
    pub fn create(place: &Path) -> Result<Self, FileError> {
        let write = file_error(Action::Write, place);
        let place = std::path::absolute(place).map_err(&write)?;
        let beside = beside(&place, PART)?;
        // An earlier process of the same number may have been killed.
        match fs::remove_dir_all(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(write(error)),
            _ => fs::create_dir_all(&beside).map_err(write)?,
        }
        Ok(Self { place, beside, finished: false })
    }

    /// Where to write until then.
    pub fn path(&self) -> &Path {
        &self.beside
    }

    /// Waits for the disk and gives the directory its name, which must be free.
    pub fn finish(mut self) -> Result<(), FileError> {
        self.sync()?;
        self.rename(&self.place.clone())
    }

    /// The same where a directory may already exist. That one is moved aside first and removed last, so that nothing is
    /// lost at any point. Entries of the old one that `keep` names and the new one lacks are moved over.
    pub fn replace(mut self, keep: impl Fn(&OsStr) -> bool) -> Result<(), FileError> {
        self.sync()?;
        let place = self.place.clone();
        if !place.exists() {
            return self.rename(&place);
        }
        let old = beside(&place, "old")?;
        remove_directory(&old)?;
        rename(&place, &old)?;
        if let Err(error) = self.rename(&place) {
            rename(&old, &place)?;
            return Err(error);
        }
        for entry in fs::read_dir(&old).into_iter().flatten().flatten() {
            let to = place.join(entry.file_name());
            if keep(&entry.file_name()) && !to.exists() {
                rename(&entry.path(), &to)?;
            }
        }
        // The new one is in place; an old one that cannot be removed does no harm.
        let _ = fs::remove_dir_all(&old);
        Ok(())
    }

    fn rename(&mut self, place: &Path) -> Result<(), FileError> {
        rename(&self.beside, place)?;
        self.finished = true;
        Ok(())
    }

    fn sync(&self) -> Result<(), FileError> {
        let write = file_error(Action::Write, &self.beside);
        for entry in fs::read_dir(&self.beside).map_err(&write)? {
            let path = entry.map_err(&write)?.path();
            if path.is_file() {
                sync(&path).map_err(file_error(Action::Write, &path))?;
            }
        }
        if cfg!(unix) { sync(&self.beside).map_err(&write) } else { Ok(()) }
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    super::rename(from, to).map_err(file_error(Action::Rename, to))
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        if !self.finished {
            // On a full disk the space is needed. The reason why it was not finished is what matters.
            let _ = fs::remove_dir_all(&self.beside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{is_part, read_text};

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn filled(place: &Path, name: &str) -> StagedDirectory {
        let staged = StagedDirectory::create(place).unwrap();
        fs::write(staged.path().join(name), name).unwrap();
        staged
    }

    #[test]
    fn a_directory_appears_whole_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("step-1");
        let staged = filled(&place, "a");
        assert!(names(root.path()).iter().all(|name| is_part(name)));
        drop(staged);
        assert!(names(root.path()).is_empty());
        filled(&place, "a").finish().unwrap();
        assert_eq!((names(root.path()), names(&place)), (vec!["step-1".into()], vec!["a".into()]));
        // It does not replace another one.
        assert_eq!(filled(&place, "b").finish().unwrap_err().action, Action::Rename);
        assert_eq!((names(root.path()), names(&place)), (vec!["step-1".into()], vec!["a".into()]));
    }

    #[test]
    fn a_replacement_keeps_what_was_asked_for_and_its_own_files() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("model");
        let staged = filled(&place, "config");
        fs::write(staged.path().join("note"), "mine").unwrap();
        fs::write(staged.path().join("stale"), "old").unwrap();
        staged.replace(|_| true).unwrap();
        let staged = filled(&place, "config");
        fs::write(staged.path().join("config"), "new").unwrap();
        staged.replace(|name| name != "stale").unwrap();
        assert_eq!(names(root.path()), ["model"]);
        assert_eq!(names(&place), ["config", "note"]);
        assert_eq!(read_text(&place.join("config")).unwrap(), "new");
        assert_eq!(read_text(&place.join("note")).unwrap(), "mine");
    }
}
