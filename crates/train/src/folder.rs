//! All files of a run in one folder.
//!
//! `config.toml` (resolved settings), `run.json` (data, program, machine), `metrics.jsonl`,
//! `samples.jsonl`, TensorBoard events, `checkpoints/step-N/`, `failures/`, `companions/` of the model that the run
//! began with, and at the end `outcome.json` and `model/`.

use super::config::{RunConfig, RunConfigError};
use super::metrics::{METRICS, SAMPLES};
use super::outcome::{OUTCOME, PEAK};
use super::provenance;
use hadal_data::FeedError;
use hadal_files::{
    Action, FileError, MANIFEST, PART, create_directory, file_error, point, pretty_json, read_text,
    remove_directory, write_whole,
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
    settings: String,
    /// `None` on a rank that writes nothing.
    _lock: Option<File>,
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
    /// There is what another run left.
    #[error(
        "{} has no config.toml, but what another run left: {}; move it away, or choose another --out",
        path.display(),
        left.join(", ")
    )]
    Leftovers { path: PathBuf, left: Vec<String> },
    /// There is no run.
    #[error("{} holds no run (no config.toml); start one with `hadal train --out {}`", path.display(), path.display())]
    NoRun { path: PathBuf },
    /// Another process is at work.
    #[error("{} is being trained by another process; wait for its end, or choose another --out", path.display())]
    Busy { path: PathBuf },
    /// The settings cannot be read back.
    #[error("{0}; restore the file, or start a new run")]
    Config(#[from] RunConfigError),
    /// The data cannot be opened.
    #[error(transparent)]
    Data(#[from] FeedError),
}

const CONFIG: &str = "config.toml";
const MODEL: &str = "model";
const CHECKPOINTS: &str = "checkpoints";
const FAILURES: &str = "failures";
/// What goes along with the model that the run began with, for the one that it ends with: it may be gone by then.
const COMPANIONS: &str = "companions";
/// The extension of a checkpoint that was found damaged.
const DAMAGED: &str = "damaged";

impl RunFolder {
    /// A new folder with these settings. Whatever else lies in it stays, but nothing of another run may.
    pub(crate) fn create(
        path: &Path,
        config: &RunConfig,
        companions: &[(&str, Vec<u8>)],
    ) -> Result<Self, RunFolderError> {
        create_directory(path)?;
        // Whoever holds the lock is alone from here on; before that, another process may be doing the same.
        let lock = lock(path)?;
        refuse_leftovers(path)?;
        create_directory(&path.join(CHECKPOINTS))?;
        let settings = toml::to_string(config).map_err(|error| {
            file_error(Action::Write, &path.join(CONFIG))(io::Error::other(error))
        })?;
        let folder = Self { path: path.into(), settings, _lock: Some(lock) };
        folder.write(Provenance::FILE, &about_this_run(path, config)?)?;
        if !companions.is_empty() {
            create_directory(&path.join(COMPANIONS))?;
        }
        for (name, content) in companions {
            write_whole(&path.join(COMPANIONS).join(name), content)?;
        }
        // Last, because its presence is what makes the folder a run.
        folder.write(CONFIG, &folder.settings)?;
        Ok(folder)
    }

    /// An existing folder and its settings.
    pub(crate) fn open(path: &Path) -> Result<(Self, RunConfig), RunFolderError> {
        let file = path.join(CONFIG);
        if !file.exists() {
            return Err(RunFolderError::NoRun { path: path.into() });
        }
        let lock = lock(path)?;
        let settings = read_text(&file)?;
        let config = RunConfig::parse(&settings, &file.display().to_string())?;
        Ok((Self { path: path.into(), settings, _lock: Some(lock) }, config))
    }

    /// The folder of a run in which another rank writes. It need not exist here.
    pub(crate) fn of_another_rank(path: &Path, settings: String) -> Self {
        Self { path: path.into(), settings, _lock: None }
    }

    /// Names and contents of what goes along with the model that the run began with.
    pub(crate) fn companions(&self) -> Result<Vec<(String, Vec<u8>)>, FileError> {
        let mut paths = paths_in(&self.path.join(COMPANIONS));
        paths.sort();
        let named = |path: PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, hadal_files::read(&path)?))
        };
        paths.into_iter().map(named).collect()
    }

    /// The settings as they are written.
    pub(crate) fn settings(&self) -> &str {
        &self.settings
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

    /// Where its settings are.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// Writes the hashes of the files that say what the run was and what came out.
    pub(crate) fn write_manifest(&self) -> Result<(), FileError> {
        let files = [CONFIG, Provenance::FILE, METRICS, SAMPLES, OUTCOME];
        hadal_files::write_manifest_of(&self.path, &files)
    }

    /// Where the finished model goes.
    pub(crate) fn model(&self) -> PathBuf {
        self.path.join(MODEL)
    }

    /// Where the state of a step goes.
    pub(crate) fn checkpoint(&self, step: u64) -> PathBuf {
        checkpoint_path(&self.path, step)
    }

    /// Steps with a whole checkpoint, oldest first.
    pub(crate) fn checkpoints(&self) -> Result<Vec<u64>, RunFolderError> {
        checkpoint_steps(&self.path)
    }

    /// Removes checkpoints that are neither among the last `keep` nor among `kept`. Returns those that cannot be
    /// removed, which is no reason to stop.
    pub(crate) fn prune(
        &self,
        keep: usize,
        kept: &[u64],
    ) -> Result<Vec<(u64, FileError)>, RunFolderError> {
        let mut steps = self.checkpoints()?;
        steps.truncate(steps.len().saturating_sub(keep.max(1)));
        steps.retain(|step| !kept.contains(step));
        Ok(self.remove_all(&steps))
    }

    /// Removes the checkpoints after a step: they belong to a path that was given up.
    pub(crate) fn remove_after(&self, step: u64) -> Result<Vec<(u64, FileError)>, RunFolderError> {
        let mut steps = self.checkpoints()?;
        steps.retain(|&other| other > step);
        Ok(self.remove_all(&steps))
    }

    fn remove_all(&self, steps: &[u64]) -> Vec<(u64, FileError)> {
        let removed = |&step: &u64| Some((step, self.remove(step).err()?));
        steps.iter().filter_map(removed).collect()
    }

    /// Renames before removing: a kill must not leave half a checkpoint under its own name.
    fn remove(&self, step: u64) -> Result<(), FileError> {
        let path = self.checkpoint(step);
        let aside = rename_aside(&path, PART)?;
        remove_directory(&aside)
    }

    /// Gives the checkpoint of a step another name, under which nothing looks for it, and returns that.
    pub(crate) fn set_aside(&self, step: u64) -> Result<PathBuf, FileError> {
        rename_aside(&self.checkpoint(step), DAMAGED)
    }

    /// Removes what a killed process left half-written or half-removed, and returns why some of it could not be.
    pub(crate) fn clear_unfinished(&self) -> Vec<FileError> {
        let mut problems = Vec::new();
        for directory in [self.path.join(CHECKPOINTS), self.path.join(FAILURES)] {
            let parts = paths_in(&directory).into_iter().filter(|path| has_extension(path, PART));
            problems.extend(parts.filter_map(|part| remove_directory(&part).err()));
        }
        // Beside them lie files that are not ours.
        for path in paths_in(&self.path).into_iter().filter(|path| has_extension(path, PART)) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let ours = [Provenance::FILE, CONFIG, MODEL, METRICS, SAMPLES, OUTCOME, PEAK, MANIFEST];
            if ours.iter().any(|own| is_part_of(&name, own)) {
                let removed = if path.is_dir() {
                    remove_directory(&path)
                } else {
                    point(Action::Remove, &path).and_then(|()| {
                        fs::remove_file(&path).map_err(file_error(Action::Remove, &path))
                    })
                };
                problems.extend(removed.err());
            }
        }
        problems
    }

    fn write(&self, name: &str, text: &str) -> Result<(), RunFolderError> {
        Ok(write_whole(&self.path.join(name), text)?)
    }
}

/// Refuses a folder in which the files of another run would be taken for the new one's.
fn refuse_leftovers(path: &Path) -> Result<(), RunFolderError> {
    if path.join(CONFIG).exists() {
        return Err(RunFolderError::Taken { path: path.into() });
    }
    let mut left = Vec::new();
    for name in [CHECKPOINTS, FAILURES, COMPANIONS] {
        if let Some(first) = paths_in(&path.join(name)).iter().filter_map(|p| p.file_name()).min() {
            left.push(format!("{name}/{}", first.to_string_lossy()));
        }
    }
    let is_there = |name: &&str| path.join(name).exists();
    left.extend([MODEL, OUTCOME].iter().filter(|name| is_there(name)).map(ToString::to_string));
    let has_lines = |name: &&str| path.join(name).metadata().is_ok_and(|file| file.len() > 0);
    left.extend([METRICS, SAMPLES].iter().filter(|name| has_lines(name)).map(ToString::to_string));
    match left.is_empty() {
        true => Ok(()),
        false => Err(RunFolderError::Leftovers { path: path.into(), left }),
    }
}

fn lock(path: &Path) -> Result<File, RunFolderError> {
    let file = path.join("lock");
    point(Action::Write, &file)?;
    let lock = File::create(&file).map_err(file_error(Action::Write, &file))?;
    match patiently(|| lock.try_lock()) {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(RunFolderError::Busy { path: path.into() }),
        // Some network disks have none. Two processes in one folder are then not seen here.
        Err(TryLockError::Error(reason)) if has_no_locks(&reason) => Ok(lock),
        Err(TryLockError::Error(reason)) => Err(file_error(Action::Lock, &file)(reason).into()),
    }
}

/// Whether a file system says that it knows no locks.
fn has_no_locks(reason: &io::Error) -> bool {
    #[cfg(unix)]
    let is_without = [libc::ENOLCK, libc::ENOSYS, libc::EOPNOTSUPP]
        .iter()
        .any(|number| reason.raw_os_error() == Some(*number));
    #[cfg(not(unix))]
    let is_without = false;
    is_without || reason.kind() == io::ErrorKind::Unsupported
}

fn paths_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own == extension)
}

/// Whether a name is that of a part of this file: `NAME.RANDOM.part`.
fn is_part_of(name: &str, own: &str) -> bool {
    let between =
        || name.strip_prefix(own)?.strip_prefix('.')?.strip_suffix(PART)?.strip_suffix('.');
    between().is_some_and(|random| random.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Renames a directory by an extension, and by a number if that name is taken: something may lie there that cannot be
/// removed.
fn rename_aside(path: &Path, extension: &str) -> Result<PathBuf, FileError> {
    let name = |number: u32| match number {
        0 => path.with_extension(extension),
        _ => path.with_extension(format!("{number}.{extension}")),
    };
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    let aside = (0..u32::MAX).map(name).find(is_free).unwrap_or_else(|| name(u32::MAX));
    point(Action::Rename, &aside)?;
    fs::rename(path, &aside).map_err(file_error(Action::Rename, &aside))?;
    Ok(aside)
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
    run.join(CHECKPOINTS).join(format!("step-{step:09}"))
}

/// Steps for which a run has a whole checkpoint, oldest first.
pub fn checkpoint_steps(run: &Path) -> Result<Vec<u64>, RunFolderError> {
    let directory = run.join(CHECKPOINTS);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error(Action::Read, &directory)(error).into()),
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfigLayers;
    use std::sync::Barrier;

    fn settings(seed: u64) -> RunConfig {
        ConfigLayers::from_preset("nano").unwrap().with_seed(seed).finish().unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn a_file_system_without_locks_is_told_from_other_trouble() {
        for (number, without) in [
            (libc::ENOLCK, true),
            (libc::ENOSYS, true),
            (libc::EOPNOTSUPP, true),
            (libc::EIO, false),
        ] {
            assert_eq!(has_no_locks(&io::Error::from_raw_os_error(number)), without, "{number}");
        }
    }

    #[test]
    fn of_many_starts_into_one_new_folder_exactly_one_wins() {
        const STARTS: usize = 6;
        let directory = tempfile::tempdir().unwrap();
        for round in 0..10 {
            let path = &directory.path().join(round.to_string());
            let barrier = &Barrier::new(STARTS);
            let start = |seed: usize| {
                barrier.wait();
                // Dropped at once: those that waited for the lock find a run.
                RunFolder::create(path, &settings(seed as u64), &[]).map(|_| seed as u64)
            };
            let ends: Vec<_> = std::thread::scope(|scope| {
                let starts: Vec<_> =
                    (0..STARTS).map(|seed| scope.spawn(move || start(seed))).collect();
                starts.into_iter().map(|start| start.join().unwrap()).collect()
            });
            let (won, lost): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
            let won: Vec<u64> = won.into_iter().map(Result::unwrap).collect();
            let (_, config) = RunFolder::open(path).unwrap();
            assert_eq!(won, [config.seed]);
            use RunFolderError::{Busy, Taken};
            let refused = |end: &Result<u64, _>| matches!(end, Err(Busy { .. } | Taken { .. }));
            assert!(lost.iter().all(refused), "{lost:?}");
        }
    }

    #[test]
    fn what_cannot_be_removed_is_reported_and_stands_in_nobodys_way() {
        let directory = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(directory.path(), &settings(0), &[]).unwrap();
        for step in 1..=3 {
            fs::create_dir(folder.checkpoint(step)).unwrap();
        }
        // A file is no directory that could be emptied, and its part stays.
        fs::remove_dir(folder.checkpoint(1)).unwrap();
        for _ in 0..2 {
            fs::write(folder.checkpoint(1), "").unwrap();
            let left = folder.prune(2, &[]).unwrap();
            assert!(
                matches!(&left[..], [(1, error)] if error.to_string().contains("step-000000001"))
            );
            assert_eq!(folder.checkpoints().unwrap(), [2, 3]);
        }
        let first = folder.set_aside(3).unwrap();
        fs::create_dir(folder.checkpoint(3)).unwrap();
        assert_ne!(folder.set_aside(3).unwrap(), first);
        assert!(folder.remove_after(1).unwrap().is_empty());
        assert_eq!(folder.checkpoints().unwrap(), [] as [u64; 0]);
        assert_eq!(folder.clear_unfinished().len(), 2);
    }

    #[test]
    fn only_parts_of_the_runs_own_files_are_cleared_away() {
        let directory = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(directory.path(), &settings(0), &[]).unwrap();
        let path = |name: &str| directory.path().join(name);
        let ours = ["run.json.0af.part", "model.00.part", "metrics.jsonl.ff.part"];
        let others = ["movie.part", "model.mine.part", "run.json"];
        ours.iter().chain(&others).for_each(|name| fs::write(path(name), "").unwrap());
        fs::remove_file(path(ours[1])).unwrap();
        fs::create_dir(path(ours[1])).unwrap();
        assert!(folder.clear_unfinished().is_empty());
        assert!(!ours.iter().any(|name| path(name).exists()));
        assert!(others.iter().all(|name| path(name).exists()));
    }
}
