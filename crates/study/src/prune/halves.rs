//! Data to choose on, and other data to judge the choice by.

use super::error::PruneError;
use crate::{Samples, Subject};
use hadal_data::Batch;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a plan was measured with, so that its cut can be measured with the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredOn {
    /// The text or the directory; none for the held-out data of a run.
    pub path: Option<PathBuf>,
    /// Batches that were read.
    pub batches: usize,
    /// blake3 of their tokens.
    pub tokens: String,
}

/// Data to choose on, and other data to judge the choice by.
pub(super) struct Halves {
    pub(super) choice: Vec<Batch>,
    pub(super) judge: Vec<Batch>,
    /// Whether these are different.
    pub(super) apart: bool,
    pub(super) measured_on: MeasuredOn,
}

impl Halves {
    /// Reads as many batches as are wanted.
    pub(super) fn read(
        subject: &Subject,
        data: Option<&Path>,
        batches: Option<usize>,
    ) -> Result<Self, PruneError> {
        let samples = Samples::of(subject, data)?;
        let all = (0..samples.batches(batches)).map(|index| Ok(samples.batch(index)?));
        let batches = all.collect::<Result<Vec<_>, PruneError>>()?;
        let path = data.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.into()));
        Ok(Self::of(batches, path))
    }

    /// What a plan was measured with, if it is still there and the same.
    pub(super) fn again(subject: &Subject, of: &MeasuredOn) -> Result<Self, String> {
        let found = Self::read(subject, of.path.as_deref(), Some(of.batches))
            .map_err(|error| error.to_string())?;
        match found.measured_on.tokens == of.tokens {
            true => Ok(found),
            false => Err("the plan's data has changed since".into()),
        }
    }

    /// Every second batch, so that both halves come from all over the text.
    fn of(batches: Vec<Batch>, path: Option<PathBuf>) -> Self {
        let mut hasher = blake3::Hasher::new();
        batches.iter().for_each(|batch| hash_into(&mut hasher, batch));
        let tokens = hasher.finalize().to_string();
        let measured_on = MeasuredOn { path, batches: batches.len(), tokens };
        if batches.len() < 2 {
            return Self { choice: batches.clone(), judge: batches, apart: false, measured_on };
        }
        let (mut choice, mut judge) = (Vec::new(), Vec::new());
        for (i, batch) in batches.into_iter().enumerate() {
            if i % 2 == 0 { choice.push(batch) } else { judge.push(batch) }
        }
        Self { choice, judge, apart: true, measured_on }
    }
}

/// Adds all of a batch to a hash.
pub(crate) fn hash_into(hasher: &mut blake3::Hasher, batch: &Batch) {
    for tokens in [&batch.input, &batch.target] {
        hasher.update(&(tokens.batch() as u64).to_le_bytes());
        hasher.update(&(tokens.ids().len() as u64).to_le_bytes());
        for id in tokens.ids() {
            hasher.update(&id.to_le_bytes());
        }
    }
    hasher.update(&(batch.scored.len() as u64).to_le_bytes());
    for &scored in &batch.scored {
        hasher.update(&[u8::from(scored)]);
    }
}
