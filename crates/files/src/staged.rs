//! A directory that is whole or absent.

use super::part::Part;
use super::{Action, FileError, file_error, point, sync, sync_name};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A directory that is filled beside its place and gets its name at the end. If it is dropped before, nothing is
/// left.
#[derive(Debug)]
pub struct StagedDirectory {
    place: PathBuf,
    beside: PathBuf,
    /// Says to other processes that this one is alive.
    _lock: File,
    finished: bool,
}

impl StagedDirectory {
    /// Begins a directory that will be at this place.
    pub fn create(place: &Path) -> Result<Self, FileError> {
        let write = file_error(Action::Write, place);
        let place = std::path::absolute(place).map_err(&write)?;
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(&write)?;
        }
        restore_old(&place)?;
        let Part { path: beside, file } = Part::create(&place, |path| {
            fs::create_dir(path)?;
            File::open(path)
        })?;
        Ok(Self { place, beside, _lock: file, finished: false })
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

    /// The same where a directory may already exist. Entries of the old one that `keep` names and the new one lacks
    /// stay. Where the system can exchange two names, a reader sees the old one or the new one; elsewhere there is
    /// neither for a moment, and a kill in that moment is mended by the next one that writes here.
    pub fn replace(mut self, keep: impl Fn(&OsStr) -> bool) -> Result<(), FileError> {
        let place = self.place.clone();
        if !place.exists() {
            return self.finish();
        }
        let kept: Vec<_> = (fs::read_dir(&place).map_err(file_error(Action::Read, &place))?)
            .flatten()
            .filter(|entry| keep(&entry.file_name()))
            .filter(|entry| !self.beside.join(entry.file_name()).exists())
            .collect();
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let (directories, files): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_directory);
        for entry in files {
            link(&entry.path(), &self.beside.join(entry.file_name()))?;
        }
        self.sync()?;
        let old = match exchange(&self.beside, &place) {
            Ok(()) => self.beside.clone(),
            Err(_) => {
                let old = old(&place);
                rename(&place, &old)?;
                if let Err(error) = rename(&self.beside, &place) {
                    rename(&old, &place)?;
                    return Err(error);
                }
                old
            }
        };
        // From here on the name `beside` is the old one's, or free.
        self.finished = true;
        for entry in directories {
            let name = entry.file_name();
            rename(&old.join(&name), &place.join(&name))?;
        }
        sync_name(&place).map_err(file_error(Action::Write, &place))?;
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

/// The same file under another name, or a copy of it where there are no such names.
fn link(from: &Path, to: &Path) -> Result<(), FileError> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(_) => fs::copy(from, to).map(drop).map_err(file_error(Action::Copy, from)),
    }
}

#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    point(Action::Rename, other)?;
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, other: &Path) -> io::Result<()> {
    point(Action::Rename, other)?;
    Err(io::ErrorKind::Unsupported.into())
}

/// Where the old directory is while a new one takes its place, if names cannot be exchanged.
fn old(place: &Path) -> PathBuf {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(".old");
    place.with_file_name(name)
}

/// Gives a directory its name back if a kill left its place empty.
fn restore_old(place: &Path) -> Result<(), FileError> {
    let old = old(place);
    if old.is_dir() && !place.exists() { rename(&old, place) } else { Ok(()) }
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
    fn what_a_killed_process_left_is_removed_but_not_what_is_being_written() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("model");
        let alive = filled(&place, "a");
        // A killed process holds no lock.
        let dead = root.path().join("model.00000000000000ab.part");
        fs::create_dir(&dead).unwrap();
        let other = root.path().join("model.safetensors.00000000000000ab.part");
        fs::write(&other, "another file's").unwrap();
        // Opening this one would wait for ever.
        #[cfg(unix)]
        let pipe = root.path().join("model.00000000000000cd.part");
        #[cfg(unix)]
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        let second = filled(&place, "b");
        assert!(!dead.exists() && other.exists());
        assert!(alive.path().join("a").exists());
        alive.finish().unwrap();
        second.replace(|_| true).unwrap();
        assert_eq!(names(&place), ["a", "b"]);
    }

    #[test]
    fn a_place_that_a_kill_left_empty_gets_its_directory_back() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("model");
        filled(&root.path().join("model.old"), "a").finish().unwrap();
        drop(filled(&place, "b"));
        assert_eq!((names(root.path()), names(&place)), (vec!["model".into()], vec!["a".into()]));
    }

    #[test]
    fn a_replacement_keeps_what_was_asked_for_and_its_own_files() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("model");
        let staged = filled(&place, "config");
        fs::write(staged.path().join("note"), "mine").unwrap();
        fs::write(staged.path().join("stale"), "old").unwrap();
        fs::create_dir(staged.path().join("diagnosis")).unwrap();
        staged.replace(|_| true).unwrap();
        let staged = filled(&place, "config");
        fs::write(staged.path().join("config"), "new").unwrap();
        staged.replace(|name| name != "stale").unwrap();
        assert_eq!(names(root.path()), ["model"]);
        assert_eq!(names(&place), ["config", "diagnosis", "note"]);
        assert_eq!(read_text(&place.join("config")).unwrap(), "new");
        assert_eq!(read_text(&place.join("note")).unwrap(), "mine");
    }
}
