//! What somebody gave in the place of a model.

use crate::checkpoint::CheckpointError;
use crate::model_files::is_gguf;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// How much of a file is looked at.
const LOOK: u64 = 4096;

/// Refuses what cannot be a model, and says what it is. Whatever cannot be looked at is left to those who read it.
pub(crate) fn refuse_others(path: &Path) -> Result<(), CheckpointError> {
    let what = if path.is_file() {
        what_file(path)
    } else if path.join("config.toml").is_file() && !path.join("config.json").exists() {
        Some("a run that has no finished model yet; go on with `hadal train --resume`".into())
    } else {
        None
    };
    match what {
        Some(what) => Err(CheckpointError::NotAModel { path: path.into(), what }),
        None => Ok(()),
    }
}

fn what_file(path: &Path) -> Option<String> {
    if is_gguf(path) {
        return None;
    }
    let mut head = Vec::new();
    hadal_files::open(path).map(|file: File| file.take(LOOK).read_to_end(&mut head)).ok()?.ok()?;
    let ends_in = |ending: &str| path.extension().is_some_and(|extension| extension == ending);
    let text = String::from_utf8_lossy(&head);
    let is_text = !head.contains(&0)
        && match std::str::from_utf8(&head) {
            Ok(_) => true,
            // Cut in the middle of a character.
            Err(error) => error.error_len().is_none(),
        };
    Some(if head.is_empty() {
        "an empty file".into()
    } else if head.starts_with(b"GGUF") {
        "a GGUF file under another name; let it end in .gguf".into()
    } else if ends_in("safetensors") {
        "weights alone; name the directory that it lies in".into()
    } else if ends_in("json") {
        "one file of a model or of settings; name the directory that it lies in".into()
    } else if ends_in("toml") && text.contains("[[variant]]") {
        "the settings of a suite, which `hadal compare` runs".into()
    } else if ends_in("toml") && text.contains("[model]") {
        "the settings of a run, which `hadal train` trains".into()
    } else if is_text {
        "a text file; a text to read goes to --data or --prompt".into()
    } else {
        "a file of a kind that hadal does not know".into()
    })
}
