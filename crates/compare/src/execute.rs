//! Runs in processes of their own, several at a time.
//!
//! A process has its own peak memory and its own end: one that fails or diverges does not take the
//! others with it. Its standard input is a leash: it is closed when this process ends, even by `kill -9`,
//! and the run then saves its state and stops, so that it can be resumed.

use super::earlier::Earlier;
use super::error::CompareError;
use super::results::Results;
use hadal_files::{Action, file_error};
use hadal_report::run::{Status, status, steps_done};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// One run to be made.
#[derive(Clone, Debug)]
pub struct Task {
    /// What it is called.
    pub name: String,
    /// Its folder.
    pub run: PathBuf,
    /// Its settings, `a.toml`.
    pub settings: PathBuf,
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
    /// Its numbers stopped being numbers, as it said itself.
    Diverged(String),
    /// Its process failed or was killed, with this last message.
    Failed(String),
    /// It was stopped and can be resumed.
    Stopped,
}

/// The exit code of a run whose numbers stopped being numbers. Anything else that goes wrong is no finding on a policy.
const DIVERGED: i32 = 3;
/// Those of a run that a signal (HUP, INT, TERM) stopped after it was saved.
const STOPPED: [i32; 3] = [129, 130, 143];

/// How far the whole suite is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Share of the work that is done.
    pub share: f64,
    /// Runs that ended.
    pub ended: usize,
    /// All runs.
    pub runs: usize,
    /// Runs at work, with steps done and all steps.
    pub running: Vec<(String, u64, u64)>,
}

/// Receives reports on how a suite goes.
pub trait Watch {
    /// Once, before anything is started: what there is already.
    fn earlier(&mut self, _earlier: &Earlier) {}
    /// What people should know when it happens, in a sentence.
    fn said(&mut self, _sentence: &str) {}
    /// When another process is at work in a run's folder, once for each run. It is waited for.
    fn waiting(&mut self, _task: &Task) {}
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

/// How often processes are checked.
const TICK: Duration = Duration::from_millis(50);

/// Makes the runs that are not done yet, in order. `command` makes the command of a process; its pipes and the number
/// of threads are added here. Setting `stop` stops them all.
///
/// A run whose lock another process holds is waited for: the processes of a suite that was killed need a step and a
/// checkpoint to notice, however long these take, and the lock of one that is gone is free.
pub(crate) fn execute(
    tasks: &[Task],
    lanes: Lanes,
    command: &dyn Fn(Start<'_>) -> Command,
    watch: &mut dyn Watch,
    stop: &AtomicBool,
) -> Result<Vec<End>, CompareError> {
    let mut pool =
        Pool { tasks, lanes, command, running: Vec::new(), ends: vec![None; tasks.len()] };
    let mut waiting: Vec<usize> = Vec::new();
    let mut told: BTreeSet<usize> = BTreeSet::new();
    for (index, task) in tasks.iter().enumerate() {
        match status(&task.run) {
            Status::Done => pool.end(index, End::DoneBefore, watch),
            _ => waiting.push(index),
        }
    }
    waiting.reverse();
    loop {
        let stopped = stop.load(Ordering::Relaxed);
        if stopped {
            waiting.clear();
            pool.let_go();
        }
        pool.reap(watch)?;
        let mut held = Vec::new();
        while pool.running.len() < lanes.jobs.max(1)
            && let Some(index) = waiting.pop()
        {
            match status(&tasks[index].run) {
                // The lock shows whether a process is at work, whatever else is there.
                Status::Running => {
                    if told.insert(index) {
                        watch.waiting(&tasks[index]);
                    }
                    held.push(index);
                }
                Status::Done => pool.end(index, End::DoneBefore, watch),
                Status::Failed | Status::Stopped => pool.start(index)?,
            }
        }
        waiting.extend(held.into_iter().rev());
        watch.progress(&pool.progress());
        if pool.running.is_empty() && waiting.is_empty() {
            break;
        }
        sleep(TICK);
    }
    let ends = std::mem::take(&mut pool.ends);
    Ok(ends.into_iter().map(|end| end.unwrap_or(End::Stopped)).collect())
}

struct Pool<'a> {
    tasks: &'a [Task],
    lanes: Lanes,
    command: &'a dyn Fn(Start<'_>) -> Command,
    running: Vec<(usize, Child)>,
    ends: Vec<Option<End>>,
}

impl Pool<'_> {
    fn start(&mut self, index: usize) -> Result<(), CompareError> {
        let task = &self.tasks[index];
        let start = match task.run.join("config.toml").exists() {
            true => Start::Resume { run: &task.run },
            false => Start::New { settings: &task.settings, run: &task.run },
        };
        let log = File::create(&task.log).map_err(file_error(Action::Write, &task.log))?;
        let also = log.try_clone().map_err(file_error(Action::Write, &task.log))?;
        let mut command = (self.command)(start);
        command.stdin(Stdio::piped()).stdout(log).stderr(also);
        command.env("RAYON_NUM_THREADS", self.lanes.threads.to_string());
        let child = command
            .spawn()
            .map_err(|reason| CompareError::NotStarted { run: task.name.clone(), reason })?;
        self.running.push((index, child));
        Ok(())
    }

    /// Lets all leashes go: processes at work save and stop.
    fn let_go(&mut self) {
        for (_, child) in &mut self.running {
            drop(child.stdin.take());
        }
    }

    fn reap(&mut self, watch: &mut dyn Watch) -> Result<(), CompareError> {
        let mut still = Vec::new();
        for (index, mut child) in std::mem::take(&mut self.running) {
            let task = &self.tasks[index];
            let ended = child
                .try_wait()
                .map_err(|reason| CompareError::Lost { path: task.run.clone(), reason })?;
            match ended {
                None => still.push((index, child)),
                Some(code) => {
                    let said = || {
                        let gone = || format!("its process ended ({code})");
                        last_words(&task.log).unwrap_or_else(gone)
                    };
                    let end = match (code.code(), status(&task.run)) {
                        (Some(0), Status::Done) => End::Done,
                        (Some(DIVERGED), _) => End::Diverged(said()),
                        (Some(code), _) if STOPPED.contains(&code) => End::Stopped,
                        _ => End::Failed(said()),
                    };
                    self.end(index, end, watch);
                }
            }
        }
        self.running.extend(still);
        Ok(())
    }

    fn end(&mut self, index: usize, end: End, watch: &mut dyn Watch) {
        watch.ended(&self.tasks[index], &end);
        self.ends[index] = Some(end);
    }

    fn progress(&self) -> Progress {
        let total: f64 = self.tasks.iter().map(|task| task.work).sum();
        let mut done = 0.0;
        let mut running = Vec::new();
        for (index, task) in self.tasks.iter().enumerate() {
            if self.ends[index].is_some() {
                done += task.work;
            } else if self.running.iter().any(|(other, _)| *other == index) {
                let steps = steps_done(&task.run).min(task.steps);
                done += task.work * steps as f64 / task.steps.max(1) as f64;
                running.push((task.name.clone(), steps, task.steps));
            }
        }
        Progress {
            share: if total > 0.0 { done / total } else { 1.0 },
            ended: self.ends.iter().flatten().count(),
            runs: self.tasks.len(),
            running,
        }
    }
}

/// Leaving early takes the processes along: they save and stop.
impl Drop for Pool<'_> {
    fn drop(&mut self) {
        self.let_go();
        for (_, child) in &mut self.running {
            // It may have ended by itself, which is fine.
            let _ = child.wait();
        }
    }
}

/// The message of the last error.
fn last_words(log: &Path) -> Option<String> {
    /// Far more than a last message needs.
    const END: u64 = 64 << 10;
    let mut file = hadal_files::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(END))).ok()?;
    let mut text = Vec::new();
    file.take(END).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned)
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
