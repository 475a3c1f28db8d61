//! Measurements that outlive a command that is stopped, so that the next one goes on.
//!
//! What a model does with a piece of data without some parts depends on nothing else. So an entry is found by the hash
//! of the piece and the parts, whatever the budget, and is as good as new to the bit.

use super::error::PruneError;
use super::file::Source;
use super::halves::hash_into;
use super::measure::Sums;
use hadal_cpu::Form;
use hadal_data::Batch;
use hadal_files::{Action, file_error, point, pretty_json, read_at_most, write_whole};
use hadal_model::Part;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often entries are written: a kill costs no more than this.
const EVERY: Duration = Duration::from_secs(10);
/// Tens of thousands of entries are some megabytes.
const LONGEST: u64 = 1 << 28;

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Where it is kept, and of which model.
    place: Option<(PathBuf, String)>,
    entries: BTreeMap<String, Entry>,
    saved: Option<Instant>,
}

/// Sums over the positions of a piece, as bits, or why the parts cannot go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Sums([u64; 2]),
    Refused(String),
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// What measured what: the program, and the model's hashes.
    of: String,
    entries: BTreeMap<String, Entry>,
}

/// Where measurements for a plan are kept until it is written: `plan.json.measured`.
pub fn measurements_of(plan: &Path) -> PathBuf {
    let mut name = plan.file_name().unwrap_or_default().to_owned();
    name.push(".measured");
    plan.with_file_name(name)
}

/// Removes what was kept for a plan, which is written now.
pub fn discard_measurements(plan: &Path) -> Result<(), PruneError> {
    let path = measurements_of(plan);
    if !path.exists() {
        return Ok(());
    }
    point(Action::Remove, &path)?;
    Ok(fs::remove_file(&path).map_err(file_error(Action::Remove, &path))?)
}

impl Ledger {
    /// Opens what an earlier command left, or begins anew. Measurements of another model are not thrown away without
    /// `force`.
    pub(super) fn open(path: &Path, source: &Source, force: bool) -> Result<Self, PruneError> {
        let of = identity(source);
        let mut ledger = Self { place: Some((path.into(), of.clone())), ..Self::default() };
        if !path.exists() {
            return Ok(ledger);
        }
        let kept: Option<Kept> = serde_json::from_slice(&read_at_most(path, LONGEST)?).ok();
        match kept {
            Some(kept) if kept.of == of => {
                ledger.entries = kept.entries;
                Ok(ledger)
            }
            _ if force => Ok(ledger),
            _ => Err(PruneError::OtherMeasurements { path: path.into() }),
        }
    }

    /// Where it is kept.
    pub(super) fn path(&self) -> Option<&Path> {
        self.place.as_ref().map(|(path, _)| path.as_path())
    }

    pub(super) fn get(&self, piece: &str, cut: &[Part]) -> Option<Result<Sums, String>> {
        Some(match self.entries.get(&key(piece, cut))? {
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
        self.entries.insert(key(piece, cut), entry);
    }

    /// Writes everything, if it has a place.
    pub(super) fn save(&mut self) -> Result<(), PruneError> {
        let Some((path, of)) = &self.place else { return Ok(()) };
        let kept = Kept { of: of.clone(), entries: std::mem::take(&mut self.entries) };
        let text = pretty_json(path, &kept)?;
        self.entries = kept.entries;
        self.saved = Some(Instant::now());
        Ok(write_whole(path, text)?)
    }

    /// The same, if it is time.
    pub(super) fn save_now_and_then(&mut self) -> Result<(), PruneError> {
        let saved = *self.saved.get_or_insert_with(Instant::now);
        if self.place.is_some() && saved.elapsed() >= EVERY { self.save() } else { Ok(()) }
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

/// The program and the model. Other programs and other SIMD forms differ in the last bits.
fn identity(source: &Source) -> String {
    let form = Form::best();
    let hashes: Vec<&str> = source.files.iter().map(|file| file.blake3.as_str()).collect();
    format!("hadal {}, {form}, {}", env!("CARGO_PKG_VERSION"), hashes.join(" "))
}
