//! Folders in, files out.

use super::{Report, Request};
use crate::figure::picture::{self, PictureError};
use crate::figure::{drawable, table};
use crate::run::{Run, RunError};
use crate::suite::SuiteTable;
use std::fs::{self, File};
use std::io::{self, Write};
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
    #[error("cannot write {}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A picture cannot be drawn.
    #[error(transparent)]
    Picture(#[from] PictureError),
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

/// Every figure as the kinds of files that were asked for.
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
            fs::create_dir_all(directory)
                .map_err(|reason| ReportError::Io { path: directory.clone(), reason })?;
            write(&path, &bytes)?;
            written.push(path);
        }
    }
    Ok(written)
}

/// A name that no figure of this report has taken.
fn free(directory: &Path, name: &str, kind: &str, taken: &[PathBuf]) -> PathBuf {
    let mut path = directory.join(format!("{name}.{kind}"));
    let mut number = 2;
    while taken.contains(&path) {
        path = directory.join(format!("{name}-{number}.{kind}"));
        number += 1;
    }
    path
}

/// Writes beside the place and renames, so that there is never half a file.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    let failed = |reason| ReportError::Io { path: path.to_owned(), reason };
    let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(beside);
    let written = (|| {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    written.map_err(|reason| {
        // What could not be finished is of no use; that it is there matters less than why.
        let _ = fs::remove_file(&beside);
        failed(reason)
    })
}
