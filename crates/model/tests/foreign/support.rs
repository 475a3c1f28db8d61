//! The golden directories, and copies of them that a test may change.

use hadal_model::{Cache, Decoder, Pass, TensorFile, Tokens};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden-hf").join(name)
}

pub(crate) fn goldens() -> Vec<PathBuf> {
    let entries = fs::read_dir(golden("")).unwrap();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(found.len() >= 19, "{found:?}");
    found
}

/// A directory's tokens and the logits of `transformers` for them, `[T, V]`.
pub(crate) fn expected(directory: &Path) -> (Vec<u32>, Vec<f32>) {
    let file = TensorFile::open(&directory.join("logits.safetensors")).unwrap();
    let ids = file.integers("input_ids").unwrap();
    (ids.into_iter().map(|id| id as u32).collect(), file.floats("logits").unwrap())
}

pub(crate) fn logits(decoder: &Decoder, ids: &[u32]) -> Vec<f32> {
    let logits = decoder.logits(&Tokens::row(ids), Pass::default()).unwrap();
    logits.try_into_vec_as().unwrap()
}

/// The logits of a text that is read in parts.
pub(crate) fn cached(decoder: &Decoder, ids: &[u32], first: usize) -> Vec<f32> {
    let mut cache = Cache::new(decoder.config());
    let mut all = Vec::new();
    let (prompt, rest) = ids.split_at(first);
    for part in std::iter::once(prompt).chain(rest.chunks(1)) {
        let pass = Pass { cache: Some(&mut cache), ..Pass::default() };
        let logits = decoder.logits(&Tokens::row(part), pass).unwrap();
        all.extend(logits.try_into_vec_as::<f32>().unwrap());
    }
    all
}

#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 1e-4, "{what}, logit {i}: {got} is not {want}");
    }
}

pub(crate) fn copy_of(name: &str) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let entry = entry.unwrap();
        fs::write(copy.path().join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
    }
    copy
}

/// Changes one key of a JSON file.
pub(crate) fn set(file: &Path, pointer: &str, value: Value) {
    let mut json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[key] = value;
    fs::write(file, json.to_string()).unwrap();
}
