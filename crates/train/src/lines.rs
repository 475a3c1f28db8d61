//! A log of JSON lines that can be cut back to a checkpoint, and mended if that is not what it was.

use hadal_files::{Action, FileError, file_error, point, write_whole};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What a checkpoint knows of a log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recorded<'a> {
    /// Its bytes so far.
    pub(crate) length: u64,
    /// Their blake3; older versions did not write it.
    pub(crate) hash: Option<&'a str>,
    /// Steps done.
    pub(crate) step: u64,
}

/// An open log: its bytes so far and their running hash.
#[derive(Debug)]
pub(crate) struct LineLog {
    path: PathBuf,
    file: File,
    length: u64,
    hasher: blake3::Hasher,
}

impl LineLog {
    /// Opens a log of lines that can be read as `T`, and cuts it back to what a checkpoint recorded. Where it is not
    /// what was recorded, the lines that can be read stay, and a warning says so.
    pub(crate) fn open<T: DeserializeOwned>(
        path: &Path,
        recorded: Recorded<'_>,
    ) -> Result<(Self, Option<String>), FileError> {
        let (mut bytes, found) = read_to(path, recorded.length)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        let hash = hasher.finalize().to_hex();
        let complete = bytes.len() as u64 == recorded.length;
        let mut warning = None;
        if !(complete && recorded.hash == Some(hash.as_str())) {
            let (kept, left_out) = readable::<T>(&bytes, recorded.step);
            let problem = match (found, complete, recorded.hash) {
                (None, false, _) => Some(format!("it is missing, {} bytes", recorded.length)),
                (_, false, _) => {
                    Some(format!("it ends after {} of {} bytes", bytes.len(), recorded.length))
                }
                (_, true, Some(_)) => {
                    Some(format!("its {} bytes are not what was written", recorded.length))
                }
                (_, true, None) => (left_out > 0).then(|| "it is damaged".to_owned()),
            };
            warning = problem.map(|problem| {
                let path = path.display();
                format!("{path} is not whole: {problem}; {left_out} lines that cannot be used are left out")
            });
            if kept.len() < bytes.len() {
                write_whole(path, &kept)?;
                hasher = blake3::Hasher::new();
                hasher.update(&kept);
                bytes = kept;
            }
        }
        let write = file_error(Action::Write, path);
        let length = bytes.len() as u64;
        point(Action::Write, path)?;
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(&write)?;
        file.set_len(length).map_err(&write)?;
        Ok((Self { path: path.into(), file, length, hasher }, warning))
    }

    /// Adds a line. What a full disk left of it is taken back.
    pub(crate) fn append(&mut self, value: &Value) -> Result<(), FileError> {
        let line = format!("{value}\n");
        point(Action::Write, &self.path)?;
        if let Err(reason) = self.file.write_all(line.as_bytes()) {
            // If this fails as well, the next one that opens the log leaves the rest of the line out.
            let _ = self.file.set_len(self.length);
            return Err(file_error(Action::Write, &self.path)(reason));
        }
        self.length += line.len() as u64;
        self.hasher.update(line.as_bytes());
        Ok(())
    }

    /// Waits for the disk, and says how many bytes there are and their hash.
    pub(crate) fn sync(&self) -> Result<(u64, String), FileError> {
        point(Action::Write, &self.path)?;
        self.file.sync_all().map_err(file_error(Action::Write, &self.path))?;
        Ok((self.length, self.hasher.finalize().to_string()))
    }
}

/// The first bytes of a file, and the length of all of it if it exists.
pub(crate) fn read_to(path: &Path, most: u64) -> Result<(Vec<u8>, Option<u64>), FileError> {
    let file = match hadal_files::open(path) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
            return Ok((Vec::new(), None));
        }
        other => other?,
    };
    let read = file_error(Action::Read, path);
    let length = file.metadata().map_err(&read)?.len();
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(&read)?;
    Ok((bytes, Some(length)))
}

/// What every line says of itself.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    kind: String,
    step: u64,
}

/// The lines that can be read and belong to the steps done, each once, and the number of the others. Of two lines of
/// one kind and step the later one counts.
fn readable<T: DeserializeOwned>(bytes: &[u8], step: u64) -> (Vec<u8>, usize) {
    let mut seen = HashSet::new();
    let mut usable = |line: &[u8]| {
        let whole = line.ends_with(b"\n") && serde_json::from_slice::<T>(line).is_ok();
        let line = serde_json::from_slice::<Line>(line).ok().filter(|line| line.step <= step);
        whole && line.is_some_and(|line| seen.insert((line.kind, line.step)))
    };
    let lines: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').collect();
    let mut kept: Vec<&[u8]> = lines.iter().rev().copied().filter(|line| usable(line)).collect();
    kept.reverse();
    (kept.concat(), lines.len() - kept.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_report::run::Sample;
    use serde_json::json;
    use std::fs;

    /// A log of three samples, and what a checkpoint recorded of it.
    fn log(path: &Path) -> (u64, String) {
        let (mut log, warning) = LineLog::open::<Sample>(path, Recorded::default()).unwrap();
        assert_eq!(warning, None);
        for step in 1..=3 {
            log.append(&json!({ "step": step, "text": "a\u{e4}" })).unwrap();
        }
        log.sync().unwrap()
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|l| serde_json::from_str::<Sample>(l).unwrap().step).collect()
    }

    /// Opens again, adds a line, and returns the warning.
    fn opened(path: &Path, (length, hash): &(u64, String), old: bool) -> Option<String> {
        let recorded = Recorded { length: *length, hash: (!old).then_some(hash), step: 3 };
        let (mut log, warning) = LineLog::open::<Sample>(path, recorded).unwrap();
        log.append(&json!({ "step": 4, "text": "b" })).unwrap();
        let bytes = fs::read(path).unwrap();
        assert_eq!(log.sync().unwrap(), (bytes.len() as u64, blake3::hash(&bytes).to_string()));
        warning
    }

    #[test]
    fn what_was_written_later_is_cut_off_without_a_word() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("samples.jsonl");
        let recorded = log(&path);
        for old in [false, true] {
            assert_eq!(opened(&path, &recorded, old), None);
            assert_eq!(steps(&path), [1, 2, 3, 4]);
        }
    }

    #[test]
    fn a_log_that_is_missing_short_or_torn_is_mended_and_never_extended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("samples.jsonl");
        let recorded = log(&path);
        let good = fs::read(&path).unwrap();
        let line = good.len() / 3;
        for (left, expected) in [
            (0, vec![4]),
            (line, vec![1, 4]),
            (2 * line - 1, vec![1, 4]),
            (2 * line, vec![1, 2, 4]),
        ] {
            for old in [false, true] {
                fs::write(&path, &good[..left]).unwrap();
                let warning = opened(&path, &recorded, old).unwrap();
                assert!(warning.contains("samples.jsonl") && warning.contains("ends after"));
                assert_eq!(steps(&path), expected, "{left}");
            }
        }
        fs::remove_file(&path).unwrap();
        assert!(opened(&path, &recorded, false).unwrap().contains("missing"));
        assert_eq!(steps(&path), [4]);
    }

    #[test]
    fn lines_that_cannot_be_read_are_left_out_and_a_changed_digit_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("samples.jsonl");
        let recorded = log(&path);
        let good = fs::read(&path).unwrap();
        for old in [false, true] {
            for (from, to, expected) in [
                ("\"step\":2", "!step\":2", vec![1, 3, 4]),
                // Two lines become one.
                ("\n", " ", vec![3, 4]),
                // A step that is not done yet, and one that is there twice.
                ("\"step\":1", "\"step\":9", vec![2, 3, 4]),
                ("\"step\":1", "\"step\":3", vec![2, 3, 4]),
            ] {
                let text = String::from_utf8(good.clone()).unwrap().replacen(from, to, 1);
                fs::write(&path, text).unwrap();
                let warning = opened(&path, &recorded, old).unwrap();
                assert!(warning.contains("lines"), "{warning}");
                assert_eq!(steps(&path), expected, "{from}");
            }
        }
        // Bytes that are no text.
        let mut bytes = good.clone();
        let place = bytes.iter().position(|&byte| byte == b'a').unwrap();
        bytes[place] = 0xff;
        fs::write(&path, &bytes).unwrap();
        assert!(opened(&path, &recorded, false).unwrap().contains("1 lines"));
        assert_eq!(steps(&path), [2, 3, 4]);
        // Another text that can be read.
        bytes[place] = b'b';
        fs::write(&path, &bytes).unwrap();
        let warning = opened(&path, &recorded, false).unwrap();
        assert!(warning.contains(&format!("{} bytes are not what was written", good.len())));
        assert_eq!(steps(&path), [1, 2, 3, 4]);
    }
}
