//! Datasets of Hugging Face: finding their files and fetching them into the local cache.
//!
//! A name is `owner/name[@revision][:folder]`. The revision is pinned to a commit when the files are first listed, so
//! that a preparation that continues tomorrow reads what it read today.

use super::error::DataError;
use super::source::Kind;
use crate::hub::{Repository, RepositoryKind, RepositoryName, RequestError, Settings};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SCHEME: &str = "hf://datasets/";

/// A dataset, or a folder of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DatasetName(RepositoryName);

impl DatasetName {
    /// Reads `owner/name[@revision][:folder]`; `None` if it cannot be a dataset.
    pub(super) fn parse(input: &str) -> Option<Self> {
        let mut name = RepositoryName::parse(input.strip_prefix(SCHEME).unwrap_or(input))?;
        name.part = name.part.map(|folder| folder.trim_matches('/').to_owned());
        name.part.as_ref().is_none_or(|folder| !folder.is_empty()).then_some(Self(name))
    }

    /// Whether a file that was listed earlier belongs to this dataset.
    pub(super) fn includes(&self, file: &HubFile) -> bool {
        let in_folder = |folder: &String| {
            file.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        file.owner == self.0.owner
            && file.name == self.0.name
            && self.0.part.as_ref().is_none_or(in_folder)
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A file of a dataset at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubFile {
    owner: String,
    name: String,
    commit: String,
    /// Its path inside the dataset.
    pub(super) path: String,
    /// Its length.
    pub(super) bytes: u64,
}

impl HubFile {
    /// Reads what [`Display`](fmt::Display) wrote.
    pub(super) fn parse(record: &str, bytes: u64) -> Option<Self> {
        let (dataset, rest) = record.strip_prefix(SCHEME)?.split_once('@')?;
        let (owner, name) = dataset.split_once('/')?;
        let (commit, path) = rest.split_once('/')?;
        Some(Self {
            owner: owner.into(),
            name: name.into(),
            commit: commit.into(),
            path: path.into(),
            bytes,
        })
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}@{}/{}", self.owner, self.name, self.commit, self.path)
    }
}

/// Bytes of the current download that have arrived, and how many there are; both zero when idle.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
}

impl Arrival {
    fn set(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }
}

/// A connection to Hugging Face, set up by the usual variables (`HF_TOKEN`, `HF_HOME`, `HF_ENDPOINT`).
pub(super) struct Hub {
    settings: Settings,
}

impl Hub {
    /// Prepares a client; nothing is sent yet.
    pub(super) fn new() -> Result<Self, RequestError> {
        Ok(Self { settings: Settings::from_environment()? })
    }

    /// The files of a dataset, sorted: the .parquet ones, or the .jsonl ones where there are none.
    pub(super) fn files(&self, dataset: &DatasetName) -> Result<Vec<HubFile>, DataError> {
        let failed = |reason: String| DataError::Hub { dataset: dataset.to_string(), reason };
        let RepositoryName { owner, name, revision, part } = &dataset.0;
        let explained = |error: RequestError| failed(explain(&error, owner, name));
        let repository = self.repository(owner, name);
        let commit = repository.commit(revision.as_deref()).map_err(explained)?;
        let entries = repository.files(&commit, part.as_deref()).map_err(explained)?;
        let file = |path, bytes| {
            let (owner, name, commit) = (owner.clone(), name.clone(), commit.clone());
            HubFile { owner, name, commit, path, bytes }
        };
        let mut files: Vec<HubFile> =
            entries.into_iter().map(|entry| file(entry.path, entry.size)).collect();
        keep_data(&mut files);
        if files.is_empty() {
            return Err(failed(
                "it holds no .parquet or .jsonl files there; name the folder that does, as \
                 owner/name:folder"
                    .into(),
            ));
        }
        Ok(files)
    }

    /// Fetches a file unless the cache has it, and returns its path.
    pub(super) fn fetch(
        &self,
        file: &HubFile,
        arrival: &Arc<Arrival>,
    ) -> Result<PathBuf, DataError> {
        let HubFile { owner, name, commit, path, .. } = file;
        let progress = |done, total| arrival.set(done, total);
        let fetched = self.repository(owner, name).fetch(commit, path, &progress);
        arrival.set(0, 0);
        fetched.map_err(|error| DataError::Hub {
            dataset: file.to_string(),
            reason: explain(&error, owner, name),
        })
    }

    fn repository(&self, owner: &str, name: &str) -> Repository {
        Repository::new(&self.settings, RepositoryKind::Dataset, owner, name)
    }
}

/// A remedy for a failed request for a dataset.
pub(super) fn explain(error: &RequestError, owner: &str, name: &str) -> String {
    crate::hub::explain(error, RepositoryKind::Dataset, owner, name)
}

/// Repositories hold licences and samples besides the data, and often the same data twice.
fn keep_data(files: &mut Vec<HubFile>) {
    let is = |kind: Kind| move |file: &HubFile| Kind::of(&file.path) == Some(kind);
    let kind =
        if files.iter().any(is(Kind::Parquet)) { is(Kind::Parquet) } else { is(Kind::JsonLines) };
    files.retain(kind);
    files.sort_by(|a, b| a.path.cmp(&b.path));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> HubFile {
        HubFile {
            owner: "o".into(),
            name: "n".into(),
            commit: "abc".into(),
            path: path.into(),
            bytes: 3,
        }
    }

    #[test]
    fn names_of_datasets_are_told_from_other_names() {
        let name = DatasetName::parse("HuggingFaceFW/fineweb:sample/10BT/").unwrap();
        assert_eq!(name.to_string(), "HuggingFaceFW/fineweb:sample/10BT");
        let name = DatasetName::parse("hf://datasets/a/b.c@v1:d").unwrap();
        assert_eq!(name.to_string(), "a/b.c@v1:d");
        for other in ["plain", "a/b:/"] {
            assert_eq!(DatasetName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_recorded_file_is_found_again_by_its_dataset() {
        let file = file("sample/10BT/000.parquet");
        assert_eq!(HubFile::parse(&file.to_string(), 3), Some(file.clone()));
        for (name, included) in
            [("o/n", true), ("o/n:sample", true), ("o/n:sam", false), ("o/m", false)]
        {
            assert_eq!(DatasetName::parse(name).unwrap().includes(&file), included, "{name}");
        }
    }

    #[test]
    fn parquet_files_are_preferred_and_sorted() {
        let mut files: Vec<_> =
            ["b.parquet", "LICENSE.txt", "a.parquet", "c.jsonl"].map(file).into();
        keep_data(&mut files);
        assert_eq!(files, [file("a.parquet"), file("b.parquet")]);
        let mut files: Vec<_> = ["b.jsonl.gz", "README.md", "x.txt"].map(file).into();
        keep_data(&mut files);
        assert_eq!(files, [file("b.jsonl.gz")]);
    }

    #[test]
    fn without_a_network_the_message_says_what_to_do() {
        // A port that was just free, so that nothing answers.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let cache = tempfile::tempdir().unwrap();
        let settings = Settings::at(&format!("http://127.0.0.1:{port}"), cache.path());
        let hub = Hub { settings };
        let error = hub.files(&DatasetName::parse("o/n:sample").unwrap()).unwrap_err().to_string();
        assert!(error.contains("dataset o/n:sample: huggingface.co cannot be reached"), "{error}");
        assert!(error.contains("give their directory"), "{error}");
        let error = hub.fetch(&file("a.parquet"), &Arc::default()).unwrap_err().to_string();
        assert!(error.contains("hf://datasets/o/n@abc/a.parquet"), "{error}");
    }
}
