//! A run and a suite whose messages nobody reads.

use crate::compare::{THREE, compare, written};
use crate::support::*;
use std::fs;
use std::io::PipeWriter;

fn closed_pipe() -> PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

#[test]
fn a_run_goes_on_when_nobody_reads() {
    let directory = temporary();
    let (heard, unheard) = (directory.path().join("heard"), directory.path().join("unheard"));
    let settings = ["train.steps=8", "eval.every_steps=2"];
    finish(&mut on_task(&heard, &settings)).succeeded();
    let mut command = on_task(&unheard, &settings);
    let status = command.stdout(closed_pipe()).stderr(closed_pipe()).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_same(&unheard, &heard, "unheard");
}

#[test]
fn a_run_that_is_stopped_says_so_by_its_exit_code_when_nobody_reads() {
    let directory = temporary();
    let run = directory.path().join("run");
    let mut command = on_task(&run, &ENDLESS);
    let mut child = command.stdout(closed_pipe()).stderr(closed_pipe()).spawn().unwrap();
    wait_until(&mut child, || lines(&run.join("metrics.jsonl")) > 0);
    send("-INT", &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(checkpoints(&run).len() > 1);
}

#[test]
fn a_suite_writes_its_report_and_counts_its_failures_when_nobody_reads() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0]", THREE);
    let out = directory.path().join("out");
    fs::create_dir_all(out.join("runs")).unwrap();
    fs::write(out.join("runs/again-s0"), "in the way").unwrap();
    let ended = finish(compare(&suite, &out).stdout(closed_pipe()));
    ended.refused(1, &["1 of 3 runs failed", "logs"]);
    assert!(out.join("report.html").exists());

    fs::remove_file(out.join("runs/again-s0")).unwrap();
    fs::remove_file(out.join("report.html")).unwrap();
    let mut again = compare(&suite, &out);
    let status = again.arg("--json").stdout(closed_pipe()).stderr(closed_pipe()).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(out.join("report.html").exists());
}
