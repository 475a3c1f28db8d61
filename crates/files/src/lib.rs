//! Files and directories that are whole or absent, whenever a process is killed or the power fails.
//!
//! Everything is first written under another name, `NAME.RANDOM.part` beside its place, flushed to the disk and renamed,
//! and the new name is flushed as well. So a name without `.part` always belongs to a whole file. Whoever writes holds a
//! lock on that; what a killed process left has none and is removed by the next one that writes there.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("results.json");
//! hadal_files::write_whole(&path, "{}\n")?;
//! assert_eq!(hadal_files::read_text(&path)?, "{}\n");
//!
//! let error = hadal_files::read_text(&directory.path().join("absent")).unwrap_err();
//! assert!(error.to_string().starts_with("cannot read "));
//! # Ok(())
//! # }
//! ```

mod error;
mod fault;
mod manifest;
mod part;
mod place;
mod regular;
mod remembered;
mod staged;
pub mod testing;
mod verify;
mod whole;

pub use error::{Action, FileError, file_error};
pub use fault::point;
pub use manifest::{
    Hashes, MANIFEST, read_any_manifest, read_manifest, write_manifest, write_manifest_of,
    write_manifest_with,
};
pub use part::is_part;
pub use place::check_writable;
pub use regular::{open, read, read_at_most, read_text, read_text_at_most};
pub use remembered::{cache_directory, remember_hashes};
pub use staged::StagedDirectory;
pub use verify::{HashError, Verdict, Verification, verify, verify_now};
pub use whole::{WholeFile, write_whole};

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// How the name of a file or directory ends while it is written.
pub const PART: &str = "part";

/// Makes a directory and those above it, as far as they are missing.
pub fn create_directory(path: &Path) -> Result<(), FileError> {
    point(Action::Create, path)?;
    fs::create_dir_all(path).map_err(file_error(Action::Create, path))
}

/// Removes a directory with everything in it, if it exists.
pub fn remove_directory(path: &Path) -> Result<(), FileError> {
    point(Action::Remove, path)?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(file_error(Action::Remove, path)(error))
        }
        _ => Ok(()),
    }
}

/// A value as indented JSON, to be written to a file.
pub fn pretty_json(path: &Path, value: &impl serde::Serialize) -> Result<String, FileError> {
    serde_json::to_string_pretty(value)
        .map_err(|error| file_error(Action::Write, path)(io::Error::other(error)))
}

/// The blake3 hash of a file, as `b3sum` prints it, and its length in bytes.
pub fn hash(path: &Path) -> Result<(String, u64), FileError> {
    hash_with(path, &mut |_| ())
}

/// The same. `progress` receives the number of bytes read so far.
pub fn hash_with(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<(String, u64), FileError> {
    // Large enough for SIMD, small enough for the cache.
    const PIECE: usize = 1 << 18;
    let mut file = open(path)?;
    let mut hasher = blake3::Hasher::new();
    let (mut piece, mut length) = (vec![0; PIECE], 0);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok((hasher.finalize().to_string(), length)),
            Ok(read) => {
                hasher.update(&piece[..read]);
                length += read as u64;
                progress(length);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(file_error(Action::Read, path)(error)),
        }
    }
}

/// Waits until the disk holds a file, or the names in a directory.
fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes the name of a file or directory durable.
fn sync_name(path: &Path) -> io::Result<()> {
    match path.parent() {
        // Where directories cannot be opened, the system does this itself.
        _ if cfg!(not(unix)) => Ok(()),
        None => Ok(()),
        Some(parent) if parent.as_os_str().is_empty() => sync(Path::new(".")),
        Some(parent) => sync(parent),
    }
}

/// Renames a file or directory on the disk, and makes the new name durable.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    point(Action::Rename, to)?;
    fs::rename(from, to)?;
    sync_name(to)
}
