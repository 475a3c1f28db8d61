//! Folders in, files out.

use super::{Report, Request};
use crate::figure::picture::{self, PictureError};
use crate::figure::{drawable, table};
use crate::provenance::Apart;
use crate::run::{Run, RunError};
use crate::suite::SuiteTable;
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
#[derive(Default)]
pub(super) struct Found {
    /// Each run once.
    pub(super) runs: Vec<Run>,
    pub(super) suites: Vec<SuiteTable>,
    /// What could not be read, in sentences.
    pub(super) left_out: Vec<String>,
}

/// Runs and suites of folders. A damaged one is left out as long as there are others.
pub(super) fn read(inputs: &[PathBuf]) -> Result<Found, ReportError> {
    let mut found = Found::default();
    let mut paths = Vec::new();
    for input in inputs {
        let inside = if Run::is_run(input) {
            vec![input.clone()]
        } else if SuiteTable::is_suite(input) {
            match SuiteTable::read(input) {
                Ok(table) => found.suites.extend(table),
                Err(error) => found.left_out.push(format!(
                    "The table is left out: {error}; hadal compare writes it again."
                )),
            }
            SuiteTable::runs(input)?
        } else {
            let mut inside: Vec<PathBuf> = fs::read_dir(input)
                .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
                .unwrap_or_default();
            inside.retain(|path| Run::is_run(path));
            inside.sort();
            inside
        };
        if inside.is_empty() {
            return Err(ReportError::Nothing { path: input.clone() });
        }
        for path in inside {
            let known = |other: &PathBuf| same(other, &path);
            if !paths.iter().any(known) {
                paths.push(path);
            }
        }
    }
    if paths.is_empty() {
        return Err(ReportError::NoInput);
    }
    let mut failed = None;
    for path in &paths {
        match Run::read(path) {
            Ok(run) => found.runs.push(run),
            Err(error) => {
                found.left_out.push(format!("{} is left out: {error}.", path.display()));
                failed.get_or_insert(error);
            }
        }
    }
    match failed {
        Some(error) if found.runs.is_empty() => Err(error.into()),
        _ => Ok(found),
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
