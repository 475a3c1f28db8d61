//! Hashes of files that bring none: what they were when they were first used.
//!
//! One small file for each, in a directory of the user's cache. Nothing is remembered unless the program asks for it
//! with [`remember_hashes`], so libraries and their tests leave the cache alone.

use super::{create_directory, pretty_json, read_at_most, write_whole};
use serde::{Deserialize, Serialize};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// No record is this long.
const LONGEST: u64 = 1 << 16;

static STORE: OnceLock<Store> = OnceLock::new();

/// From now on, remembers in this directory what files that bring no hash hold when they are first used. `warn` is told
/// about files that were replaced by others of the same size.
pub fn remember_hashes(directory: PathBuf, warn: fn(&str)) {
    // A second call changes nothing: what was asked for first goes on.
    let _ = STORE.set(Store { directory, warn });
}

/// Where a user's programs keep what can be made again: `HADAL_CACHE`, or `hadal` below `XDG_CACHE_HOME` or `~/.cache`.
pub fn cache_directory() -> Option<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(directory) = variable("HADAL_CACHE") {
        return Some(directory.into());
    }
    let caches = variable("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = caches.or_else(|| Some(env::home_dir()?.join(".cache")))?;
    caches.is_absolute().then(|| caches.join("hadal"))
}

/// Where hashes are remembered.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    pub(crate) warn: fn(&str),
}

/// What a file was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub(crate) modified: u64,
    pub(crate) blake3: String,
    /// The day of its first use.
    pub(crate) date: String,
}

impl Store {
    /// The one that [`remember_hashes`] set.
    pub(crate) fn of_this_process() -> Option<&'static Self> {
        STORE.get()
    }

    #[cfg(test)]
    pub(crate) fn at(directory: &Path, warn: fn(&str)) -> Self {
        Self { directory: directory.into(), warn }
    }

    fn place(&self, canonical: &Path) -> PathBuf {
        let name = blake3::hash(canonical.as_os_str().as_encoded_bytes());
        self.directory.join("hashes").join(format!("{name}.json"))
    }

    /// What is known of a file. A record that cannot be read is as good as none.
    pub(crate) fn find(&self, canonical: &Path) -> Option<Record> {
        let text = read_at_most(&self.place(canonical), LONGEST).ok()?;
        let record: Record = serde_json::from_slice(&text).ok()?;
        (record.path == canonical).then_some(record)
    }

    /// Remembers a file, and returns whether that was possible: a cache that cannot be written is no reason to fail.
    pub(crate) fn put(&self, record: &Record) -> bool {
        let place = self.place(&record.path);
        let written = || {
            create_directory(place.parent().unwrap_or(&self.directory))?;
            write_whole(&place, pretty_json(&place, record)?)
        };
        written().is_ok()
    }
}

impl Record {
    /// A file as it is now, except for its hash.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let metadata = fs::metadata(&path)?;
        let since = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { path, size: metadata.len(), modified, blake3: String::new(), date: today() })
    }
}

/// The day in Greenwich, as `2026-11-18`.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    date(seconds / 86_400)
}

/// The date of a day since 1970. Years begin in March here, so that leap days come last.
fn date(days: u64) -> String {
    const ERA: u64 = 146_097;
    let days = days + 719_468;
    let of_era = days % ERA;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = days / ERA * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        for (days, text) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (20_775, "2026-11-18"),
        ] {
            assert_eq!(date(days), text);
        }
    }

    #[test]
    fn a_record_comes_back_and_a_damaged_one_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(&directory.path().join("cache"), |_| ());
        let file = directory.path().join("a");
        fs::write(&file, "a").unwrap();
        let record = Record { blake3: "00".into(), ..Record::of(&file).unwrap() };
        assert_eq!(store.find(&record.path), None);
        assert!(store.put(&record));
        assert_eq!(store.find(&record.path), Some(record.clone()));
        fs::write(store.place(&record.path), "{").unwrap();
        assert_eq!(store.find(&record.path), None);
        // A cache that cannot be written is no failure.
        assert!(!Store::at(&file, |_| ()).put(&record));
    }
}
