//! Folders in, files out.

use super::comparable::{Comparable, parted};
use super::{Report, Request};
use crate::figure::picture::{self, PictureError};
use crate::figure::{drawable, table};
use crate::find::find;
use crate::provenance::Apart;
use crate::run::{Run, RunError};
use crate::suite::SuiteTable;
use crate::words::count;
use hadal_files::{Action, FileError, file_error, write_whole};
use std::fs;
use std::path::{Path, PathBuf};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A folder cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The runs do not belong into one table.
    #[error(transparent)]
    Apart(#[from] Apart),
    /// There is nothing to report on.
    #[error("{} holds no run (config.toml), no suite (runs/) and no folder with a run; name what hadal train --out or hadal compare wrote", path.display())]
    Nothing {
        /// The folder.
        path: PathBuf,
    },
    /// No folder was named.
    #[error("no run was named")]
    NoInput,
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A picture cannot be drawn.
    #[error(transparent)]
    Picture(#[from] PictureError),
}

impl ReportError {
    /// Whether the named folders cannot be reported on, rather than the report being impossible to write.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Apart(_) | Self::Nothing { .. } | Self::NoInput)
    }
}

/// What folders hold.
pub(super) struct Found {
    /// Runs that can be compared with each other, suites first.
    pub(super) parts: Vec<Comparable>,
    /// What was taken, in words.
    pub(super) taken: String,
    /// What could not be read, in sentences.
    pub(super) left_out: Vec<String>,
}

/// Runs and suites in and below folders, as `hadal serve` finds them. A damaged one is left out as long as there are
/// others.
pub(super) fn read(inputs: &[PathBuf]) -> Result<Found, ReportError> {
    let (mut runs, mut suites, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for input in inputs {
        let found = find(input);
        if found.runs.is_empty() {
            return Err(ReportError::Nothing { path: input.clone() });
        }
        for folder in found.unread {
            let folder = input.join(folder);
            left_out.push(format!("{} cannot be looked into and is left out.", folder.display()));
        }
        for (_, path) in found.suites {
            add(&mut suites, path);
        }
        for (_, path) in found.runs {
            add(&mut runs, path);
        }
    }
    if runs.is_empty() {
        return Err(ReportError::NoInput);
    }
    let mut parts: Vec<(PathBuf, Comparable)> = suites
        .into_iter()
        .map(|path| {
            let name = path.canonicalize().unwrap_or_else(|_| path.clone());
            let name =
                name.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
            let table = SuiteTable::read(&path).unwrap_or_else(|error| {
                left_out.push(format!(
                    "The table is left out: {error}; hadal compare writes it again."
                ));
                None
            });
            (path, Comparable { suite: Some((name, table)), runs: Vec::new() })
        })
        .collect();
    let (mut others, mut failed) = (Vec::new(), None);
    for path in &runs {
        match Run::read(path) {
            Ok(run) => {
                let mine = parts.iter_mut().filter(|(suite, _)| path.starts_with(suite));
                match mine.max_by_key(|(suite, _)| suite.components().count()) {
                    Some((_, part)) => part.runs.push(run),
                    None => others.push(run),
                }
            }
            Err(error) => {
                left_out.push(format!("{} is left out: {error}.", path.display()));
                failed.get_or_insert(error);
            }
        }
    }
    parts.retain(|(_, part)| !part.runs.is_empty());
    match failed {
        Some(error) if parts.is_empty() && others.is_empty() => return Err(error.into()),
        _ => {}
    }
    let taken = taken(&parts, others.len());
    let suites = parts.into_iter().flat_map(|(_, part)| within_suite(part));
    let parts = suites.chain(parted(others)).collect();
    Ok(Found { parts, taken, left_out })
}

/// A suite's runs have one task; if somebody put others beside them, those stand apart.
fn within_suite(part: Comparable) -> Vec<Comparable> {
    let mut parts = parted(part.runs);
    if let Some(first) = parts.first_mut() {
        first.suite = part.suite;
    }
    parts
}

fn taken(suites: &[(PathBuf, Comparable)], others: usize) -> String {
    let mut parts: Vec<String> = suites
        .iter()
        .map(|(_, part)| {
            let name = part.suite.as_ref().map_or("", |(name, _)| name.as_str());
            format!("{} of the suite {name}", count(part.runs.len(), "run"))
        })
        .collect();
    match (others, parts.len()) {
        (0, _) => {}
        (others, 0) => parts.push(count(others, "run")),
        (others, _) => parts.push(format!("{others} beside")),
    }
    parts.join(", ")
}

/// Adds a folder that is not there yet.
fn add(paths: &mut Vec<PathBuf>, path: PathBuf) {
    if !paths.iter().any(|other| same(other, &path)) {
        paths.push(path);
    }
}

fn same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Every figure in the requested kinds of files.
pub(super) fn figures(
    report: &Report,
    request: &Request,
    mut progress: impl FnMut(&str),
) -> Result<Vec<PathBuf>, ReportError> {
    let mut written = Vec::new();
    for (figure, shared) in report.figures() {
        if drawable(figure).is_none() {
            continue;
        }
        let kinds = [(&request.csv, "csv"), (&request.svg, "svg"), (&request.png, "png")];
        for (directory, kind) in kinds {
            let Some(directory) = directory else { continue };
            let path = free(directory, &crate::figure::slug(&figure.name), kind, &written);
            progress(&path.display().to_string());
            let bytes = match kind {
                "csv" => table::csv(figure).into_bytes(),
                "svg" => picture::svg(figure, shared)?.into_bytes(),
                _ => picture::png(figure, shared)?,
            };
            fs::create_dir_all(directory).map_err(file_error(Action::Write, directory))?;
            write_whole(&path, &bytes)?;
            written.push(path);
        }
    }
    Ok(written)
}

/// A name that no other figure of this report has.
fn free(directory: &Path, name: &str, kind: &str, taken: &[PathBuf]) -> PathBuf {
    let mut path = directory.join(format!("{name}.{kind}"));
    let mut number = 2;
    while taken.contains(&path) {
        path = directory.join(format!("{name}-{number}.{kind}"));
        number += 1;
    }
    path
}
