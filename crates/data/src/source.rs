//! What the inputs mean: files, directories and datasets, in a fixed order, each opened when its turn
//! comes.

use super::compression::{Compression, open};
use super::error::DataError;
use super::hub_dataset::{Arrival, DatasetName, Hub, HubFile, explain};
use super::jsonl::JsonLines;
use super::manifest::SourceRecord;
use super::parquet::ParquetRows;
use super::pieces::Piece;
use super::text::TextDocuments;
use hadal_files::{Action, file_error};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::UNIX_EPOCH;

/// The layout of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    JsonLines,
    Parquet,
}

impl Kind {
    /// The layout that the name of a file indicates.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(layout(name)?.0)
    }
}

fn layout(name: &str) -> Option<(Kind, Compression)> {
    let name = name.to_ascii_lowercase();
    if name.ends_with(".parquet") {
        return Some((Kind::Parquet, Compression::None));
    }
    let (name, compression) = if let Some(name) = name.strip_suffix(".gz") {
        (name, Compression::Gzip)
    } else if let Some(name) = name.strip_suffix(".zst") {
        (name, Compression::Zstandard)
    } else {
        (name.as_str(), Compression::None)
    };
    let kind = match name.rsplit_once('.')?.1 {
        "txt" => Kind::Text,
        "jsonl" => Kind::JsonLines,
        _ => return None,
    };
    Some((kind, compression))
}

/// How documents are taken out of files.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// The key or column that holds the text.
    pub(super) text_key: String,
    /// The longest piece.
    pub(super) piece_bytes: usize,
}

/// How far the current file has been read, for progress reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    pub(super) consumed: Arc<AtomicU64>,
    pub(super) arrival: Arc<Arrival>,
}

/// Documents, one piece after the other; after an error nothing follows.
pub(super) type Pieces = Box<dyn Iterator<Item = Result<Piece, DataError>> + Send>;

/// One file, local or remote.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) record: SourceRecord,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Here(PathBuf),
    Hub(HubFile),
}

impl Source {
    fn here(path: PathBuf) -> Result<Self, DataError> {
        if Kind::of(&path.to_string_lossy()).is_none() {
            return Err(DataError::Unsupported { path });
        }
        let metadata = fs::metadata(&path).map_err(file_error(Action::Read, &path))?;
        let modified = metadata.modified().ok().and_then(|time| {
            let age = time.duration_since(UNIX_EPOCH).ok()?;
            u64::try_from(age.as_millis()).ok()
        });
        let record = SourceRecord {
            path: path.to_string_lossy().into_owned(),
            bytes: metadata.len(),
            modified,
        };
        Ok(Self { record, place: Place::Here(path) })
    }

    fn hub(file: HubFile) -> Self {
        // The commit in the path pins the content, so there is no time to compare.
        let record = SourceRecord { path: file.to_string(), bytes: file.bytes, modified: None };
        Self { record, place: Place::Hub(file) }
    }

    /// Begins to read, after fetching the file if need be.
    pub(super) fn open(&self, reading: &Reading, watch: &Watch) -> Result<Pieces, DataError> {
        let path = match &self.place {
            Place::Here(path) => path.clone(),
            Place::Hub(file) => connect(&file.to_string())?.fetch(file, &watch.arrival)?,
        };
        let name = match &self.place {
            Place::Here(path) => path.to_string_lossy(),
            Place::Hub(file) => file.path.as_str().into(),
        };
        let Some((kind, compression)) = layout(&name) else {
            return Err(DataError::Unsupported { path });
        };
        let consumed = &watch.consumed;
        let Reading { text_key, piece_bytes } = reading;
        Ok(match kind {
            Kind::Text => {
                let reader = open(&path, compression, consumed)?;
                Box::new(TextDocuments::new(&path, reader, *piece_bytes))
            }
            Kind::JsonLines => {
                let reader = open(&path, compression, consumed)?;
                Box::new(JsonLines::new(&path, reader, text_key, *piece_bytes))
            }
            Kind::Parquet => Box::new(ParquetRows::open(&path, text_key, *piece_bytes, consumed)?),
        })
    }
}

fn connect(dataset: &str) -> Result<Hub, DataError> {
    Hub::new().map_err(|error| DataError::Hub {
        dataset: dataset.into(),
        reason: explain(&error, "", ""),
    })
}

/// Turns inputs into files. If an interrupted preparation has `recorded` the files of a dataset, those are used: they
/// must not change during the work, and the network may be gone.
pub(super) fn resolve(
    inputs: &[PathBuf],
    recorded: &[SourceRecord],
) -> Result<Vec<Source>, DataError> {
    let mut sources = Vec::new();
    for input in inputs {
        if input.is_dir() {
            let before = sources.len();
            walk(input, &mut sources)?;
            if sources.len() == before {
                return Err(DataError::NoFiles { path: input.clone() });
            }
        } else if input.exists() {
            sources.push(Source::here(input.clone())?);
        } else {
            sources.extend(from_hub(input, recorded)?);
        }
    }
    Ok(sources)
}

/// Every readable file below a directory, in the order of their names. Links to directories are not
/// followed, since they may lead in circles.
fn walk(directory: &Path, sources: &mut Vec<Source>) -> Result<(), DataError> {
    let read = || file_error(Action::Read, directory);
    let mut entries =
        fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(read())?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = entry.path();
        if name.starts_with('.') {
            continue;
        }
        if entry.file_type().map_err(read())?.is_dir() {
            walk(&path, sources)?;
        } else if Kind::of(&name).is_some() && path.is_file() {
            sources.push(Source::here(path)?);
        }
    }
    Ok(())
}

fn from_hub(input: &Path, recorded: &[SourceRecord]) -> Result<Vec<Source>, DataError> {
    let name = input.to_str().unwrap_or_default();
    let dataset = match DatasetName::parse(name) {
        // `notes/today.txt` is a missing file rather than a dataset.
        Some(dataset) if Kind::of(name).is_none() => dataset,
        _ => return Err(DataError::NoSuchInput { input: input.into() }),
    };
    let known: Vec<_> = recorded
        .iter()
        .filter_map(|record| HubFile::parse(&record.path, record.bytes))
        .filter(|file| dataset.includes(file))
        .map(Source::hub)
        .collect();
    if !known.is_empty() {
        return Ok(known);
    }
    let files = connect(name)?.files(&dataset)?;
    Ok(files.into_iter().map(Source::hub).collect())
}
