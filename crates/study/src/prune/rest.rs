//! Everything of a model's directory that is not its weights: tokenizer, licence, code. It may be anybody's directory, and
//! the copy may be published: a link must not bring in what lies elsewhere.

use super::error::PruneError;
use super::file::{CONFIG, INDEX, weight_files};
use hadal_files::{Action, WholeFile, file_error, open};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Weights in other formats: they would still be those of the whole model.
const OTHER_WEIGHTS: [&str; 9] =
    ["safetensors", "bin", "pt", "pth", "ckpt", "h5", "msgpack", "onnx", "gguf"];
/// Hashes of a directory's files, which are others after a cut.
const HASHES: &str = "manifest.json";

/// What became of the other files.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rest {
    /// Weights in other formats, which were not copied.
    pub(super) weights: Vec<String>,
    /// Links that lead out of the directory, pipes, sockets and devices, which were not copied either.
    pub(super) left_out: Vec<String>,
    /// Programs, which were.
    pub(super) code: Vec<String>,
}

/// Copies what is not weights. `record` is the name of the record of an earlier cut.
pub(super) fn copy(directory: &Path, staging: &Path, record: &str) -> Result<Rest, PruneError> {
    let read = file_error(Action::Read, directory);
    let own = fs::canonicalize(directory).map_err(&read)?;
    let cut = weight_files(directory)?;
    let mut entries: Vec<_> = fs::read_dir(directory).map_err(&read)?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut rest = Rest::default();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if cut.contains(&name) || [CONFIG, INDEX, HASHES, record].contains(&name.as_str()) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let extension = Path::new(&name).extension().unwrap_or_default().to_ascii_lowercase();
        if OTHER_WEIGHTS.iter().any(|&other| extension == *other) {
            rest.weights.push(name);
            continue;
        }
        let Some(from) = inside(&own, &entry.path()) else {
            rest.left_out.push(name);
            continue;
        };
        let mut to = WholeFile::create(&staging.join(entry.file_name()))?;
        io::copy(&mut open(&from)?, &mut to).map_err(file_error(Action::Copy, &entry.path()))?;
        to.finish()?;
        if extension == "py" {
            rest.code.push(name);
        }
    }
    Ok(rest)
}

/// The regular file that a name stands for, if it is in the directory, or in a cache of Hugging Face's among the contents
/// of the same repository: `snapshots/COMMIT/NAME` is a link to `blobs/HASH` there.
fn inside(directory: &Path, path: &Path) -> Option<PathBuf> {
    let file = fs::canonicalize(path).ok()?;
    let parent = file.parent()?;
    let snapshots = directory.parent()?;
    let cached = snapshots.file_name()? == "snapshots"
        && snapshots.parent().is_some_and(|repository| parent == repository.join("blobs"));
    let ours = parent == directory || parent.starts_with(directory) || cached;
    (ours && fs::metadata(&file).ok()?.is_file()).then_some(file)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A repository in a cache, and a place for the copy.
    fn repository() -> (TempDir, PathBuf, PathBuf) {
        let root = TempDir::new().unwrap();
        let directory = root.path().join("models--a--b/snapshots/0123");
        let staging = root.path().join("staging");
        for path in [&directory, &root.path().join("models--a--b/blobs"), &staging] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(directory.join("model.safetensors"), "weights").unwrap();
        fs::write(directory.join("config.json"), "{}").unwrap();
        (root, directory, staging)
    }

    #[test]
    fn links_are_followed_within_a_repository_only() {
        let (root, directory, staging) = repository();
        let secret = root.path().join("id_rsa");
        fs::write(&secret, "secret").unwrap();
        fs::write(directory.join("LICENSE"), "MIT").unwrap();
        fs::write(root.path().join("models--a--b/blobs/9f"), "tokens").unwrap();
        symlink("../../blobs/9f", directory.join("tokenizer.json")).unwrap();
        symlink("LICENSE", directory.join("COPYING")).unwrap();
        symlink(&secret, directory.join("notes.txt")).unwrap();
        symlink("../../../id_rsa", directory.join("README.md")).unwrap();
        symlink("nowhere", directory.join("gone.txt")).unwrap();
        symlink("/dev/zero", directory.join("zero.txt")).unwrap();
        let _socket = UnixListener::bind(directory.join("socket")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(directory.join("pipe")).status();
        assert!(made.unwrap().success());
        let rest = copy(&directory, &staging, "pruned.json").unwrap();
        assert_eq!(names(&staging), ["COPYING", "LICENSE", "tokenizer.json"]);
        assert_eq!(fs::read_to_string(staging.join("tokenizer.json")).unwrap(), "tokens");
        assert!(fs::symlink_metadata(staging.join("tokenizer.json")).unwrap().is_file());
        let left_out = ["README.md", "gone.txt", "notes.txt", "pipe", "socket", "zero.txt"];
        assert_eq!(rest.left_out, left_out);
    }

    /// Another directory called `blobs` is nobody's cache.
    #[test]
    fn only_the_layout_of_a_cache_is_one() {
        let (root, directory, staging) = repository();
        let plain = root.path().join("plain/model");
        fs::create_dir_all(root.path().join("blobs")).unwrap();
        fs::create_dir_all(&plain).unwrap();
        for name in names(&directory) {
            fs::copy(directory.join(&name), plain.join(&name)).unwrap();
        }
        fs::write(root.path().join("blobs/9f"), "secret").unwrap();
        symlink("../../blobs/9f", plain.join("tokenizer.json")).unwrap();
        let rest = copy(&plain, &staging, "pruned.json").unwrap();
        assert_eq!(rest.left_out, ["tokenizer.json"]);
        assert!(names(&staging).is_empty());
    }

    #[test]
    fn code_is_named_and_other_weights_and_old_hashes_stay() {
        let (_root, directory, staging) = repository();
        for name in ["modeling_x.py", "a.BIN", "manifest.json", "pruned.json", "vocab.txt"] {
            fs::write(directory.join(name), name).unwrap();
        }
        let rest = copy(&directory, &staging, "pruned.json").unwrap();
        assert_eq!(names(&staging), ["modeling_x.py", "vocab.txt"]);
        assert_eq!((rest.code, rest.weights), (vec!["modeling_x.py".into()], vec!["a.BIN".into()]));
    }
}
