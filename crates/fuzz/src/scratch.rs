//! Files in memory, for what reads paths only.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

thread_local! {
    static SCRATCH: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// A directory of this thread that is removed with it: in `HADAL_FUZZ_DIR`, in the memory of Linux, or where temporary
/// files are.
pub(crate) fn directory() -> PathBuf {
    SCRATCH.with_borrow_mut(|scratch| scratch.get_or_insert_with(fresh).path().to_owned())
}

/// A new directory there.
pub(crate) fn fresh() -> TempDir {
    let named = std::env::var_os("HADAL_FUZZ_DIR").map(PathBuf::from);
    let memory = Path::new("/dev/shm");
    let place =
        named.unwrap_or_else(|| if memory.is_dir() { memory.into() } else { std::env::temp_dir() });
    TempDir::with_prefix_in("hadal-fuzz-", place).expect("a directory for files of a target")
}

/// Writes a file of this thread.
pub(crate) fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory().join(name);
    fs::write(&path, bytes).expect("room for a file of a target");
    path
}

/// An empty directory of this thread.
pub(crate) fn empty(name: &str) -> PathBuf {
    let path = directory().join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).expect("room for a directory of a target");
    path
}
