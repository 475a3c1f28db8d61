//! Runs in processes of their own, several at a time.
//!
//! A process has its own peak memory and its own end: one that fails or diverges does not take the
//! others with it. Its standard input is a leash: it is closed when this process ends, even by `kill -9`,
//! and the run then saves its state and stops, so that it can be resumed.

use super::earlier::Earlier;
use super::error::CompareError;
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
    /// When another process is at work in a run's folder, once for each run. It is waited for.
    fn waiting(&mut self, _task: &Task) {}
    /// Every now and then.
    fn progress(&mut self, _progress: &Progress) {}
    /// When a run has ended.
    fn ended(&mut self, _task: &Task, _end: &End) {}
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
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    fn tasks(directory: &Path, names: &[&str]) -> Vec<Task> {
        let task = |name: &&str| Task {
            name: (*name).into(),
            run: directory.join(name),
            settings: directory.join(format!("{name}.toml")),
            log: directory.join(format!("{name}.log")),
            steps: 10,
            work: 1.0,
        };
        names.iter().map(task).collect()
    }

    fn run_of(start: Start<'_>) -> PathBuf {
        match start {
            Start::New { run, .. } | Start::Resume { run } => run.to_owned(),
        }
    }

    fn shell(script: &str, start: Start<'_>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("RUN", run_of(start));
        command
    }

    struct Nobody;
    impl Watch for Nobody {}

    const TWO: Lanes = Lanes { jobs: 2, threads: 1 };

    #[test]
    fn a_run_that_fails_does_not_stop_the_others() {
        let directory = TempDir::new().unwrap();
        let tasks = tasks(directory.path(), &["a", "b", "c"]);
        let script =
            "case $RUN in *b) echo 'error: it fell over'; exit 1;; esac; mkdir -p $RUN/model";
        let command = |start: Start<'_>| shell(script, start);
        let stop = AtomicBool::new(false);
        let ends = execute(&tasks, TWO, &command, &mut Nobody, &stop).unwrap();
        assert_eq!(ends, [End::Done, End::Failed("it fell over".into()), End::Done]);
        let again = execute(&tasks, TWO, &command, &mut Nobody, &stop).unwrap();
        assert_eq!(again, [End::DoneBefore, End::Failed("it fell over".into()), End::DoneBefore]);
    }

    #[test]
    fn a_process_that_is_killed_is_told_of_with_the_signal() {
        let directory = TempDir::new().unwrap();
        let tasks = tasks(directory.path(), &["a"]);
        let command = |start: Start<'_>| shell("kill -9 $$", start);
        let stop = AtomicBool::new(false);
        let ends = execute(&tasks, TWO, &command, &mut Nobody, &stop).unwrap();
        let [End::Failed(said)] = &ends[..] else { panic!("{ends:?}") };
        assert!(said.contains("signal: 9"), "{said}");
    }

    /// A run that recovered from a failure has left its evidence behind; that does not make every later end a divergence.
    #[test]
    fn only_a_run_that_says_so_itself_has_diverged() {
        let directory = TempDir::new().unwrap();
        let script = "mkdir -p $RUN/failures/step-000000000-0; case $RUN in \
             *killed) kill -9 $$;; *full) echo 'error: no space'; exit 1;; *hup) exit 129;; *int) exit 130;; \
             *term) exit 143;; esac; echo 'error: step 0: NaN'; exit 3";
        let tasks = tasks(directory.path(), &["killed", "full", "hup", "int", "term", "nan"]);
        let command = |start: Start<'_>| shell(script, start);
        let ends = execute(&tasks, TWO, &command, &mut Nobody, &AtomicBool::new(false)).unwrap();
        assert!(matches!(&ends[0], End::Failed(said) if said.contains("signal: 9")), "{ends:?}");
        assert_eq!(ends[1], End::Failed("no space".into()));
        assert_eq!(ends[2..5], [End::Stopped, End::Stopped, End::Stopped]);
        assert_eq!(ends[5], End::Diverged("step 0: NaN".into()));
    }

    #[test]
    fn a_run_that_another_process_holds_is_waited_for_with_a_word() {
        /// Lets the lock go when it is told, or stops.
        struct Holder<'a> {
            lock: Option<File>,
            lets_go: bool,
            stop: &'a AtomicBool,
            told: Vec<String>,
        }
        impl Watch for Holder<'_> {
            fn waiting(&mut self, task: &Task) {
                self.told.push(task.name.clone());
                match self.lets_go {
                    true => drop(self.lock.take()),
                    false => self.stop.store(true, Ordering::Relaxed),
                }
            }
        }
        for (lets_go, end) in [(true, End::Done), (false, End::Stopped)] {
            let directory = TempDir::new().unwrap();
            let tasks = tasks(directory.path(), &["a", "b"]);
            fs::create_dir(&tasks[0].run).unwrap();
            let lock = File::create(tasks[0].run.join("lock")).unwrap();
            lock.try_lock().unwrap();
            let stop = AtomicBool::new(false);
            let mut watch = Holder { lock: Some(lock), lets_go, stop: &stop, told: Vec::new() };
            let command = |start: Start<'_>| shell("mkdir -p $RUN/model", start);
            let ends = execute(&tasks, TWO, &command, &mut watch, &stop).unwrap();
            assert_eq!((&ends[0], watch.told), (&end, vec!["a".to_owned()]));
        }
    }

    #[test]
    fn a_process_that_is_content_but_leaves_no_model_has_failed() {
        let directory = TempDir::new().unwrap();
        let tasks = tasks(directory.path(), &["a"]);
        let command = |start: Start<'_>| shell("exit 0", start);
        let ends = execute(&tasks, TWO, &command, &mut Nobody, &AtomicBool::new(false)).unwrap();
        assert!(matches!(&ends[..], [End::Failed(_)]), "{ends:?}");
    }

    /// `cat` ends when its input does.
    #[test]
    fn stopping_lets_the_leash_go_and_starts_nothing_more() {
        struct StopAtOnce<'a>(&'a AtomicBool, usize);
        impl Watch for StopAtOnce<'_> {
            fn progress(&mut self, progress: &Progress) {
                self.1 = self.1.max(progress.running.len());
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let directory = TempDir::new().unwrap();
        let tasks = tasks(directory.path(), &["a", "b", "c"]);
        let stop = AtomicBool::new(false);
        let mut watch = StopAtOnce(&stop, 0);
        let command = |start: Start<'_>| shell("cat; exit 130", start);
        let ends = execute(&tasks, TWO, &command, &mut watch, &stop).unwrap();
        assert_eq!((ends, watch.1), (vec![End::Stopped; 3], 2));
    }

    #[test]
    fn progress_is_measured_in_work_and_counts_steps_of_runs_at_work() {
        struct Most(Progress);
        impl Watch for Most {
            fn progress(&mut self, progress: &Progress) {
                if !progress.running.is_empty() && progress.running[0].1 > 0 {
                    self.0 = progress.clone();
                }
            }
        }
        let directory = TempDir::new().unwrap();
        let mut tasks = tasks(directory.path(), &["a", "b"]);
        tasks[0].work = 3.0;
        fs::create_dir_all(directory.path().join("a/model")).unwrap();
        let script =
            "mkdir $RUN; echo '{\"step\": 5}' > $RUN/metrics.jsonl; sleep 0.5; mkdir $RUN/model";
        let mut watch = Most(Progress::default());
        let command = |start: Start<'_>| shell(script, start);
        execute(&tasks, TWO, &command, &mut watch, &AtomicBool::new(false)).unwrap();
        let running = vec![("b".to_owned(), 5, 10)];
        assert_eq!(watch.0, Progress { share: 3.5 / 4.0, ended: 1, runs: 2, running });
    }
}
