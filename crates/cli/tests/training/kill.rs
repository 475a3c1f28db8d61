//! `kill -9` and a full disk lose nothing: whatever operation on files they hit, the run ends with the same bits.
//!
//! `HADAL_FAULT` says at which operation. So every one of them is tried, and no test depends on time.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

/// Two saves after the first, an evaluation in between, and few tensors, which are one operation each.
const SHORT: [&str; 5] = [
    "train.steps=4",
    "checkpoint.every_steps=2",
    "eval.every_steps=2",
    "eval.batches=1",
    "model.n_layers=1",
];

fn short(out: &Path) -> Command {
    let mut command = on_task(out, &SHORT);
    command.args(["--residual", "prenorm"]);
    command
}

/// Goes on, or starts if there was no run yet.
fn again(run: &Path, start: &dyn Fn(&Path) -> Command) -> Command {
    if run.join("config.toml").exists() { resume(run) } else { start(run) }
}

/// Model, curve, samples and the optimiser's state of the last step.
fn assert_same_end(run: &Path, reference: &Path, what: &str) {
    assert_same(run, reference, what);
    let state = |run: &Path| std::fs::read(newest(run).join(STATE_FILES[0])).unwrap();
    assert!(state(run) == state(reference), "{what}: another state");
    let names = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    for place in ["", "checkpoints", "model"] {
        assert_eq!(names(&run.join(place)), names(&reference.join(place)), "{what}: {place}");
    }
}

/// Tries a fault at the first operation, the second, and so on, until one is beyond the end of the run. Returns how
/// many there were.
fn at_every_operation(attempt: impl Fn(usize) -> bool + Sync) -> usize {
    let (next, over) = (AtomicUsize::new(1), AtomicBool::new(false));
    let work = || {
        while !over.load(Ordering::Relaxed) {
            if !attempt(next.fetch_add(1, Ordering::Relaxed)) {
                over.store(true, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    next.load(Ordering::Relaxed)
}

/// Kills a command before its operation with this number. Returns whether it had as many.
fn is_killed(command: &mut Command, operation: usize) -> bool {
    let ended = finish(command.env("HADAL_FAULT", format!("kill:{operation}")));
    if ended.code.is_some() {
        ended.succeeded();
        return false;
    }
    true
}

/// A kill is nothing that needs to be mended, so nothing is said about it.
fn assert_silent(ended: &Ended, what: &str) {
    assert!(!ended.stderr.contains("warning"), "{what}: {}", ended.stderr);
}

/// Kills runs at every operation of `command`, after `begin` has put something into their folders, and lets them go on.
fn assert_kills_change_no_bit(
    directory: &Path,
    begin: impl Fn(&Path) + Sync,
    command: impl Fn(&Path) -> Command + Sync,
) {
    let reference = directory.join("reference");
    finish(&mut short(&reference)).succeeded();
    let operations = at_every_operation(|operation| {
        let run = directory.join(format!("run-{operation}"));
        begin(&run);
        if !is_killed(&mut command(&run), operation) {
            return false;
        }
        let what = format!("killed at operation {operation}");
        let ended = finish(&mut again(&run, &short)).succeeded();
        assert_silent(&ended, &what);
        assert_same_end(&run, &reference, &what);
        std::fs::remove_dir_all(run).unwrap();
        true
    });
    println!("{operations} operations");
}

#[test]
fn a_kill_at_any_operation_of_a_run_changes_no_bit() {
    assert_kills_change_no_bit(in_memory().path(), |_| (), short);
}

#[test]
fn a_kill_at_any_operation_of_a_resumed_run_changes_no_bit() {
    let directory = in_memory();
    let begun = directory.path().join("begun");
    let mut command = short(&begun);
    command.env("HADAL_FAULT", "kill:rename step-000000002");
    assert_eq!(finish(&mut command).code, None);
    assert_kills_change_no_bit(directory.path(), |run| copy(&begun, run), resume);
}

#[test]
fn a_full_disk_at_any_operation_is_one_message_that_names_a_file_and_changes_no_bit() {
    let directory = in_memory();
    let reference = directory.path().join("reference");
    finish(&mut short(&reference)).succeeded();
    let operations = at_every_operation(|operation| {
        let run = directory.path().join(format!("run-{operation}"));
        let mut command = short(&run);
        let ended = finish(command.env("HADAL_FAULT", format!("full:{operation}")));
        let what = format!("full at operation {operation}: {}", ended.stderr);
        if ended.code == Some(0) {
            // What came after the last write that matters.
            assert_same_end(&run, &reference, &what);
            return false;
        }
        // A run that has begun fails, one that has not cannot be started.
        let code = if run.join("config.toml").exists() { 1 } else { 2 };
        ended.refused(code, &["cannot ", run.to_str().unwrap()]);
        let left = checkpoints(&run);
        assert!(!left.iter().any(|path| is_unfinished(path)), "{what}: {left:?}");
        let ended = finish(&mut again(&run, &short)).succeeded();
        assert_silent(&ended, &what);
        assert_same_end(&run, &reference, &what);
        std::fs::remove_dir_all(run).unwrap();
        true
    });
    println!("{operations} operations");
}

/// The presence of the model says that a run is done.
#[test]
fn a_model_is_never_without_its_tokenizer() {
    let directory = temporary();
    let (data, run) = (directory.path().join("data"), directory.path().join("run"));
    let tokenizer =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K/tokenizer.json");
    prepare(&data, &words(400), &["--tokenizer", tokenizer.to_str().unwrap()]);
    let mut command = on_text(&run, &data, &["train.steps=2"]);
    command.env("HADAL_FAULT", "kill:write tokenizer.json");
    assert_eq!(finish(&mut command).code, None);
    assert!(!run.join("model").exists());
    finish(&mut resume(&run)).succeeded();
    let copy = std::fs::read(run.join("model/tokenizer.json")).unwrap();
    assert!(copy == std::fs::read(data.join("tokenizer.json")).unwrap());
}

/// Starts or resumes a run and kills it some time after it recorded something. Returns whether it was killed rather
/// than done.
fn killed_after(run: &Path, command: &mut Command, delay: Duration) -> bool {
    let mut child = started(command);
    let metrics = run.join("metrics.jsonl");
    let before = lines(&metrics);
    wait_until(&mut child, || lines(&metrics) != before);
    sleep(delay);
    // SIGKILL, without the time that starting another process takes.
    child.kill().unwrap();
    child.wait_with_output().unwrap().status.code().is_none()
}

/// A bonus: moments that are no operation on files. How many of them come in time is said, not demanded. Every step
/// evaluates, samples or saves.
#[test]
fn kills_at_random_moments_of_a_text_run_change_neither_bits_nor_samples() {
    let directory = temporary();
    let (data, run) = (directory.path().join("data"), directory.path().join("run"));
    prepare(&data, &words(400), &[]);
    let settings = [
        "train.steps=40",
        "sample.every_steps=2",
        "sample.tokens=8",
        "eval.every_steps=2",
        "eval.batches=1",
        "checkpoint.every_steps=2",
    ];
    let start = |out: &Path| on_text(out, &data, &settings);
    let reference = directory.path().join("reference");
    finish(&mut start(&reference)).succeeded();
    let mut dice = Dice(11);
    let mut kills = 0;
    for _ in 0..8 {
        let delay = Duration::from_micros(dice.below(40_000));
        kills += usize::from(killed_after(&run, &mut again(&run, &start), delay));
    }
    println!("{kills} of 8 kills came in time");
    finish(&mut again(&run, &start)).succeeded();
    assert_same_end(&run, &reference, "killed");
    let left: Vec<_> = checkpoints(&run).into_iter().filter(|path| is_unfinished(path)).collect();
    assert_eq!(left, [] as [PathBuf; 0], "what a kill left is cleared away");
}
