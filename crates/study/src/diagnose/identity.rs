//! What a diagnosis is of: numbers of another model, other data or other settings must not be mixed with its own.

use super::error::DiagnoseError;
use crate::subject::form;
use crate::{Samples, Subject};
use serde::{Deserialize, Serialize};

/// Hashes of everything that the numbers depend on. Which diagnostics were asked for is no part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Its shape and every parameter.
    model: String,
    /// Every token that it is shown.
    data: String,
    /// What is left out of it, and how far a run's gains have warmed up.
    settings: String,
    /// This version, and the SIMD form or device that it computes in.
    program: String,
}

impl Identity {
    pub(crate) fn of(
        subject: &Subject,
        samples: &Samples,
        batches: usize,
    ) -> Result<Self, DiagnoseError> {
        let mut model = blake3::Hasher::new();
        model.update(format!("{:?}", subject.model()).as_bytes());
        for (name, read) in subject.decoder.parameter_readers() {
            model.update(name.as_bytes());
            let mut bytes = Vec::new();
            for part in read().chunks(1 << 14) {
                bytes.clear();
                bytes.extend(part.iter().flat_map(|value| value.to_le_bytes()));
                model.update(&bytes);
            }
        }
        let mut data = blake3::Hasher::new();
        for index in 0..batches {
            let batch = samples.batch(index)?;
            for ids in [batch.input.ids(), batch.target.ids()] {
                data.update(&(ids.len() as u64).to_le_bytes());
                ids.iter().for_each(|id| _ = data.update(&id.to_le_bytes()));
            }
            let scored: Vec<u8> = batch.scored.iter().map(|&scored| scored.into()).collect();
            data.update(&(batch.input.batch() as u64).to_le_bytes()).update(&scored);
        }
        let settings = format!("{:?} {:?}", subject.absent, subject.mode);
        let device = subject.decoder.device();
        Ok(Self {
            model: model.finalize().to_string(),
            data: data.finalize().to_string(),
            settings: blake3::hash(settings.as_bytes()).to_string(),
            program: format!("{} {}", env!("CARGO_PKG_VERSION"), form(&device)),
        })
    }

    /// In what two differ, in words.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        [
            ("another model", self.model == other.model),
            ("other data", self.data == other.data),
            ("other settings", self.settings == other.settings),
            ("another version of hadal", self.program == other.program),
        ]
        .into_iter()
        .filter_map(|(words, same)| (!same).then_some(words))
        .collect()
    }
}
