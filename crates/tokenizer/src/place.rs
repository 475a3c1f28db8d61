//! Where a model and its tokenizer are.

use std::fs;
use std::path::{Path, PathBuf};

/// A model's settings, in its directory.
pub const CONFIG: &str = "config.json";
/// A tokenizer beside a model.
pub const TOKENIZER: &str = "tokenizer.json";

/// Whether a path is meant to be a GGUF file.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Where the model of a path is: in a run's folder its finished model; in a directory that holds only one GGUF file, as
/// `hadal prune apply` leaves it, that file. Any other path is the model itself.
pub fn model_at(path: &Path) -> PathBuf {
    if path.join(CONFIG).exists() || !path.is_dir() {
        return path.into();
    }
    let finished = path.join("model");
    if finished.join(CONFIG).is_file() {
        return finished;
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let files: Vec<PathBuf> = entries.filter(|file| is_gguf(file)).collect();
    match files.as_slice() {
        [file] => file.clone(),
        _ => path.into(),
    }
}
