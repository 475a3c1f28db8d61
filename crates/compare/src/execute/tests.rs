use super::*;
use crate::CompareError;
use crate::claim::Claims;
use std::fs::{self, File};
use std::time::Duration;
use tempfile::TempDir;

fn tasks(directory: &Path, names: &[&str]) -> Vec<Task> {
    let task = |name: &&str| Task {
        name: (*name).into(),
        place: format!("runs/{name}"),
        run: directory.join("runs").join(name),
        settings: directory.join(format!("{name}.toml")),
        config: None,
        log: directory.join(format!("{name}.log")),
        steps: 10,
        work: 1.0,
    };
    fs::create_dir_all(directory.join("runs")).unwrap();
    names.iter().map(task).collect()
}

/// Makes runs as a process of its own.
fn made(
    tasks: &[Task],
    command: &dyn Fn(Start<'_>) -> Command,
    watch: &mut dyn Watch,
    stop: &AtomicBool,
) -> Result<Vec<End>, CompareError> {
    let suite = tasks[0].run.parent().and_then(Path::parent).unwrap();
    let claims = Claims::open(suite, Duration::from_secs(120))?;
    execute(tasks, &Work { lanes: TWO, command, waits: true, stop }, &claims, watch)
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
    let script = "case $RUN in *b) echo 'error: it fell over'; exit 1;; esac; mkdir -p $RUN/model";
    let command = |start: Start<'_>| shell(script, start);
    let stop = AtomicBool::new(false);
    let ends = made(&tasks, &command, &mut Nobody, &stop).unwrap();
    assert_eq!(ends, [End::Done, End::Failed("it fell over".into()), End::Done]);
    let again = made(&tasks, &command, &mut Nobody, &stop).unwrap();
    assert_eq!(again, [End::DoneBefore, End::Failed("it fell over".into()), End::DoneBefore]);
}

#[test]
fn a_process_that_is_killed_is_told_of_with_the_signal() {
    let directory = TempDir::new().unwrap();
    let tasks = tasks(directory.path(), &["a"]);
    let command = |start: Start<'_>| shell("kill -9 $$", start);
    let stop = AtomicBool::new(false);
    let ends = made(&tasks, &command, &mut Nobody, &stop).unwrap();
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
    let ends = made(&tasks, &command, &mut Nobody, &AtomicBool::new(false)).unwrap();
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
        fn waiting(&mut self, runs: &[(String, String)]) {
            self.told.extend(runs.iter().map(|(name, _)| name.clone()));
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
        let ends = made(&tasks, &command, &mut watch, &stop).unwrap();
        assert_eq!((&ends[0], watch.told), (&end, vec!["a".to_owned()]));
    }
}

#[test]
fn a_process_that_is_content_but_leaves_no_model_has_failed() {
    let directory = TempDir::new().unwrap();
    let tasks = tasks(directory.path(), &["a"]);
    let command = |start: Start<'_>| shell("exit 0", start);
    let ends = made(&tasks, &command, &mut Nobody, &AtomicBool::new(false)).unwrap();
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
    let ends = made(&tasks, &command, &mut watch, &stop).unwrap();
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
    fs::create_dir_all(directory.path().join("runs/a/model")).unwrap();
    let script =
        "mkdir -p $RUN; echo '{\"step\": 5}' > $RUN/metrics.jsonl; sleep 0.5; mkdir $RUN/model";
    let mut watch = Most(Progress::default());
    let command = |start: Start<'_>| shell(script, start);
    made(&tasks, &command, &mut watch, &AtomicBool::new(false)).unwrap();
    let running = vec![("b".to_owned(), 5, 10)];
    assert_eq!(watch.0, Progress { share: 3.5 / 4.0, ended: 1, runs: 2, running });
}
