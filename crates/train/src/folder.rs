//! All files of a run in one folder.
//!
//! `config.toml` (resolved settings), `run.json` (data, program, machine), `metrics.jsonl`,
//! `samples.jsonl`, TensorBoard events, `checkpoints/step-N/`, `failures/`, and at the end `outcome.json` and `model/`.

use super::config::{RunConfig, RunConfigError};
use super::provenance;
use hadal_data::FeedError;
use hadal_files::{
    Action, FileError, PART, file_error, pretty_json, read_text, remove_directory, write_whole,
};
use hadal_report::provenance::Provenance;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run's folder, locked for one process.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    _lock: File,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum RunFolderError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is a run already.
    #[error(
        "{} already holds a run; go on with `hadal train --resume {}`, or choose another --out",
        path.display(),
        path.display()
    )]
    Taken { path: PathBuf },
    /// There is no run.
    #[error("{} holds no run (no config.toml); start one with `hadal train --out {}`", path.display(), path.display())]
    NoRun { path: PathBuf },
    /// Another process is at work.
    #[error("{} is being trained by another process", path.display())]
    Busy { path: PathBuf },
    /// The settings cannot be read back.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// The data cannot be opened.
    #[error(transparent)]
    Data(#[from] FeedError),
}

const CONFIG: &str = "config.toml";

impl RunFolder {
    /// A new folder with these settings.
    pub(crate) fn create(path: &Path, config: &RunConfig) -> Result<Self, RunFolderError> {
        if path.join(CONFIG).exists() {
            return Err(RunFolderError::Taken { path: path.into() });
        }
        fs::create_dir_all(path.join("checkpoints")).map_err(file_error(Action::Write, path))?;
        let folder = Self::lock(path)?;
        folder.write(Provenance::FILE, &about_this_run(path, config)?)?;
        let text = toml::to_string(config).map_err(|error| {
            file_error(Action::Write, &path.join(CONFIG))(io::Error::other(error))
        })?;
        // Last, because its presence is what makes the folder a run.
        folder.write(CONFIG, &text)?;
        Ok(folder)
    }

    /// An existing folder and its settings.
    pub(crate) fn open(path: &Path) -> Result<(Self, RunConfig), RunFolderError> {
        let file = path.join(CONFIG);
        if !file.exists() {
            return Err(RunFolderError::NoRun { path: path.into() });
        }
        let folder = Self::lock(path)?;
        let text = read_text(&file)?;
        Ok((folder, RunConfig::parse(&text, &file.display().to_string())?))
    }

    /// The settings as they are written.
    pub(crate) fn settings(&self) -> Result<String, RunFolderError> {
        Ok(read_text(&self.path.join(CONFIG))?)
    }

    fn lock(path: &Path) -> Result<Self, RunFolderError> {
        let file = path.join("lock");
        let lock = File::create(&file).map_err(file_error(Action::Write, &file))?;
        match patiently(|| lock.try_lock()) {
            Ok(()) => Ok(Self { path: path.into(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(RunFolderError::Busy { path: path.into() }),
            Err(TryLockError::Error(reason)) => Err(file_error(Action::Lock, &file)(reason).into()),
        }
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The last part of its path.
    pub(crate) fn name(&self) -> String {
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Where the finished model goes.
    pub(crate) fn model(&self) -> PathBuf {
        self.path.join("model")
    }

    /// Where the state of a step goes.
    pub(crate) fn checkpoint(&self, step: u64) -> PathBuf {
        checkpoint_path(&self.path, step)
    }

    /// Steps with a whole checkpoint, oldest first.
    pub(crate) fn checkpoints(&self) -> Result<Vec<u64>, RunFolderError> {
        checkpoint_steps(&self.path)
    }

    /// Removes checkpoints that are neither among the last `keep` nor among `kept`.
    pub(crate) fn prune(&self, keep: usize, kept: &[u64]) -> Result<(), RunFolderError> {
        let steps = self.checkpoints()?;
        let old = steps.len().saturating_sub(keep.max(1));
        steps[..old].iter().filter(|step| !kept.contains(step)).try_for_each(|&s| self.remove(s))
    }

    /// Removes the checkpoints after a step: they belong to a path that was given up.
    pub(crate) fn remove_after(&self, step: u64) -> Result<(), RunFolderError> {
        let steps = self.checkpoints()?;
        steps.into_iter().filter(|&other| other > step).try_for_each(|step| self.remove(step))
    }

    /// Renames before removing: a kill must not leave half a checkpoint under its own name.
    fn remove(&self, step: u64) -> Result<(), RunFolderError> {
        let path = self.checkpoint(step);
        let aside = path.with_extension(PART);
        fs::rename(&path, &aside).map_err(file_error(Action::Remove, &path))?;
        Ok(remove_directory(&aside)?)
    }

    /// Removes what a killed process left half-written or half-removed.
    pub(crate) fn clear_unfinished(&self) -> Result<(), RunFolderError> {
        for directory in [self.path.join("checkpoints"), self.path.join("failures")] {
            let Ok(entries) = fs::read_dir(&directory) else { continue };
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                if path.extension().is_some_and(|extension| extension == PART) {
                    remove_directory(&path)?;
                }
            }
        }
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<(), RunFolderError> {
        Ok(write_whole(&self.path.join(name), text)?)
    }
}

/// A process that looks at a run holds its lock for a moment, to see whether another process is at work.
fn patiently(try_lock: impl Fn() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    for _ in 0..10 {
        match try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
    try_lock()
}

/// Where a run keeps the state of a step.
pub(crate) fn checkpoint_path(run: &Path, step: u64) -> PathBuf {
    run.join("checkpoints").join(format!("step-{step:09}"))
}

/// Steps for which a run has a whole checkpoint, oldest first.
pub fn checkpoint_steps(run: &Path) -> Result<Vec<u64>, RunFolderError> {
    let directory = run.join("checkpoints");
    let entries = fs::read_dir(&directory).map_err(file_error(Action::Read, &directory))?;
    let mut steps: Vec<u64> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("step-")?.parse().ok())
        .collect();
    steps.sort_unstable();
    Ok(steps)
}

/// What a later reader needs to repeat the run.
fn about_this_run(path: &Path, config: &RunConfig) -> Result<String, RunFolderError> {
    let made = provenance::of(config)?;
    Ok(pretty_json(&path.join(Provenance::FILE), &made)? + "\n")
}
