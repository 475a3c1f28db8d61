//! Reading files that may be anybody's: a pipe or a device in the place of a file must neither block nor fill memory.

use super::{Action, FileError, file_error};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file for reading. Anything else (a pipe, a device, a directory) is refused at once.
pub fn open(path: &Path) -> Result<File, FileError> {
    open_regular(path).map_err(file_error(Action::Read, path))
}

/// All bytes of a file.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    read_up_to(path, u64::MAX)
}

/// All bytes of a file that must not have more than this many.
pub fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    read_up_to(path, most)
}

/// A file as text.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    read_text_at_most(path, u64::MAX)
}

/// A text file that must not have more than this many bytes.
pub fn read_text_at_most(path: &Path, most: u64) -> Result<String, FileError> {
    String::from_utf8(read_up_to(path, most)?).map_err(|error| {
        let reason = format!("it is not UTF-8 text (byte {})", error.utf8_error().valid_up_to());
        file_error(Action::Read, path)(io::Error::new(io::ErrorKind::InvalidData, reason))
    })
}

fn read_up_to(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    let read = || {
        let file = open_regular(path)?;
        let mut bytes = Vec::new();
        if file.metadata()?.len() <= most {
            file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
            if bytes.len() as u64 <= most {
                return Ok(bytes);
            }
        }
        let reason = format!("it is larger than {most} bytes");
        Err(io::Error::new(io::ErrorKind::FileTooLarge, reason))
    };
    read().map_err(file_error(Action::Read, path))
}

fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Without this, opening a pipe waits for somebody who writes to it. It changes nothing for files.
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    }
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    match kind {
        _ if kind.is_file() => Ok(file),
        _ if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_regular_files_are_read_and_only_up_to_a_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.txt");
        fs::write(&path, "four").unwrap();
        assert_eq!(read_text_at_most(&path, 4).unwrap(), "four");
        let error = read_at_most(&path, 3).unwrap_err().to_string();
        assert!(error.contains("a.txt") && error.contains("larger than 3 bytes"), "{error}");
        assert_eq!(read(directory.path()).unwrap_err().source.kind(), io::ErrorKind::IsADirectory);
        fs::write(&path, b"ab\xff").unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.contains("not UTF-8 text (byte 2)"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_or_a_device_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/zero")] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }
}
