//! The state of a run at a step: everything that the next step depends on.
//!
//! A checkpoint is a directory with `state.safetensors` (parameters and what the optimiser
//! remembers), `state.json` (counters) and `manifest.json` (blake3 of both). It is written under
//! another name, flushed and renamed, so a directory with the right name is whole.

mod tensors;

use super::skip::SkipState;
use crate::optim::Optimizer;
use hadal_files::{FileError, StagedDirectory, hash, pretty_json, write_whole};
use hadal_model::{Decoder, TensorFile, TensorFileError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub(crate) const TENSORS: &str = "state.safetensors";
const COUNTERS: &str = "state.json";
const MANIFEST: &str = "manifest.json";

/// The counters of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Ranks that made the run, where its course depends on their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<usize>,
    /// Bytes of each log that belong to this state: what a killed run wrote later is cut off.
    pub logs: BTreeMap<String, u64>,
    /// The blake3 of those bytes, so that a changed log is noticed. Older versions did not write it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub log_hashes: BTreeMap<String, String>,
    /// Fingerprint of the settings: a run must not continue with others.
    pub config: String,
    /// Hash of the data and its tokenizer, for the same reason.
    pub data: String,
}

impl State {
    /// Whether another state of the same run is this one. Logs do not count, they hold times.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let counters = |state: &Self| (state.step, state.skipped_sequences, state.failures);
        counters(self) == counters(other)
            && (&self.config, &self.data, &self.skip) == (&other.config, &other.data, &other.skip)
    }
}

/// Why a state cannot be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file cannot be written.
    #[error(
        "{0}; the checkpoint before it is whole: mend this, then go on with `hadal train --resume`"
    )]
    Unwritten(#[from] FileError),
    /// A file cannot be read, though nothing says that it is damaged.
    #[error(
        "{0}; make it readable, or move its directory away to go on from the checkpoint before it"
    )]
    Unreadable(FileError),
    /// A file is not what was written.
    #[error(
        "{} is damaged ({reason}); move its directory away to go on from the checkpoint before it",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The tensors cannot be used.
    #[error("{0}; move its directory away to go on from the checkpoint before it")]
    Tensors(#[from] TensorFileError),
}

impl StateError {
    /// Whether the state is of no use to anybody, so that another one may take its place.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Tensors(_))
    }
}

/// Saves a state under `directory`, which must not exist yet.
pub(crate) fn save(
    state: &State,
    decoder: &Decoder,
    optimizer: &Optimizer,
    directory: &Path,
) -> Result<(), StateError> {
    let staged = StagedDirectory::create(directory)?;
    let tensors = tensors::write(decoder, optimizer, &staged.path().join(TENSORS))?;
    let counters = write_json(state, &staged.path().join(COUNTERS))?;
    let hashes = BTreeMap::from([(TENSORS, tensors), (COUNTERS, counters)]);
    write_json(&hashes, &staged.path().join(MANIFEST))?;
    Ok(staged.finish()?)
}

/// Writes a file and returns its blake3.
fn write_json(value: &impl Serialize, path: &Path) -> Result<String, FileError> {
    let text = pretty_json(path, value)?;
    write_whole(path, &text)?;
    Ok(blake3::hash(text.as_bytes()).to_string())
}

fn damage(directory: &Path) -> impl Fn(&str, String) -> StateError {
    |file, reason| StateError::Damaged { path: directory.join(file), reason }
}

/// A file that is not there, is none, or lies on a bad sector is damaged. One that this process may not read is not.
fn unreadable(error: FileError) -> StateError {
    const BAD_SECTOR: Option<i32> = Some(5);
    use ErrorKind::{
        InvalidData, InvalidInput, IsADirectory, NotADirectory, NotFound, UnexpectedEof,
    };
    let FileError { path, source, .. } = &error;
    let kinds = [InvalidData, InvalidInput, IsADirectory, NotADirectory, NotFound, UnexpectedEof];
    if kinds.contains(&source.kind()) || cfg!(unix) && source.raw_os_error() == BAD_SECTOR {
        StateError::Damaged { path: path.clone(), reason: source.to_string() }
    } else {
        StateError::Unreadable(error)
    }
}

/// Checks that a state is whole and reads its counters.
pub(crate) fn read(directory: &Path) -> Result<State, StateError> {
    let damaged = damage(directory);
    let text = hadal_files::read(&directory.join(MANIFEST)).map_err(unreadable)?;
    let hashes: BTreeMap<String, String> =
        serde_json::from_slice(&text).map_err(|error| damaged(MANIFEST, error.to_string()))?;
    for file in [TENSORS, COUNTERS] {
        let expected = hashes.get(file).ok_or_else(|| damaged(MANIFEST, format!("no {file}")))?;
        if hash(&directory.join(file)).map_err(unreadable)?.0 != *expected {
            return Err(damaged(file, "its blake3 is not that of manifest.json".into()));
        }
    }
    let text = hadal_files::read(&directory.join(COUNTERS)).map_err(unreadable)?;
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
        for (prefix, mean) in [("m", &slot.first), ("v", &slot.second), ("o", &slot.outer)] {
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
        slot.outer = means.next().unwrap_or_default();
    }
    decoder.change_parameters(|name, elements| {
        if let Some(values) = values.get(name) {
            elements.copy_from_slice(values);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests;
