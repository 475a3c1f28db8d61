//! Lines of JSON, one at a time: a line that cannot be read costs that line alone, whatever its length.

use hadal_files::{Action, FileError, file_error, open};
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// A longer line is none of ours.
const LONGEST_LINE: u64 = 1 << 20;
/// What lies behind this many bytes is not read.
const LARGEST_FILE: u64 = 4 << 30;
/// The end of a file that is looked at for the last step.
const END: u64 = 64 << 10;

/// The lines of a file.
#[derive(Debug)]
pub(super) struct Lines<T> {
    pub(super) values: Vec<T>,
    /// Lines that cannot be read.
    pub(super) unreadable: u64,
}

/// Reads all whole lines; the last one may be in the middle of being written. None if there is no file.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Lines<T>, FileError> {
    let mut lines = Lines { values: Vec::new(), unreadable: 0 };
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(lines),
        Err(error) => return Err(error),
    };
    let mut reader = BufReader::with_capacity(1 << 18, file.take(LARGEST_FILE));
    lines.fill(&mut reader).map_err(file_error(Action::Read, path))?;
    Ok(lines)
}

impl<T: DeserializeOwned> Lines<T> {
    fn fill(&mut self, reader: &mut impl BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)?;
            if line.last() == Some(&b'\n') {
                match serde_json::from_slice(&line) {
                    Ok(value) => self.values.push(value),
                    Err(_) => self.unreadable += 1,
                }
            } else if (line.len() as u64) < LONGEST_LINE {
                return Ok(());
            } else {
                self.unreadable += 1;
                reader.skip_until(b'\n')?;
            }
        }
    }
}

/// The last step that a run's metrics record; zero if they record none.
pub(super) fn last_step(metrics: &Path) -> u64 {
    let end = || -> io::Result<Vec<u8>> {
        let mut file = open(metrics)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(END)))?;
        let mut bytes = Vec::new();
        file.take(END).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = end().unwrap_or_default();
    let step = |line: &[u8]| -> Option<u64> {
        serde_json::from_slice::<serde_json::Value>(line).ok()?["step"].as_u64()
    };
    bytes.rsplit(|&byte| byte == b'\n').find_map(step).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn numbers(content: &[u8]) -> (Vec<u64>, u64) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.jsonl");
        fs::write(&path, content).unwrap();
        let lines = read(&path).unwrap();
        (lines.values, lines.unreadable)
    }

    #[test]
    fn a_line_that_cannot_be_read_costs_that_line_alone() {
        assert_eq!(numbers(b"1\n2\n3"), (vec![1, 2], 0));
        assert_eq!(numbers(b"1\nx\n\xff\xfe\n3\n"), (vec![1, 3], 2));
        assert_eq!(numbers(b"1\n\0\0\0\0\0\0\x002\n3\n"), (vec![1, 3], 1));
        assert_eq!(numbers(b""), (vec![], 0));
    }

    #[test]
    fn a_line_without_end_takes_no_memory_and_what_follows_is_read() {
        let mut content = vec![0; 3 * LONGEST_LINE as usize];
        content.extend(b"\n7\n");
        assert_eq!(numbers(&content), (vec![7], 1));
        assert_eq!(numbers(&vec![b'1'; 2 * LONGEST_LINE as usize]), (vec![], 1));
    }

    #[test]
    fn the_last_step_is_that_of_the_last_line_that_can_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        assert_eq!(last_step(&path), 0);
        fs::write(&path, "{\"step\":4}\n{\"step\":5}\n{\"step\":6").unwrap();
        assert_eq!(last_step(&path), 5);
        let long = "x".repeat(100_000);
        fs::write(&path, format!("{long}\n{{\"step\":9}}\n{{\"step\":9}}\nx\n")).unwrap();
        assert_eq!(last_step(&path), 9);
    }
}
