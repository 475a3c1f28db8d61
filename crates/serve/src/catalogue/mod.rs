//! All runs below a folder, as the list shows them: found on disk, remembered in memory and in
//! `runs.sqlite`, and read again only when their files have changed.

mod find;
mod store;
mod summary;
#[cfg(test)]
mod tests;

use hadal_report::run;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::Store;
pub(crate) use summary::{Standing, Summary};

/// Looking at the disk again sooner than this would show nothing new to a person.
const FRESH: Duration = Duration::from_millis(900);
/// A run that takes long to read is read again after that many times as long.
const PAUSE: u32 = 20;
/// An index that could not be opened is tried again after this.
const RETRY: Duration = Duration::from_secs(30);

/// The runs and suites of a folder.
pub(crate) struct Catalogue {
    root: PathBuf,
    runs: BTreeMap<String, Entry>,
    suites: BTreeMap<String, PathBuf>,
    revision: u64,
    looked: Option<Instant>,
    index: Result<Store, String>,
    tried: Instant,
}

/// A run, and its state when it was read.
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) summary: Summary,
    /// The catalogue's revision at which it changed last.
    pub(crate) revision: u64,
    stamp: String,
    not_before: Instant,
}

impl Catalogue {
    /// Opens a folder and looks at it.
    pub(crate) fn open(root: &Path) -> Self {
        let mut catalogue = Self {
            root: root.into(),
            runs: BTreeMap::new(),
            suites: BTreeMap::new(),
            revision: 0,
            looked: None,
            index: Store::open(root),
            tried: Instant::now(),
        };
        let known = match &catalogue.index {
            Ok(store) => store.load().unwrap_or_default(),
            Err(_) => HashMap::new(),
        };
        catalogue.look(known);
        catalogue
    }

    /// Looks at the folder again, unless it was looked at just now.
    pub(crate) fn refresh(&mut self) {
        if self.looked.is_none_or(|looked| looked.elapsed() >= FRESH) {
            self.look(HashMap::new());
        }
    }

    /// Every run, by name.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.runs.iter()
    }

    /// One run. Only names that were found are known, so no name leads out of the folder.
    pub(crate) fn run(&self, id: &str) -> Option<&Entry> {
        self.runs.get(id)
    }

    /// Every suite, by name.
    pub(crate) fn suites(&self) -> &BTreeMap<String, PathBuf> {
        &self.suites
    }

    /// Grows whenever something changed.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Why there is no index, if there is none.
    pub(crate) fn index_trouble(&self) -> Option<&str> {
        self.index.as_ref().err().map(String::as_str)
    }

    /// `known` is what an index remembers from earlier.
    fn look(&mut self, mut known: HashMap<String, (String, Summary)>) {
        let found = find::find(&self.root);
        let now = Instant::now();
        let revision = self.revision + 1;
        let mut changed = BTreeSet::new();
        for (id, path) in &found.runs {
            let stamp = summary::stamp(path);
            let entry = self.runs.get(id);
            if let Some(entry) = entry
                && (entry.stamp == stamp || now < entry.not_before)
            {
                if entry.summary.status == Standing::Broken {
                    continue;
                }
                let status = run::status(path).into();
                if entry.summary.status != status
                    && let Some(entry) = self.runs.get_mut(id)
                {
                    entry.summary.status = status;
                    entry.revision = revision;
                    changed.insert(id.clone());
                }
                continue;
            }
            let remembered = known.remove(id).filter(|(known, _)| *known == stamp);
            let started = Instant::now();
            let summary = match remembered {
                Some((_, summary)) if summary.status == Standing::Broken => summary,
                Some((_, summary)) => Summary { status: run::status(path).into(), ..summary },
                None => {
                    changed.insert(id.clone());
                    Summary::read(id, path)
                }
            };
            let not_before = Instant::now() + started.elapsed() * PAUSE;
            let entry = Entry { path: path.clone(), summary, revision, stamp, not_before };
            self.runs.insert(id.clone(), entry);
            self.revision = revision;
        }
        if !changed.is_empty() {
            self.revision = revision;
        }
        let gone = self.forget(&found);
        // Runs that only the index knows are forgotten, too.
        let gone: Vec<String> = gone.into_iter().chain(known.into_keys()).collect();
        self.suites = found.suites.into_iter().collect();
        self.save(&changed, &gone);
        self.looked = Some(Instant::now());
    }

    fn forget(&mut self, found: &find::Found) -> Vec<String> {
        let there: BTreeSet<&String> = found.runs.iter().map(|(id, _)| id).collect();
        let gone: Vec<String> =
            self.runs.keys().filter(|id| !there.contains(id)).cloned().collect();
        for id in &gone {
            self.runs.remove(id);
            self.revision += 1;
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
            self.index = Store::open(&self.root);
        }
        let Ok(store) = &mut self.index else { return };
        if !lost && changed.is_empty() && gone.is_empty() {
            return;
        }
        let entries = self.runs.iter().filter(|(id, _)| lost || changed.contains(*id));
        let entries = entries.map(|(_, entry)| (entry.stamp.as_str(), &entry.summary));
        if let Err(error) = store.save(entries, gone) {
            self.tried = Instant::now();
            self.index = Err(error.to_string());
        }
    }
}
