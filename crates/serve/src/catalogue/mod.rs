//! All runs below a folder, as the list shows them: found on disk, remembered in memory and in
//! `.hadal-index.sqlite`, and read again only when their files have changed.

mod find;
mod keeper;
mod store;
mod suite;
mod summary;
#[cfg(test)]
mod tests;

use hadal_report::run;
pub(crate) use keeper::Keeper;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Store;
pub(crate) use suite::{Suite, answer_first};
pub(crate) use summary::{Standing, Summary};

/// A run that takes long to read is read again after that many times as long.
const PAUSE: u32 = 20;
/// An index that could not be opened is tried again after this.
const RETRY: Duration = Duration::from_secs(30);

/// Runs below a folder, each with its name and its place.
pub(crate) fn found(root: &Path) -> Vec<(String, PathBuf)> {
    find::find(root).runs
}

/// The runs and suites of a folder at some moment.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    /// Every run, by name. Only names that were found are known, so no name leads out of the folder.
    pub(crate) runs: BTreeMap<String, Arc<Entry>>,
    /// All suites, by name.
    pub(crate) suites: BTreeMap<String, Suite>,
    /// Grows whenever something changed.
    pub(crate) revision: u64,
    /// Why there is no index, if there is none.
    pub(crate) index_trouble: Option<String>,
}

impl Snapshot {
    /// Every run, by name.
    pub(crate) fn summaries(&self) -> impl Iterator<Item = &Summary> {
        self.runs.values().map(|entry| &entry.summary)
    }
}

/// A run.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) summary: Summary,
    /// The catalogue's revision at which it changed last.
    pub(crate) revision: u64,
}

/// Makes snapshots of a folder.
pub(crate) struct Catalogue {
    root: PathBuf,
    now: Snapshot,
    read: HashMap<String, Stamp>,
    index: Result<Store, String>,
    tried: Instant,
}

/// The state of a run's files when it was read.
struct Stamp {
    stamp: String,
    not_before: Instant,
}

impl Catalogue {
    /// Opens a folder and looks at it.
    pub(crate) fn open(root: &Path) -> Self {
        let mut catalogue = Self {
            root: root.into(),
            now: Snapshot::default(),
            read: HashMap::new(),
            index: Store::open(root).map_err(|error| error.to_string()),
            tried: Instant::now(),
        };
        let known = match &catalogue.index {
            Ok(store) => store.load().unwrap_or_default(),
            Err(_) => HashMap::new(),
        };
        catalogue.look_with(known);
        catalogue
    }

    /// What was there at the last look.
    pub(crate) fn now(&self) -> &Snapshot {
        &self.now
    }

    /// Looks at the folder again.
    pub(crate) fn look(&mut self) {
        self.look_with(HashMap::new());
    }

    /// `known` is what an index remembers from earlier.
    fn look_with(&mut self, mut known: HashMap<String, (String, Summary)>) {
        let found = find::find(&self.root);
        let revision = self.now.revision + 1;
        let mut changed = BTreeSet::new();
        let mut differs = false;
        for (id, path) in &found.runs {
            let stamp = summary::stamp(path);
            let entry = self.now.runs.get_mut(id);
            let is_read = self
                .read
                .get(id)
                .is_some_and(|read| read.stamp == stamp || Instant::now() < read.not_before);
            if let Some(entry) = entry
                && is_read
            {
                let before = entry.summary.status;
                let status = run::status(path).into();
                if before != Standing::Broken && before != status {
                    let entry = Arc::make_mut(entry);
                    entry.summary.status = status;
                    entry.revision = revision;
                    changed.insert(id.clone());
                }
                continue;
            }
            let remembered = known.remove(id).filter(|(known, _)| *known == stamp);
            let started = Instant::now();
            let (summary, lasts) = match remembered {
                Some((_, summary)) if summary.status == Standing::Broken => (summary, true),
                Some((_, summary)) => {
                    (Summary { status: run::status(path).into(), ..summary }, true)
                }
                None => {
                    let (summary, lasts) = Summary::read(id, path);
                    if lasts {
                        changed.insert(id.clone());
                    }
                    (summary, lasts)
                }
            };
            let not_before = Instant::now() + started.elapsed() * PAUSE;
            // What only the machine's trouble shows is neither remembered nor put in the place of what is known.
            let stamp = if lasts { stamp } else { String::new() };
            self.read.insert(id.clone(), Stamp { stamp, not_before });
            if lasts || !self.now.runs.contains_key(id) {
                let entry = Arc::new(Entry { path: path.clone(), summary, revision });
                self.now.runs.insert(id.clone(), entry);
                differs = true;
            }
        }
        differs |= self.look_at_suites(&found, revision);
        if differs || !changed.is_empty() {
            self.now.revision = revision;
        }
        let gone = self.forget(&found);
        // Runs that only the index knows are forgotten, too.
        let unknown = known.into_keys().filter(|id| !found.may_hide(id));
        let gone: Vec<String> = gone.into_iter().chain(unknown).collect();
        self.save(&changed, &gone);
        self.now.index_trouble = self.index.as_ref().err().cloned();
    }

    /// Whether a suite has come, gone or changed.
    fn look_at_suites(&mut self, found: &find::Found, revision: u64) -> bool {
        let mut suites = std::mem::take(&mut self.now.suites);
        let before = suites.len();
        suites
            .retain(|id, _| found.may_hide(id) || found.suites.iter().any(|(name, _)| name == id));
        let mut differs = suites.len() != before;
        for (id, path) in &found.suites {
            let mut suite = Suite::read(id, path, &self.root, suites.get(id));
            if suites.get(id) != Some(&suite) {
                suite.revision = revision;
                suites.insert(id.clone(), suite);
                differs = true;
            }
        }
        self.now.suites = suites;
        differs
    }

    fn forget(&mut self, found: &find::Found) -> Vec<String> {
        let there: BTreeSet<&String> = found.runs.iter().map(|(id, _)| id).collect();
        let is_gone = |id: &&String| !there.contains(id) && !found.may_hide(id);
        let gone: Vec<String> = self.now.runs.keys().filter(is_gone).cloned().collect();
        for id in &gone {
            self.now.runs.remove(id);
            self.read.remove(id);
            self.now.revision += 1;
        }
        gone
    }

    /// Trouble with the index does not affect the pages.
    fn save(&mut self, changed: &BTreeSet<String>, gone: &[String]) {
        let lost = match &self.index {
            Ok(store) => !store.is_there(),
            Err(_) => self.tried.elapsed() >= RETRY,
        };
        if lost {
            self.tried = Instant::now();
            self.index = Store::open(&self.root).map_err(|error| error.to_string());
        }
        let Ok(store) = &mut self.index else { return };
        if !lost && changed.is_empty() && gone.is_empty() {
            return;
        }
        let entries = self.now.runs.iter().filter(|(id, _)| lost || changed.contains(*id));
        let entries = entries.filter_map(|(id, entry)| {
            let stamp = self.read.get(id).filter(|read| !read.stamp.is_empty())?;
            Some((stamp.stamp.as_str(), &entry.summary))
        });
        if let Err(error) = store.save(entries, gone) {
            self.tried = Instant::now();
            self.index = Err(error.to_string());
        }
    }
}
