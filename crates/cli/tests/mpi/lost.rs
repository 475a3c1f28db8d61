//! Ranks that are killed or stopped, and runs that go on without them.

use crate::job::*;
use crate::support::*;
use std::path::Path;

/// Steps that take a while, and a checkpoint after every second one.
const LONG: [&str; 4] =
    ["train.steps=60", "train.accumulate=12", "eval.every_steps=20", "checkpoint.every_steps=2"];

/// A run that was not disturbed, to compare with.
fn whole(directory: &Path) -> std::path::PathBuf {
    let whole = directory.join("whole");
    finish(&mut on_task(&whole, &LONG)).succeeded();
    whole
}

#[test]
fn a_killed_rank_ends_the_job_and_another_number_goes_on_to_the_same_bits() {
    if !has_mpirun() {
        return;
    }
    let directory = in_memory();
    let whole = whole(directory.path());
    let run = directory.path().join("parts");
    // Not the one that writes, the one that does, and again.
    for (ranks, rank, lines) in [(2, 1, 5), (3, 0, 12), (2, 1, 20)] {
        let mut command = match rank {
            1 if lines == 5 => mpirun(ranks, &on_task(&run, &LONG)),
            _ => mpirun(ranks, &resume(&run)),
        };
        let ended = signal_rank(&mut command, rank, "-KILL", &run, lines);
        assert_ne!(ended.code, Some(0), "{}", ended.stderr);
        let said = ended.stderr.to_lowercase();
        assert!(said.contains(&format!("rank {rank}")) && said.contains("signal 9"), "{said}");
        assert!(!run.join("model").exists());
    }
    finish(&mut resume(&run)).succeeded();
    assert!(model(&run) == model(&whole));
    assert_eq!(losses(&run), losses(&whole));
}

#[test]
fn a_stopped_rank_is_named_and_the_run_goes_on_elsewhere() {
    if !has_mpirun() {
        return;
    }
    let directory = in_memory();
    let whole = whole(directory.path());
    for rank in [0, 1] {
        let run = directory.path().join(format!("without-{rank}"));
        let mut command = mpirun(3, &on_task(&run, &LONG));
        let ended = signal_rank(&mut command, rank, "-STOP", &run, 5);
        let how = format!("is lost: silent for {PATIENCE} s");
        let ended = ended.refused(1, &[&format!("rank {rank} (process "), &how]);
        assert!(ended.stderr.contains("hadal train --resume"), "{}", ended.stderr);
        finish(&mut mpirun(2, &resume(&run))).succeeded();
        assert!(model(&run) == model(&whole));
        assert_eq!(losses(&run), losses(&whole));
    }
}
