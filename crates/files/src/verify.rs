//! Whether a file is still what it was: compared with the manifest beside it, or with its remembered hash.

use super::manifest::{read_any_manifest, read_manifest};
use super::remembered::{Record, Store};
use super::{Action, FileError, file_error, hash_with};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Why a file cannot be trusted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum HashError {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The manifest is not what was written.
    #[error(
        "{} is damaged: {reason}; copy its directory again, or remove it to use the files unchecked",
        path.display()
    )]
    Manifest { path: PathBuf, reason: String },
    /// The file is not what the manifest says.
    #[error(
        "{} is damaged: its blake3 is not that of manifest.json; copy it again, or if you changed it on purpose \
         remove manifest.json",
        path.display()
    )]
    Damaged { path: PathBuf },
    /// The manifest names a file that is not there.
    #[error(
        "{} is missing, but manifest.json names it; copy it again, or if you removed it on purpose remove \
         manifest.json",
        path.display()
    )]
    Missing { path: PathBuf },
    /// The file is not what it was, though nobody wrote it.
    #[error(
        "{path} is damaged: it was blake3 {blake3} when first used on {date}; its size and time are the same, its \
         contents are not: copy it again, or run `hadal verify --accept {path}`",
        path = path.display()
    )]
    Changed { path: PathBuf, blake3: String, date: String },
}

/// What is known of a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is what its manifest or its remembered hash says.
    Same,
    /// It had no hash. Now one is remembered.
    Remembered,
    /// It was written since it was last used, and now holds something else, which is remembered.
    Replaced,
    /// It has no hash, and none could be remembered.
    Unknown,
}

/// Whether files are compared with their hashes when they are used: not with `HADAL_VERIFY=0`.
fn is_wanted() -> bool {
    std::env::var_os("HADAL_VERIFY").is_none_or(|value| value != "0")
}

/// Compares a file with its hash before it is used: the one in the manifest beside it, or else the remembered one. A
/// file that has neither is used as it is.
pub fn verify(path: &Path) -> Result<(), HashError> {
    if !is_wanted() {
        return Ok(());
    }
    if let Some(expected) = expected(path, false)? {
        return compare(path, &expected, &mut |_| ());
    }
    match Store::of_this_process() {
        Some(store) => recall(store, path, false, &mut |_| ()).map(drop),
        None => Ok(()),
    }
}

/// The same on demand, with progress in bytes. With `accept`, what the file holds now is remembered in any case.
pub fn verify_now(
    path: &Path,
    accept: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Verdict, HashError> {
    if let Some(expected) = expected(path, true)? {
        return compare(path, &expected, progress).map(|()| Verdict::Same);
    }
    match Store::of_this_process() {
        Some(store) => recall(store, path, accept, progress),
        None => hash_with(path, progress).map(|_| Verdict::Unknown).map_err(HashError::from),
    }
}

/// The hash of a file in the manifest beside it.
fn expected(path: &Path, any: bool) -> Result<Option<String>, HashError> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let found = if any { read_any_manifest(directory) } else { read_manifest(directory) }?;
    let Some(mut hashes) = found else { return Ok(None) };
    // A name that was damaged would leave its file without a hash.
    if !any && let Some(missing) = hashes.keys().find(|name| !directory.join(name).exists()) {
        return Err(HashError::Missing { path: directory.join(missing) });
    }
    Ok(name.to_str().and_then(|name| hashes.remove(name)))
}

fn compare(path: &Path, expected: &str, progress: &mut dyn FnMut(u64)) -> Result<(), HashError> {
    match hash_with(path, progress)?.0 == expected {
        true => Ok(()),
        false => Err(HashError::Damaged { path: path.into() }),
    }
}

fn recall(
    store: &Store,
    path: &Path,
    accept: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Verdict, HashError> {
    let mut now = Record::of(path).map_err(file_error(Action::Read, path))?;
    let before = store.find(&now.path);
    now.blake3 = hash_with(path, progress)?.0;
    let remember = |now: &Record, verdict| {
        if store.put(now) { verdict } else { Verdict::Unknown }
    };
    let Some(before) = before else { return Ok(remember(&now, Verdict::Remembered)) };
    let untouched = (before.size, before.modified) == (now.size, now.modified);
    if before.blake3 == now.blake3 {
        if !untouched {
            store.put(&Record { date: before.date, ..now });
        }
        return Ok(Verdict::Same);
    }
    if untouched && !accept {
        let Record { blake3, date, .. } = before;
        return Err(HashError::Changed { path: path.into(), blake3, date });
    }
    if before.size == now.size && !accept {
        (store.warn)(&format!(
            "{} was written since its first use on {} and holds something else of the same size; if that was not you, \
             copy it again",
            path.display(),
            before.date
        ));
    }
    Ok(remember(&now, Verdict::Replaced))
}

/// Files that are verified on another thread, while they are being read.
#[derive(Debug)]
#[must_use = "the outcome is what matters"]
pub struct Verification {
    running: Result<JoinHandle<Result<(), HashError>>, Vec<PathBuf>>,
}

impl Verification {
    /// Begins.
    pub fn start(paths: Vec<PathBuf>) -> Self {
        let work = paths.clone();
        let thread = std::thread::Builder::new().name("verify".into());
        let running = thread.spawn(move || verify_all(&work)).map_err(|_| paths);
        Self { running }
    }

    /// Waits for the outcome.
    pub fn finish(self) -> Result<(), HashError> {
        match self.running {
            Ok(thread) => match thread.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            // No thread could be started.
            Err(paths) => verify_all(&paths),
        }
    }
}

fn verify_all(paths: &[PathBuf]) -> Result<(), HashError> {
    paths.iter().try_for_each(|path| verify(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_manifest;
    use std::fs::{self, File};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    #[test]
    fn a_file_is_compared_with_the_manifest_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        fs::write(&file, "one").unwrap();
        fs::write(directory.path().join("b"), "two").unwrap();
        write_manifest(directory.path()).unwrap();
        verify(&file).unwrap();
        Verification::start(vec![file.clone()]).finish().unwrap();
        // Files that were added later have no hash.
        fs::write(directory.path().join("c"), "three").unwrap();
        verify(&directory.path().join("c")).unwrap();
        fs::write(&file, "two").unwrap();
        let error = verify(&file).unwrap_err().to_string();
        assert!(error.contains("a is damaged: its blake3 is not that of manifest.json"), "{error}");
        assert!(Verification::start(vec![file.clone()]).finish().is_err());
        fs::write(&file, "one").unwrap();
        fs::remove_file(directory.path().join("b")).unwrap();
        let error = verify(&file).unwrap_err().to_string();
        assert!(error.contains("b is missing, but manifest.json names it"), "{error}");
    }

    static WARNED: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn a_file_without_a_hash_gets_one_at_its_first_use() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(&directory.path().join("cache"), |_| {
            WARNED.fetch_add(1, SeqCst);
        });
        let file = directory.path().join("model.gguf");
        let begin = fs::metadata(directory.path()).unwrap().modified().unwrap();
        // A time of its own for every writing, however fast they follow each other.
        let write = |text: &str, second: u64| {
            fs::write(&file, text).unwrap();
            let time = begin + Duration::from_secs(second);
            File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        };
        let recall = |accept| recall(&store, &file, accept, &mut |_| ());
        write("one", 0);
        assert_eq!(recall(false).unwrap(), Verdict::Remembered);
        assert_eq!(recall(false).unwrap(), Verdict::Same);
        // Copied again.
        write("one", 1);
        assert_eq!(recall(false).unwrap(), Verdict::Same);
        // A flipped bit.
        write("ond", 1);
        let error = recall(false).unwrap_err().to_string();
        assert!(error.contains("model.gguf is damaged: it was blake3 "), "{error}");
        assert!(error.contains("hadal verify --accept"), "{error}");
        assert!(recall(false).is_err(), "what is refused is not remembered");
        assert_eq!(recall(true).unwrap(), Verdict::Replaced);
        assert_eq!(recall(false).unwrap(), Verdict::Same);
        assert_eq!(WARNED.load(SeqCst), 0);
        write("two", 2);
        assert_eq!((recall(false).unwrap(), WARNED.load(SeqCst)), (Verdict::Replaced, 1));
        write("three", 3);
        assert_eq!((recall(false).unwrap(), WARNED.load(SeqCst)), (Verdict::Replaced, 1));
        assert_eq!(recall(false).unwrap(), Verdict::Same);
    }
}
