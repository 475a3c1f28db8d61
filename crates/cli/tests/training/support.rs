//! Starting the real binary on models so small that a step takes milliseconds, and reading what it left.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const STATE_FILES: [&str; 3] = ["state.safetensors", "state.json", "manifest.json"];

/// Nothing here takes longer than a few seconds; a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

const TINY_MODEL: [&str; 5] = [
    "model.d_model=16",
    "model.n_layers=2",
    "model.n_heads=2",
    "train.batch=2",
    "schedule.warmup_steps=5",
];

/// Settings of a run that takes longer than any test, with steps that take a while.
pub(crate) const ENDLESS: [&str; 2] = ["train.steps=1000000", "train.accumulate=10"];

/// `hadal ARGUMENTS` in an environment that asks for backtraces, so that none of them can hide.
pub(crate) fn hadal(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hadal"));
    command.args(arguments).stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    // No test writes to the user's cache: this place can hold none.
    command.env("HADAL_CACHE", "/dev/null/cache").env_remove("HADAL_VERIFY");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command
}

/// Starts a run on a generated task.
pub(crate) fn on_task(out: &Path, settings: &[&str]) -> Command {
    let mut command = hadal(&["train", "--out"]);
    set(command.arg(out), &TINY_MODEL);
    set(&mut command, &["data.generated.length=24"]);
    set(&mut command, settings);
    command
}

/// Starts a run on prepared text.
pub(crate) fn on_text(out: &Path, data: &Path, settings: &[&str]) -> Command {
    let mut command = hadal(&["train", "--preset", "micro", "--out"]);
    set(command.arg(out), &TINY_MODEL);
    set(&mut command, &["train.seq_len=24", &format!("data.train={}", data.display())]);
    set(&mut command, settings);
    command
}

pub(crate) fn set(command: &mut Command, settings: &[&str]) {
    for setting in settings {
        command.args(["--set", setting]);
    }
}

pub(crate) fn resume(run: &Path) -> Command {
    let mut command = hadal(&["train", "--resume"]);
    command.arg(run);
    command
}

/// Prepares a text under `directory`, in place of what was there; each line is a document.
pub(crate) fn prepare(directory: &Path, text: &str, more: &[&str]) {
    let source = directory.with_extension("jsonl");
    let documents = text.lines().map(|line| format!("{}\n", json!({ "text": line })));
    fs::write(&source, documents.collect::<String>()).unwrap();
    let _ = fs::remove_dir_all(directory);
    let mut command = hadal(&["data", "prepare"]);
    finish(command.arg(&source).arg("--out").arg(directory).args(more)).succeeded();
}

/// Lines of words that differ, so that all windows do.
pub(crate) fn words(count: usize) -> String {
    let after = |i| if i % 50 == 49 { '\n' } else { ' ' };
    (0..count).map(|i| format!("{}{}", i * i % 997, after(i))).collect()
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    fn of(output: &Output) -> Self {
        let ended = Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        let text = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!text.contains("bug in hadal") && !text.contains("panicked"), "{text}");
        ended
    }

    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// One message, with this exit code, that holds these words.
    pub(crate) fn refused(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        let errors = self.stderr.lines().filter(|line| line.starts_with("error")).count();
        assert_eq!(errors, 1, "one message: {}", self.stderr);
        let (_, message) = self.stderr.split_once("error: ").unwrap();
        for word in words {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
        self
    }
}

pub(crate) fn finish(command: &mut Command) -> Ended {
    Ended::of(&command.output().unwrap())
}

/// Starts the command, sends it a signal as soon as `when` holds, and waits for its end.
pub(crate) fn signalled(command: &mut Command, signal: &str, when: impl Fn() -> bool) -> Ended {
    let mut child = started(command);
    wait_until(&mut child, when);
    send(signal, &child);
    ended(child)
}

/// What a process that was started ended with.
pub(crate) fn ended(child: Child) -> Ended {
    Ended::of(&child.wait_with_output().unwrap())
}

pub(crate) fn started(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until `when` holds or the process is gone.
pub(crate) fn wait_until(child: &mut Child, when: impl Fn() -> bool) {
    let begin = Instant::now();
    while !when() && child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < PATIENCE, "nothing happened for {PATIENCE:?}");
        sleep(Duration::from_micros(300));
    }
}

/// The process may have ended by itself meanwhile, which is no failure of the test. It has not been waited for, so no
/// other process has its number.
pub(crate) fn send(signal: &str, child: &Child) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).output();
    status.expect("kill can be started");
}

/// Lines written so far; none while there is no file.
pub(crate) fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

pub(crate) fn model(run: &Path) -> Vec<u8> {
    fs::read(run.join("model/model.safetensors")).unwrap()
}

/// All measurements except times.
pub(crate) fn curve(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let without_times = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().remove("tokens_per_second");
        value
    };
    text.lines().map(without_times).collect()
}

pub(crate) fn samples(run: &Path) -> String {
    fs::read_to_string(run.join("samples.jsonl")).unwrap()
}

/// Two runs with the same metrics and messages.
pub(crate) fn assert_same(run: &Path, reference: &Path, what: &str) {
    assert!(model(run) == model(reference), "{what}: other weights");
    assert_eq!(curve(run), curve(reference), "{what}: another curve");
    assert_eq!(samples(run), samples(reference), "{what}: other samples");
}

/// Names in `RUN/checkpoints`, oldest first, including unfinished ones.
pub(crate) fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(run.join("checkpoints")) else { return Vec::new() };
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

pub(crate) fn newest(run: &Path) -> PathBuf {
    checkpoints(run).pop().unwrap()
}

pub(crate) fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "part")
}

/// Changes one bit of the byte at a position.
pub(crate) fn flip(path: &Path, position: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[position] ^= 1 << (position % 8);
    fs::write(path, bytes).unwrap();
}

pub(crate) fn temporary() -> TempDir {
    TempDir::new().unwrap()
}

/// Where waiting for the disk takes no time, if there is such a place.
pub(crate) fn in_memory() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap_or_else(|_| temporary())
}

pub(crate) fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
}

/// Starts a run and kills it at an operation on files, as `HADAL_FAULT` names it.
pub(crate) fn killed_at(command: &mut Command, operation: &str) {
    let ended = finish(command.env("HADAL_FAULT", format!("kill:{operation}")));
    assert_eq!(ended.code, None, "{operation}: {}", ended.stderr);
}

/// Numbers that are the same in every run of the tests.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
