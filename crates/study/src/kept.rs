//! Measurements that outlive a command that is stopped or killed, so that the next one goes on.
//!
//! Entries are found by a text that says all that they depend on, besides what the file is of: the program and the model.
//! Numbers come back to the bit.

use crate::diagnose::exact::{pack, unpack};
use hadal_files::{
    Action, FileError, create_directory, file_error, point, pretty_json, read_at_most, write_whole,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often entries are written that come in great numbers: a kill costs no more than this.
const EVERY: Duration = Duration::from_secs(10);
/// Tens of thousands of entries are some megabytes.
const LONGEST: u64 = 1 << 28;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    /// Where it is kept, and of what it is.
    place: Option<(PathBuf, String)>,
    entries: BTreeMap<String, T>,
    saved: Option<Instant>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { place: None, entries: BTreeMap::new(), saved: None }
    }
}

/// The file.
#[derive(Serialize, Deserialize)]
struct File<T> {
    /// What measured what.
    of: String,
    entries: BTreeMap<String, T>,
}

/// Why it cannot be opened.
#[derive(Debug)]
pub(crate) enum KeptError {
    File(FileError),
    /// There is something else.
    Other,
}

/// Where measurements for a result are kept until it is written: `plan.json.measured`.
pub fn measurements_of(result: &Path) -> PathBuf {
    let mut name = result.file_name().unwrap_or_default().to_owned();
    name.push(".measured");
    result.with_file_name(name)
}

/// Removes what was kept for a result, which is written now.
pub fn discard_measurements(result: &Path) -> Result<(), FileError> {
    let path = measurements_of(result);
    if !path.exists() {
        return Ok(());
    }
    point(Action::Remove, &path)?;
    fs::remove_file(&path).map_err(file_error(Action::Remove, &path))
}

impl<T: Serialize + DeserializeOwned> Kept<T> {
    /// Opens what an earlier command left, or begins anew. What is of something else is not thrown away without
    /// `force`.
    pub(crate) fn open(path: &Path, of: String, force: bool) -> Result<Self, KeptError> {
        let entries = match path.exists() {
            true => {
                let bytes = read_at_most(path, LONGEST).map_err(KeptError::File)?;
                let file: Option<File<T>> = serde_json::from_slice(&bytes)
                    .and_then(|value| serde_json::from_value(unpack(value)))
                    .ok();
                match file {
                    Some(file) if file.of == of => file.entries,
                    _ if force => BTreeMap::new(),
                    _ => return Err(KeptError::Other),
                }
            }
            false => BTreeMap::new(),
        };
        Ok(Self { place: Some((path.into(), of)), entries, saved: None })
    }

    /// Where it is kept.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.place.as_ref().map(|(path, _)| path.as_path())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&T> {
        self.entries.get(key)
    }

    pub(crate) fn put(&mut self, key: String, entry: T) {
        self.entries.insert(key, entry);
    }

    /// Writes everything, if it has a place.
    pub(crate) fn save(&mut self) -> Result<(), FileError> {
        let Some((path, of)) = &self.place else { return Ok(()) };
        let file = File { of: of.clone(), entries: std::mem::take(&mut self.entries) };
        let value = serde_json::to_value(&file).unwrap_or_default();
        self.entries = file.entries;
        self.saved = Some(Instant::now());
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            create_directory(folder)?;
        }
        write_whole(path, pretty_json(path, &pack(value))?)
    }

    /// The same, if it is time.
    pub(crate) fn save_now_and_then(&mut self) -> Result<(), FileError> {
        let saved = *self.saved.get_or_insert_with(Instant::now);
        if self.place.is_some() && saved.elapsed() >= EVERY { self.save() } else { Ok(()) }
    }
}
