//! `kill -9` loses nothing: whatever moment it hits, resuming ends with the same bits.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How the moment of a kill is chosen.
#[derive(Clone, Copy)]
enum Moment {
    /// This long after the first step was recorded.
    During(Duration),
    /// As soon as a checkpoint is being written.
    Saving,
    /// After this long, ready or not.
    Starting(Duration),
}

/// Starts or resumes a run and kills it. Returns whether it was killed rather than done.
fn killed(run: &Path, command: &mut Command, moment: Moment) -> bool {
    let mut child = started(command);
    let metrics = run.join("metrics.jsonl");
    let before = lines(&metrics);
    match moment {
        Moment::During(delay) => {
            wait_until(&mut child, || lines(&metrics) != before);
            sleep(delay);
        }
        Moment::Saving => {
            let saving = || checkpoints(run).iter().any(|path| is_unfinished(path));
            wait_until(&mut child, saving);
        }
        Moment::Starting(delay) => sleep(delay),
    }
    // SIGKILL, without the time that starting another process takes.
    child.kill().unwrap();
    child.wait_with_output().unwrap().status.code().is_none()
}

/// Kills a run again and again, resumes it to the end, and compares it with one left alone. Returns the numbers of
/// kills and of unfinished checkpoints that they left.
fn survives(
    reference: &Path,
    run: &Path,
    start: impl Fn() -> Command,
    moments: &[Moment],
) -> [usize; 2] {
    let (mut kills, mut torn) = (0, 0);
    for &moment in moments {
        // It may be killed before there was a run to resume.
        let mut command = if run.join("config.toml").exists() { resume(run) } else { start() };
        kills += usize::from(killed(run, &mut command, moment));
        torn += usize::from(checkpoints(run).iter().any(|path| is_unfinished(path)));
    }
    let mut command = if run.join("config.toml").exists() { resume(run) } else { start() };
    finish(&mut command).succeeded();
    assert_same(run, reference, "killed");
    let left: Vec<_> = checkpoints(run).into_iter().filter(|path| is_unfinished(path)).collect();
    assert_eq!(left, [] as [PathBuf; 0], "what a kill left is cleared away");
    [kills, torn]
}

#[test]
fn kills_at_many_moments_of_a_task_run_change_no_bit() {
    let directory = temporary();
    let settings = [
        "train.steps=60",
        "train.accumulate=2",
        "checkpoint.every_steps=2",
        "eval.every_steps=3",
        "eval.batches=1",
    ];
    let reference = directory.path().join("reference");
    let begin = Instant::now();
    finish(&mut on_task(&reference, &settings)).succeeded();
    let whole = begin.elapsed();
    let mut dice = Dice(7);
    let mut total = [0, 0];
    for round in 0..2 {
        let run = directory.path().join(format!("run-{round}"));
        let mut moments = vec![Moment::Starting(Duration::from_millis(dice.below(15)))];
        for _ in 0..5 {
            moments.push(Moment::During(Duration::from_micros(dice.below(60_000))));
            moments.push(Moment::Saving);
        }
        let counts = survives(&reference, &run, || on_task(&run, &settings), &moments);
        total = [total[0] + counts[0], total[1] + counts[1]];
    }
    println!("{} kills, {} of them inside a save; a run takes {whole:?}", total[0], total[1]);
    assert!(total[0] >= 12, "only {} of 22 kills came in time", total[0]);
    assert!(total[1] >= 1, "no kill hit a save");
}

/// Every step evaluates, samples or saves, so that no order of the three goes untried.
#[test]
fn kills_of_a_text_run_change_neither_bits_nor_samples() {
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
    let reference = directory.path().join("reference");
    finish(&mut on_text(&reference, &data, &settings)).succeeded();
    let mut dice = Dice(11);
    let moments: Vec<_> = (0..8)
        .map(|i| match i % 2 {
            0 => Moment::During(Duration::from_micros(dice.below(40_000))),
            _ => Moment::Saving,
        })
        .collect();
    let start = || on_text(&run, &data, &settings);
    let [kills, torn] = survives(&reference, &run, start, &moments);
    println!("{kills} kills, {torn} of them inside a save");
    assert!(kills >= 3, "only {kills} of 8 kills came in time");
}
