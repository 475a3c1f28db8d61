//! Runs in processes of their own, several at a time.
//!
//! A process has its own peak memory and its own end: one that fails or diverges does not take the
//! others with it. Its standard input is a leash: it is closed when this process ends, even by `kill -9`,
//! and the run then saves its state and stops, so that it can be resumed.

mod pool;

use super::claim::Ended;
use super::earlier::Earlier;
use super::results::Results;
use hadal_train::RunConfig;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use pool::execute;

/// One run to be made.
#[derive(Clone, Debug)]
pub struct Task {
    /// What it is called.
    pub name: String,
    /// Its folder, below the suite's.
    pub place: String,
    /// Its folder.
    pub run: PathBuf,
    /// Where its settings are written, `a.toml`.
    pub settings: PathBuf,
    /// The settings. A run that is there must have the same.
    pub config: Option<Box<RunConfig>>,
    /// The output of its process.
    pub log: PathBuf,
    /// Steps of the whole run.
    pub steps: u64,
    /// How much work it is, in any unit.
    pub work: f64,
}

/// What a process should do.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// Begin a run.
    New {
        /// Its settings.
        settings: &'a Path,
        /// Its folder.
        run: &'a Path,
    },
    /// Go on with a run.
    Resume {
        /// Its folder.
        run: &'a Path,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// All steps are done.
    Done,
    /// It was done before this call.
    DoneBefore,
    /// Another process has done it meanwhile.
    DoneElsewhere,
    /// Its numbers stopped being numbers, as it said itself.
    Diverged(String),
    /// Its process failed or was killed, with this last message.
    Failed(String),
    /// It was stopped and can be resumed, or has not begun.
    Stopped,
    /// It is with another process, which is called so.
    Elsewhere(String),
}

impl End {
    /// The same in words for other processes.
    fn for_others(&self) -> Ended {
        match self {
            Self::Done | Self::DoneBefore | Self::DoneElsewhere => Ended::Done,
            Self::Diverged(said) => Ended::Diverged(said.clone()),
            Self::Failed(said) => Ended::Failed(said.clone()),
            Self::Stopped | Self::Elsewhere(_) => Ended::Stopped,
        }
    }
}

/// How far the whole suite is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Share of the work that is done.
    pub share: f64,
    /// Runs that ended.
    pub ended: usize,
    /// All runs.
    pub runs: usize,
    /// Runs at work, here or elsewhere, with steps done and all steps.
    pub running: Vec<(String, u64, u64)>,
}

/// Receives reports on how a suite goes.
pub trait Watch {
    /// Once, before anything is started: what there is already.
    fn earlier(&mut self, _earlier: &Earlier) {}
    /// What people should know when it happens, in a sentence.
    fn said(&mut self, _sentence: &str) {}
    /// When there is nothing to do but to wait for these runs of other processes: their names, and who has them.
    fn waiting(&mut self, _runs: &[(String, String)]) {}
    /// Every now and then.
    fn progress(&mut self, _progress: &Progress) {}
    /// When a run has ended.
    fn ended(&mut self, _task: &Task, _end: &End) {}
    /// At a planned look after so many seeds: comparisons that are open, and after how many seeds the next look is.
    fn looked(&mut self, _seeds: usize, _open: usize, _next: Option<usize>) {}
    /// Behind that: what the runs that have ended come to. Their verdicts are not yet those of the suite.
    fn so_far(&mut self, _results: &Results) {}
}

/// How many at a time, on how many threads each.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// Processes at a time.
    pub jobs: usize,
    /// Threads of each.
    pub threads: usize,
}

/// How the runs of a suite are made.
pub struct Work<'a> {
    /// How many at a time.
    pub lanes: Lanes,
    /// Makes the command of a process; its pipes and the number of threads are added here.
    pub command: &'a dyn Fn(Start<'_>) -> Command,
    /// Whether to wait for runs that other processes have. Else the work ends when nothing is left to begin.
    pub waits: bool,
    /// Setting it stops all runs.
    pub stop: &'a AtomicBool,
}

impl Work<'_> {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
