//! The state of a run at a step: everything that the next step depends on.
//!
//! A checkpoint is a directory with `state.safetensors` (parameters and what the optimiser
//! remembers), `state.json` (counters) and `manifest.json` (blake3 of both). It is written under
//! another name, flushed and renamed, so a directory with the right name is whole.

use super::skip::SkipState;
use crate::optim::Optimizer;
use hadal_files::{Action, FileError, StagedDirectory, file_error, hash, pretty_json, write_whole};
use hadal_model::{Decoder, TensorFile, TensorFileError, write_tensors};
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const TENSORS: &str = "state.safetensors";
const COUNTERS: &str = "state.json";
const MANIFEST: &str = "manifest.json";

/// The counters of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// Optimiser steps done.
    pub step: u64,
    /// Sequences that were left out after failures.
    pub skipped_sequences: u64,
    /// Failures so far.
    pub failures: u64,
    /// Best held-out loss so far, and its step.
    pub best: Option<(f64, u64)>,
    /// The state of skipping, from the first step on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<SkipState>,
    /// Bytes of each log that belong to this state: what a killed run wrote later is cut off.
    pub logs: BTreeMap<String, u64>,
    /// Hash of the resolved config: a run must not continue with another.
    pub config: String,
    /// Hash of the data and its tokenizer, for the same reason.
    pub data: String,
}

/// Why a state cannot be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not what was written.
    #[error(
        "{} is damaged ({reason}); remove its directory to continue from the checkpoint before it",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The tensors cannot be read.
    #[error(transparent)]
    Tensors(#[from] TensorFileError),
}

/// Saves a state under `directory`, which must not exist yet.
pub(crate) fn save(
    state: &State,
    decoder: &Decoder,
    optimizer: &Optimizer,
    directory: &Path,
) -> Result<(), StateError> {
    let staged = StagedDirectory::create(directory)?;
    let tensors = staged.path().join(TENSORS);
    write_state(decoder, optimizer, &tensors)?;
    let counters = staged.path().join(COUNTERS);
    write_json(state, &counters)?;
    let hashes: BTreeMap<&str, String> =
        BTreeMap::from([(TENSORS, hash(&tensors)?.0), (COUNTERS, hash(&counters)?.0)]);
    write_json(&hashes, &staged.path().join(MANIFEST))?;
    Ok(staged.finish()?)
}

fn write_json(value: &impl Serialize, path: &Path) -> Result<(), FileError> {
    write_whole(path, pretty_json(path, value)?)
}

/// `w.`, `m.` and `v.` before a parameter's name: its values and two running means.
fn write_state(decoder: &Decoder, optimizer: &Optimizer, path: &Path) -> Result<(), FileError> {
    let mut bytes = Vec::new();
    for (name, values) in decoder.parameters() {
        let slot = &optimizer.slots()[&name];
        for (prefix, values) in [("w", &values), ("m", &slot.first), ("v", &slot.second)] {
            if !values.is_empty() {
                let le: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                bytes.push((format!("{prefix}.{name}"), slot.shape.clone(), le));
            }
        }
    }
    let failed = |error: safetensors::SafeTensorError| {
        let reason = match error {
            safetensors::SafeTensorError::IoError(reason) => reason,
            other => io::Error::other(other),
        };
        file_error(Action::Write, path)(reason)
    };
    let mut views = Vec::new();
    for (name, shape, le) in &bytes {
        views.push((name, TensorView::new(Dtype::F32, shape.clone(), le).map_err(failed)?));
    }
    write_tensors(views, None, path).map_err(failed)
}

fn damage(directory: &Path) -> impl Fn(&str, String) -> StateError {
    |file, reason| StateError::Damaged { path: directory.join(file), reason }
}

/// Checks that a state is whole and reads its counters.
pub(crate) fn read(directory: &Path) -> Result<State, StateError> {
    let damaged = damage(directory);
    let manifest = directory.join(MANIFEST);
    let text = hadal_files::read(&manifest)?;
    let hashes: BTreeMap<String, String> =
        serde_json::from_slice(&text).map_err(|error| damaged(MANIFEST, error.to_string()))?;
    for file in [TENSORS, COUNTERS] {
        let expected = hashes.get(file).ok_or_else(|| damaged(MANIFEST, format!("no {file}")))?;
        if hash(&directory.join(file))?.0 != *expected {
            return Err(damaged(file, "its blake3 is not that of manifest.json".into()));
        }
    }
    let counters = directory.join(COUNTERS);
    let text = hadal_files::read(&counters)?;
    serde_json::from_slice(&text).map_err(|error| damaged(COUNTERS, error.to_string()))
}

/// Restores what [`read`] found whole into a model and its optimiser.
pub(crate) fn restore(
    directory: &Path,
    decoder: &mut Decoder,
    optimizer: &mut Optimizer,
) -> Result<(), StateError> {
    let damaged = damage(directory);
    let file = TensorFile::open(&directory.join(TENSORS))?;
    let stored = |prefix: &str, name: &str, length: usize| {
        let stored = file.floats(&format!("{prefix}.{name}"))?;
        match stored.len() == length {
            true => Ok(stored),
            false => Err(damaged(TENSORS, format!("{prefix}.{name} has another size"))),
        }
    };
    // Everything is read before anything is changed.
    let mut values = BTreeMap::new();
    let mut means = Vec::new();
    for (name, slot) in optimizer.slots() {
        values.insert(name.clone(), stored("w", name, slot.first.len())?);
        for (prefix, mean) in [("m", &slot.first), ("v", &slot.second)] {
            means.push(match mean.is_empty() {
                true => Vec::new(),
                false => stored(prefix, name, mean.len())?,
            });
        }
    }
    let mut means = means.into_iter();
    for slot in optimizer.slots_mut().values_mut() {
        slot.first = means.next().unwrap_or_default();
        slot.second = means.next().unwrap_or_default();
    }
    decoder.change_parameters(|name, elements| {
        if let Some(values) = values.get(name) {
            elements.copy_from_slice(values);
        }
    });
    Ok(())
}
