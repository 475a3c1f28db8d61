//! Folders in, files out.

use super::{Report, Request};
use crate::figure::picture::{self, PictureError};
use crate::figure::{drawable, table};
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
        matches!(self, Self::Run(_) | Self::Nothing { .. } | Self::NoInput)
    }
}

/// Runs and suites of folders, each run once.
pub(super) fn read(inputs: &[PathBuf]) -> Result<(Vec<Run>, Vec<SuiteTable>), ReportError> {
    let (mut paths, mut suites) = (Vec::new(), Vec::new());
    for input in inputs {
        let found = if Run::is_run(input) {
            vec![input.clone()]
        } else if SuiteTable::is_suite(input) {
            suites.extend(SuiteTable::read(input)?);
            SuiteTable::runs(input)?
        } else {
            let mut inside: Vec<PathBuf> = fs::read_dir(input)
                .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
                .unwrap_or_default();
            inside.retain(|path| Run::is_run(path));
            inside.sort();
            inside
        };
        if found.is_empty() {
            return Err(ReportError::Nothing { path: input.clone() });
        }
        for path in found {
            let known = |other: &PathBuf| same(other, &path);
            if !paths.iter().any(known) {
                paths.push(path);
            }
        }
    }
    if paths.is_empty() {
        return Err(ReportError::NoInput);
    }
    let runs = paths.iter().map(|path| Run::read(path)).collect::<Result<_, _>>()?;
    Ok((runs, suites))
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
