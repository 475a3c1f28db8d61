//! What was measured for a plan, so that one that is stopped goes on.
//!
//! What a model does with a piece of data without some parts depends on nothing else. So an entry is found by the hash
//! of the piece and the parts, whatever the budget, and is as good as new to the bit.

use super::error::PruneError;
use super::file::Source;
use super::halves::hash_into;
use super::measure::Sums;
use crate::kept::{Kept, KeptError};
use crate::subject::form;
use hadal_data::Batch;
use hadal_model::{Device, Part};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Ledger(Kept<Entry>);

/// Sums over the positions of a piece, as bits, or why the parts cannot go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Sums([u64; 2]),
    Refused(String),
}

impl Ledger {
    /// Opens what an earlier command left, or begins anew. Measurements of another model are not thrown away without
    /// `force`.
    pub(super) fn open(
        path: &Path,
        source: &Source,
        device: &Device,
        force: bool,
    ) -> Result<Self, PruneError> {
        Kept::open(path, identity(source, device), force).map(Self).map_err(|error| match error {
            KeptError::File(error) => error.into(),
            KeptError::Other => PruneError::OtherMeasurements { path: path.into() },
        })
    }

    /// Where it is kept.
    pub(super) fn path(&self) -> Option<&Path> {
        self.0.path()
    }

    pub(super) fn get(&self, piece: &str, cut: &[Part]) -> Option<Result<Sums, String>> {
        Some(match self.0.get(&key(piece, cut))? {
            Entry::Sums([loss, kl]) => {
                Ok(Sums { loss: f64::from_bits(*loss), kl: f64::from_bits(*kl) })
            }
            Entry::Refused(reason) => Err(reason.clone()),
        })
    }

    pub(super) fn put(&mut self, piece: &str, cut: &[Part], found: &Result<Sums, String>) {
        let entry = match found {
            Ok(sums) => Entry::Sums([sums.loss.to_bits(), sums.kl.to_bits()]),
            Err(reason) => Entry::Refused(reason.clone()),
        };
        self.0.put(key(piece, cut), entry);
    }

    /// Writes everything, if it has a place.
    pub(super) fn save(&mut self) -> Result<(), PruneError> {
        Ok(self.0.save()?)
    }

    /// The same, if it is time.
    pub(super) fn save_now_and_then(&mut self) -> Result<(), PruneError> {
        Ok(self.0.save_now_and_then()?)
    }
}

/// The hash of a piece of data.
pub(super) fn name(piece: &Batch) -> String {
    const DIGITS: usize = 32;
    let mut hasher = blake3::Hasher::new();
    hash_into(&mut hasher, piece);
    hasher.finalize().to_hex()[..DIGITS].to_owned()
}

fn key(piece: &str, cut: &[Part]) -> String {
    format!("{piece} {}", Part::list(&Part::of_sites(&Part::all_sites(cut))))
}

/// The program and the model. Other programs, SIMD forms and devices differ in the last bits.
fn identity(source: &Source, device: &Device) -> String {
    let form = form(device);
    let hashes: Vec<&str> = source.files.iter().map(|file| file.blake3.as_str()).collect();
    format!("hadal {}, {form}, {}", env!("CARGO_PKG_VERSION"), hashes.join(" "))
}
