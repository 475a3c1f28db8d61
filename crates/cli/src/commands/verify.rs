//! `hadal verify`: whether files are still what they were.

use crate::failure::Failure;
use crate::output::{bytes_bar, print_json, show_bytes};
use crate::standard::stdout;
use clap::Args;
use hadal_files::{
    HashError, MANIFEST, Verdict, file_error, is_part, read_any_manifest, verify_now,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check models, runs and prepared data against their hashes
///
/// Everything that hadal writes has a manifest.json with the hashes of the files beside it: models, exports,
/// checkpoints, prepared data. Other files (GGUF, safetensors, tokenizer.json, config.json) get a hash at their first
/// use, which is remembered in the cache; this is such a use. Directories are searched with all that is below them.
///
/// One line for each file: `ok`, `damaged`, `missing`, `remembered` (it had no hash), `replaced` (somebody wrote it
/// since its last use) or `no hash` (the cache cannot be written). Exit code 1 if anything is damaged or missing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal verify runs/mgr                        # its checkpoints and its model
  hadal verify data/books models/smollm2
  hadal verify model-Q4_1.gguf --json
  hadal verify --accept model-Q4_1.gguf        # what it holds now is right

Every command does the same with the model that it reads, unless HADAL_VERIFY=0. The cache is HADAL_CACHE, or hadal in
XDG_CACHE_HOME or ~/.cache.")]
pub(crate) struct Verify {
    /// Files and directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Remember what files without a manifest hold now, whatever they held before
    #[arg(long)]
    accept: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What became of a file.
#[derive(Serialize)]
struct Line {
    path: PathBuf,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Verify {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut lines = Vec::new();
        let mut files = BTreeSet::new();
        for path in &self.paths {
            let before = files.len() + lines.len();
            let metadata = fs::metadata(path);
            let metadata = metadata.map_err(file_error(hadal_files::Action::Read, path));
            if !metadata.map_err(Failure::usage)?.is_dir() {
                files.insert(path.clone());
            } else {
                find(path, &mut files, &mut lines).map_err(Failure::failed)?;
            }
            if files.len() + lines.len() == before {
                return Err(Failure::usage(format!(
                    "{} holds nothing that can be verified: no manifest.json and no model",
                    path.display()
                )));
            }
        }
        let length = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
        let all = files.iter().map(length).sum();
        let bar = bytes_bar("verifying".into());
        let mut done = 0;
        for path in files {
            let mut progress = |read| show_bytes(&bar, done + read, all);
            let verdict = verify_now(&path, self.accept, &mut progress);
            done += length(&path);
            let (status, reason) = match verdict {
                Ok(Verdict::Same) => ("ok", None),
                Ok(Verdict::Remembered) => ("remembered", None),
                Ok(Verdict::Replaced) => ("replaced", None),
                Ok(Verdict::Unknown) => ("no hash", None),
                Err(error) => (status(&error), Some(error.to_string())),
            };
            lines.push(Line { path, status, reason });
        }
        bar.finish_and_clear();
        self.show(&lines)
    }

    fn show(&self, lines: &[Line]) -> Result<ExitCode, Failure> {
        let wrong = lines.iter().filter(|line| line.reason.is_some()).count();
        if self.json {
            print_json(&lines)?;
        } else {
            let mut out = stdout();
            for Line { path, status, .. } in lines {
                writeln!(out, "{status:<10}  {}", path.display())?;
            }
        }
        if wrong == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        let reasons: Vec<&str> = lines.iter().filter_map(|line| line.reason.as_deref()).collect();
        let head = format!("{wrong} of {} files are not what they were", lines.len());
        Err(Failure::failed(format!("{head}:\n  {}", reasons.join("\n  "))))
    }
}

fn status(error: &HashError) -> &'static str {
    match error {
        HashError::Missing { .. } => "missing",
        HashError::File(error) if error.source.kind() == io::ErrorKind::NotFound => "missing",
        HashError::File(_) => "unreadable",
        _ => "damaged",
    }
}

/// Collects what has a hash or should have one, in a directory and below it. Links to directories are not followed.
fn find(
    directory: &Path,
    files: &mut BTreeSet<PathBuf>,
    lines: &mut Vec<Line>,
) -> Result<(), hadal_files::FileError> {
    match read_any_manifest(directory) {
        Ok(hashes) => {
            files.extend(hashes.into_iter().flatten().map(|(name, _)| directory.join(name)));
        }
        Err(error) => lines.push(Line {
            path: directory.join(MANIFEST),
            status: status(&error),
            reason: Some(error.to_string()),
        }),
    }
    let read = file_error(hadal_files::Action::Read, directory);
    for entry in fs::read_dir(directory).map_err(&read)? {
        let entry = entry.map_err(&read)?;
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_part(&name) {
            continue;
        }
        if entry.file_type().map_err(&read)?.is_dir() {
            find(&path, files, lines)?;
        } else if is_model_file(&path, &name) {
            files.insert(path);
        }
    }
    Ok(())
}

/// Whether a model is read from such files.
fn is_model_file(path: &Path, name: &str) -> bool {
    let extension = path.extension().unwrap_or_default();
    let weights = ["safetensors", "gguf"].iter().any(|known| extension.eq_ignore_ascii_case(known));
    let named = ["config.json", "generation_config.json", "tokenizer.json"].contains(&name);
    path.is_file() && (weights || named || name.ends_with(".safetensors.index.json"))
}
