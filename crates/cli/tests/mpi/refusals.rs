//! What cannot be started: said once, with exit code 2.

use crate::job::*;
use crate::support::*;

#[test]
fn ranks_with_other_settings_are_named_and_refused() {
    if !has_mpirun() {
        return;
    }
    let directory = in_memory();
    let run = directory.path().join("run");
    let [ours, theirs] = ["3", "4"].map(|seed| {
        let mut command = on_task(&run, &["train.accumulate=4"]);
        command.args(["--seed", seed]);
        command
    });
    let ended = finish(&mut apart(&[(2, &ours), (1, &theirs)]));
    ended.refused(2, &["rank 2 (process ", "seed", "same settings"]);
    assert!(!run.join("checkpoints").exists());
}

#[test]
fn more_ranks_than_passes_are_refused() {
    if !has_mpirun() {
        return;
    }
    let directory = in_memory();
    let run = directory.path().join("run");
    let ended = finish(&mut mpirun(3, &on_task(&run, &["train.accumulate=2"])));
    ended.refused(2, &["3 ranks", "train.accumulate is 2"]);
}

#[test]
fn what_is_wrong_everywhere_is_said_once() {
    if !has_mpirun() {
        return;
    }
    let directory = in_memory();
    let run = directory.path().join("run");
    let wrong = on_task(&run, &["train.stepz=2"]);
    finish(&mut mpirun(3, &wrong)).refused(2, &["stepz"]);
    let unknown = hadal(&["train", "--wrong"]);
    finish(&mut mpirun(3, &unknown)).refused(2, &["--wrong"]);
    let missing = hadal(&["train", "--resume", "/nowhere/run"]);
    finish(&mut mpirun(3, &missing)).refused(2, &["/nowhere/run"]);
    let mut impatient = mpirun(2, &on_task(&run, &[]));
    finish(impatient.env("HADAL_PATIENCE", "soon")).refused(2, &["HADAL_PATIENCE=soon"]);
}

#[test]
fn other_commands_work_alone() {
    if !has_mpirun() {
        return;
    }
    finish(&mut mpirun(3, &hadal(&["policies"]))).refused(2, &["3 processes", "`hadal train`"]);
    let version = finish(&mut mpirun(3, &hadal(&["--version"]))).succeeded();
    assert_eq!(version.stdout.matches("hadal ").count(), 1, "{}", version.stdout);
}
