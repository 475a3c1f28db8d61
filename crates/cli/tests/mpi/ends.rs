//! Ends that all ranks come to together.

use crate::job::*;
use crate::support::*;

/// mpirun passes on what it is sent. Open MPI gives processes a second to end unless it is told otherwise.
#[test]
fn a_job_that_is_asked_to_stop_saves_and_goes_on_to_the_same_bits() {
    if !has_mpirun() {
        return;
    }
    let directory = in_memory();
    let settings = ["train.steps=60", "train.accumulate=12", "checkpoint.every_steps=0"];
    let [whole, run] = ["whole", "parts"].map(|name| directory.path().join(name));
    finish(&mut on_task(&whole, &settings)).succeeded();
    let mut job = mpirun(2, &on_task(&run, &settings));
    // One rank alone: the others stop with it.
    let ended = signal_rank(&mut job, 1, "-TERM", &run, 5);
    assert_ne!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("interrupted; step ").count(), 1, "{}", ended.stderr);
    assert!(!run.join("model").exists());
    finish(&mut mpirun(3, &resume(&run))).succeeded();
    assert!(model(&run) == model(&whole));
    assert_eq!(losses(&run), losses(&whole));
}

/// What fails on the rank that writes ends all, and is said once.
#[test]
fn a_full_disk_is_said_once() {
    if !has_mpirun() {
        return;
    }
    let directory = in_memory();
    let run = directory.path().join("run");
    let mut command = mpirun(3, &on_task(&run, &crate::SETTINGS));
    finish(command.env("HADAL_FAULT", "full:write metrics.jsonl#3")).refused(1, &["metrics.jsonl"]);
    finish(&mut mpirun(2, &resume(&run))).succeeded();
}
