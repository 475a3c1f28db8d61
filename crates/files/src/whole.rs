//! A file that is whole or absent.

use super::part::Part;
use super::{Action, FileError, file_error, point, rename};
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Writes a file, replacing an existing one. A reader sees the old one or the new one, and afterwards the disk holds
/// all of it.
pub fn write_whole(path: &Path, content: impl AsRef<[u8]>) -> Result<(), FileError> {
    let mut file = WholeFile::create(path)?;
    file.put(content.as_ref())?;
    file.finish()
}

/// A file that is written piece by piece and gets its name at the end. If it is dropped before, nothing is left.
#[derive(Debug)]
pub struct WholeFile {
    place: PathBuf,
    beside: PathBuf,
    file: BufWriter<File>,
    finished: bool,
}

impl WholeFile {
    /// Begins a file that will be at this place.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let Part { path: beside, file } = Part::create(path, |path| File::create_new(path))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { place: path.into(), beside, file, finished: false })
    }

    /// Where the file will be.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).map_err(file_error(Action::Write, &self.place))
    }

    /// Waits for the disk and gives the file its name.
    pub fn finish(mut self) -> Result<(), FileError> {
        point(Action::Write, &self.place)?;
        self.file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .and_then(|()| rename(&self.beside, &self.place))
            .map_err(file_error(Action::Write, &self.place))?;
        self.finished = true;
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for WholeFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.finished {
            // On a full disk the space is needed. The reason why it was not finished is what matters.
            let _ = fs::remove_file(&self.beside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{is_part, read_text};

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.txt");
        write_whole(&path, "old").unwrap();
        let mut file = WholeFile::create(&path).unwrap();
        file.put(b"new").unwrap();
        file.flush().unwrap();
        assert_eq!(read_text(&path).unwrap(), "old");
        let others: Vec<String> =
            names(directory.path()).into_iter().filter(|name| name != "a.txt").collect();
        assert!(matches!(&others[..], [part] if is_part(part)), "{others:?}");
        file.finish().unwrap();
        assert_eq!(read_text(&path).unwrap(), "new");
        assert_eq!(names(directory.path()), ["a.txt"]);
    }

    #[test]
    fn what_is_not_finished_leaves_nothing_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.txt");
        write_whole(&path, "old").unwrap();
        WholeFile::create(&path).unwrap().put(b"new").unwrap();
        assert_eq!(names(directory.path()), ["a.txt"]);
        assert_eq!(read_text(&path).unwrap(), "old");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent").join("a.txt");
        let error = write_whole(&absent, "").unwrap_err();
        assert_eq!((error.action, &error.path), (Action::Write, &absent));
        assert_eq!(write_whole(Path::new("/"), "").unwrap_err().action, Action::Write);
        // A directory is not overwritten, and nothing is left beside it.
        let taken = directory.path().join("taken");
        fs::create_dir(&taken).unwrap();
        assert_eq!(write_whole(&taken, "").unwrap_err().action, Action::Write);
        assert_eq!(names(directory.path()), ["taken"]);
    }
}
