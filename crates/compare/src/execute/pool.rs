//! The processes of runs at work, and those that wait for their turn.

use super::{End, Progress, Start, Task, Watch, Work};
use crate::claim::{Claim, Claims, Ended, Holder, Look};
use crate::error::CompareError;
use crate::folder;
use hadal_files::{Action, file_error};
use hadal_report::run::{Status, status, steps_done};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The exit code of a run whose numbers stopped being numbers. Anything else that goes wrong is no finding on a policy.
const DIVERGED: i32 = 3;
/// Those of a run that a signal (HUP, INT, TERM) stopped after it was saved.
const STOPPED: [i32; 3] = [129, 130, 143];

/// How often processes are checked.
const TICK: Duration = Duration::from_millis(50);

/// Makes the runs that are not done yet, in order, together with the other processes that share their claims: a run
/// that another one has is left to it and waited for, and one whose process has died is taken over.
///
/// A run whose lock a process holds is waited for, whoever that is: the process of a run whose suite was killed needs a
/// step and a checkpoint to notice, however long these take, and the lock of one that is gone is free.
pub(crate) fn execute(
    tasks: &[Task],
    work: &Work<'_>,
    claims: &Claims,
    watch: &mut dyn Watch,
) -> Result<Vec<End>, CompareError> {
    let mut pool = Pool::new(tasks, work, claims);
    for (index, task) in tasks.iter().enumerate() {
        match status(&task.run) {
            Status::Done => pool.end(index, End::DoneBefore, watch),
            _ => pool.waiting.push(index),
        }
    }
    let mut next = Instant::now();
    let mut told: Vec<(String, String)> = Vec::new();
    loop {
        if work.is_stopped() {
            pool.waiting.clear();
            pool.ready.clear();
            pool.let_go();
        }
        let before = pool.running.len();
        pool.reap(watch)?;
        let began = Instant::now();
        if began >= next || pool.running.len() < before || pool.may_start() {
            pool.look(watch)?;
            next = Instant::now() + claims.pause(began.elapsed(), pool.has_room());
        }
        watch.progress(&pool.progress());
        if pool.running.is_empty() {
            if pool.waiting.is_empty() {
                break;
            }
            if claims.only_looks() || !work.waits && pool.others_are_alive() {
                pool.leave();
                break;
            }
            let others = pool.others();
            if others != told {
                watch.waiting(&others);
                told = others;
            }
        }
        sleep(TICK);
    }
    let ends = std::mem::take(&mut pool.ends);
    Ok(ends.into_iter().map(|end| end.unwrap_or(End::Stopped)).collect())
}

/// A run at work here.
struct Running {
    index: usize,
    child: Child,
    claim: Claim,
}

struct Pool<'a> {
    tasks: &'a [Task],
    work: &'a Work<'a>,
    claims: &'a Claims,
    running: Vec<Running>,
    /// Runs without an end that are not at work here.
    waiting: Vec<usize>,
    /// Those of them that another process has.
    elsewhere: BTreeMap<usize, Holder>,
    /// Those that this process has claimed and that another one has not let go of yet.
    ready: BTreeMap<usize, Claim>,
    ends: Vec<Option<End>>,
    checked: Instant,
}

impl<'a> Pool<'a> {
    fn new(tasks: &'a [Task], work: &'a Work<'a>, claims: &'a Claims) -> Self {
        Self {
            tasks,
            work,
            claims,
            running: Vec::new(),
            waiting: Vec::new(),
            elsewhere: BTreeMap::new(),
            ready: BTreeMap::new(),
            ends: vec![None; tasks.len()],
            checked: Instant::now(),
        }
    }

    fn has_room(&self) -> bool {
        self.running.len() < self.work.lanes.jobs.max(1) && !self.claims.only_looks()
    }

    /// Whether there is a run of which nobody knows yet that another process has it.
    fn may_start(&self) -> bool {
        self.has_room() && self.waiting.iter().any(|index| !self.elsewhere.contains_key(index))
    }

    /// Looks at every run that is waiting, and starts those that can be.
    fn look(&mut self, watch: &mut dyn Watch) -> Result<(), CompareError> {
        for index in std::mem::take(&mut self.waiting) {
            let task = &self.tasks[index];
            self.elsewhere.remove(&index);
            if let Some(claim) = self.ready.remove(&index) {
                self.begin(index, claim, watch)?;
                continue;
            }
            // A finished run is finished, whatever is claimed. Names on network disks are looked up anew in a directory
            // that was opened.
            let _ = std::fs::read_dir(&task.run);
            match (status(&task.run), self.claims.look(&task.place)) {
                (Status::Done, _) => self.end(index, End::DoneElsewhere, watch),
                (_, Look::Ended(Ended::Failed(said), _)) => {
                    self.end(index, End::Failed(said), watch);
                }
                (_, Look::Ended(Ended::Diverged(said), _)) => {
                    self.end(index, End::Diverged(said), watch);
                }
                (_, Look::Held(by)) => self.wait(index, by),
                (_, Look::Free(free)) if self.has_room() => {
                    match self.claims.take(&task.place, free)? {
                        Some(claim) => self.begin(index, claim, watch)?,
                        None => self.wait(index, unknown("another process")),
                    }
                }
                (_, Look::Free(_) | Look::Ended(..)) => self.waiting.push(index),
            }
        }
        Ok(())
    }

    fn wait(&mut self, index: usize, by: Holder) {
        self.elsewhere.insert(index, by);
        self.waiting.push(index);
    }

    /// Begins a run that is claimed, or finds that there is nothing to do.
    fn begin(
        &mut self,
        index: usize,
        claim: Claim,
        watch: &mut dyn Watch,
    ) -> Result<(), CompareError> {
        if claim.is_lost() {
            self.waiting.push(index);
            return Ok(());
        }
        match status(&self.tasks[index].run) {
            // Between the look and the claim.
            Status::Done => {
                claim.end(&Ended::Done)?;
                self.end(index, End::DoneElsewhere, watch);
            }
            // The lock shows that a process is at work, whatever else is known.
            Status::Running => {
                self.ready.insert(index, claim);
                self.wait(index, unknown("a process that still holds its lock"));
            }
            Status::Failed | Status::Stopped => self.start(index, claim)?,
        }
        Ok(())
    }

    fn start(&mut self, index: usize, claim: Claim) -> Result<(), CompareError> {
        let task = &self.tasks[index];
        if let Some(config) = &task.config {
            // Another process may have begun it for another suite.
            folder::check(&task.run, config)?;
            folder::write_settings(&task.settings, config)?;
        }
        claim.enter()?;
        let start = match task.run.join("config.toml").exists() {
            true => Start::Resume { run: claim.way() },
            false => Start::New { settings: &task.settings, run: claim.way() },
        };
        let log = File::create(&task.log).map_err(file_error(Action::Write, &task.log))?;
        let also = log.try_clone().map_err(file_error(Action::Write, &task.log))?;
        let mut command = (self.work.command)(start);
        command.stdin(Stdio::piped()).stdout(log).stderr(also);
        command.env("RAYON_NUM_THREADS", self.work.lanes.threads.to_string());
        let child = command
            .spawn()
            .map_err(|reason| CompareError::NotStarted { run: task.name.clone(), reason })?;
        self.running.push(Running { index, child, claim });
        Ok(())
    }

    /// Lets all leashes go: processes at work save and stop.
    fn let_go(&mut self) {
        for running in &mut self.running {
            drop(running.child.stdin.take());
        }
    }

    fn reap(&mut self, watch: &mut dyn Watch) -> Result<(), CompareError> {
        let checks = self.checked.elapsed() >= self.claims.every();
        if checks {
            self.checked = Instant::now();
        }
        for mut running in std::mem::take(&mut self.running) {
            let index = running.index;
            let task = &self.tasks[index];
            let ended = running
                .child
                .try_wait()
                .map_err(|reason| CompareError::Lost { path: task.run.clone(), reason })?;
            let Some(code) = ended else {
                if checks && running.claim.is_lost() {
                    // This process was away for too long. What its run would write goes nowhere.
                    drop(running.child.stdin.take());
                }
                self.running.push(running);
                continue;
            };
            if running.claim.is_lost() {
                self.waiting.push(index);
                continue;
            }
            let said = || {
                let gone = || format!("its process ended ({code})");
                let way = running.claim.way().display().to_string();
                let words = last_words(&task.log).unwrap_or_else(gone);
                words.replace(&way, &task.run.display().to_string())
            };
            let end = match (code.code(), status(&task.run)) {
                (Some(0), Status::Done) => End::Done,
                (Some(DIVERGED), _) => End::Diverged(said()),
                (Some(code), _) if STOPPED.contains(&code) => End::Stopped,
                _ => End::Failed(said()),
            };
            running.claim.end(&end.for_others())?;
            self.end(index, end, watch);
        }
        Ok(())
    }

    fn end(&mut self, index: usize, end: End, watch: &mut dyn Watch) {
        watch.ended(&self.tasks[index], &end);
        self.ends[index] = Some(end);
    }

    /// Leaves what is left to others.
    fn leave(&mut self) {
        for index in std::mem::take(&mut self.waiting) {
            self.ends[index] = self.elsewhere.remove(&index).map(|by| End::Elsewhere(by.shown));
        }
    }

    /// The runs of others, and who has them.
    fn others(&self) -> Vec<(String, String)> {
        let named =
            |(index, by): (&usize, &Holder)| (self.tasks[*index].name.clone(), by.shown.clone());
        self.elsewhere.iter().map(named).collect()
    }

    /// Whether everything that is left will be seen to by others.
    fn others_are_alive(&self) -> bool {
        self.waiting.iter().all(|at| self.elsewhere.get(at).is_some_and(|by| by.is_alive))
    }

    fn progress(&self) -> Progress {
        let total: f64 = self.tasks.iter().map(|task| task.work).sum();
        let mut done = 0.0;
        let mut running = Vec::new();
        for (index, task) in self.tasks.iter().enumerate() {
            let by = self.elsewhere.get(&index);
            if self.ends[index].is_some() {
                done += task.work;
            } else if by.is_some() || self.running.iter().any(|running| running.index == index) {
                let steps = steps_done(&task.run).min(task.steps);
                done += task.work * steps as f64 / task.steps.max(1) as f64;
                let place = by.map(|by| format!(" ({})", by.shown)).unwrap_or_default();
                running.push((format!("{}{place}", task.name), steps, task.steps));
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

fn unknown(shown: &str) -> Holder {
    Holder { shown: shown.into(), is_alive: false }
}

/// Leaving early takes the processes along: they save and stop.
impl Drop for Pool<'_> {
    fn drop(&mut self) {
        self.let_go();
        for running in &mut self.running {
            // It may have ended by itself, which is fine.
            let _ = running.child.wait();
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
