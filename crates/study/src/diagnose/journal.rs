//! What a diagnosis has found so far, on the disk, so that an interruption loses nothing.

use super::error::DiagnoseError;
use super::exact::{pack, unpack};
use super::identity::Identity;
use super::kind::Kind;
use super::summary::Summary;
use hadal_files::{create_directory, pretty_json, read_at_most, write_whole};
use hadal_report::figure::Figure;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Its name in the folder of a diagnosis.
const FILE: &str = "about/progress.json";
/// No diagnosis has found more.
const LONGEST: u64 = 1 << 28;
/// Between two notes of a diagnostic that is under way; a kill loses this much at most.
const PAUSE: Duration = Duration::from_secs(10);

/// The diagnoses of a command, as far as they got.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    entries: Vec<Entry>,
    /// When it was last written.
    written: Option<Instant>,
}

/// How far the diagnosis of one model got.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Where the model is.
    place: PathBuf,
    identity: Identity,
    /// The summed loss over all of the data, once it was seen.
    pub(crate) loss: Option<f64>,
    pub(crate) done: Vec<Done>,
    pub(crate) begun: Option<Begun>,
}

/// A diagnostic that is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) kind: Kind,
    pub(crate) figures: Vec<Figure>,
    /// What it has to tell, and nothing else.
    pub(crate) told: Summary,
}

/// A diagnostic in the middle of its own passes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begun {
    pub(crate) kind: Kind,
    /// Passes that are done, over all batches.
    pub(crate) passes: usize,
    pub(crate) saved: Value,
}

impl Entry {
    pub(crate) fn done(&self, kind: Kind) -> Option<&Done> {
        self.done.iter().find(|done| done.kind == kind)
    }
}

impl Journal {
    /// What is known about earlier diagnoses in the folder `out`. A file that cannot be read is as good as none.
    pub fn open(out: &Path) -> Self {
        let path = out.join(FILE);
        let read = || -> Option<Vec<Entry>> {
            let value = serde_json::from_slice(&read_at_most(&path, LONGEST).ok()?).ok()?;
            serde_json::from_value(unpack(value)).ok()
        };
        let entries = read().unwrap_or_default();
        Self { path, entries, written: None }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Forgets models that are not among these, and says whose numbers they were.
    pub fn only(&mut self, places: &[PathBuf]) -> Vec<PathBuf> {
        let (kept, others) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|entry| places.contains(&entry.place));
        self.entries = kept;
        Vec::into_iter(others).map(|entry: Entry| entry.place).collect()
    }

    /// Begins or goes on with a model. Says what differs if numbers of this place cannot be used.
    pub(crate) fn begin(
        &mut self,
        place: &Path,
        identity: Identity,
    ) -> (&mut Entry, Vec<&'static str>) {
        let new = Entry { place: place.into(), identity, ..Entry::default() };
        let at = match self.entries.iter().position(|entry| entry.place == place) {
            Some(at) => at,
            None => {
                self.entries.push(new.clone());
                self.entries.len() - 1
            }
        };
        let differs = self.entries[at].identity.differences(&new.identity);
        if !differs.is_empty() {
            self.entries[at] = new;
        }
        (&mut self.entries[at], differs)
    }

    pub(crate) fn entry(&mut self, place: &Path) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.place == place)
    }

    /// Whether it is time to write down where a diagnostic stands.
    pub(crate) fn is_due(&mut self) -> bool {
        self.written.get_or_insert_with(Instant::now).elapsed() >= PAUSE
    }

    /// Writes everything down.
    pub(crate) fn keep(&mut self) -> Result<(), DiagnoseError> {
        if let Some(folder) = self.path.parent() {
            create_directory(folder)?;
        }
        let value = serde_json::to_value(&self.entries).unwrap_or_default();
        write_whole(&self.path, pretty_json(&self.path, &pack(value))?)?;
        self.written = Some(Instant::now());
        Ok(())
    }

    /// What was found for each model so far, in words.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for entry in &self.entries {
            let shown = entry.done.iter().filter(|done| !done.figures.is_empty());
            words.extend(shown.map(|done| done.kind.name().to_owned()));
            words.extend(entry.begun.as_ref().map(|begun| {
                let plural = if begun.passes == 1 { "" } else { "es" };
                format!("{} pass{plural} of {}", begun.passes, begun.kind.name())
            }));
        }
        words
    }

    /// Removes what has been written elsewhere: these diagnostics of all models. What was not asked for stays.
    pub fn finish(mut self, written: &[Kind]) -> Result<(), DiagnoseError> {
        for entry in &mut self.entries {
            entry.done.retain(|done| !written.contains(&done.kind));
        }
        self.entries.retain(|entry| !entry.done.is_empty() || entry.begun.is_some());
        if !self.path.exists() {
            return Ok(());
        }
        if self.entries.is_empty() {
            // It holds nothing any more, so it does no harm if it stays.
            let _ = fs::remove_file(&self.path);
            return Ok(());
        }
        self.keep()
    }
}
