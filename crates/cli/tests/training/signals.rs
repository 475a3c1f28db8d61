//! Signals: those that ask a run to stop, and the one that takes its data away.

use crate::support::*;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

/// The same program with a signal as most programs are started with it, whoever started the tests, or with it ignored.
fn started_with(signal: &str, command: &Command) -> Command {
    let mut wrapped = Command::new("env");
    wrapped.arg(signal).arg(command.get_program()).args(command.get_args());
    wrapped
}

/// Whether the newest checkpoint is not that of the start.
fn is_saved(run: &Path) -> bool {
    !newest(run).ends_with("step-000000000")
}

#[test]
fn every_signal_that_asks_to_stop_saves_and_is_the_exit_code() {
    let directory = temporary();
    for (signal, code) in [("HUP", 129), ("INT", 130), ("TERM", 143)] {
        let run = directory.path().join(signal);
        let mut command = started_with("--default-signal=HUP", &on_task(&run, &ENDLESS));
        let metrics = run.join("metrics.jsonl");
        let ended = signalled(&mut command, &format!("-{signal}"), || lines(&metrics) > 0);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains("is saved"), "{}", ended.stderr);
        assert!(is_saved(&run), "{signal}");
    }
}

/// A closed terminal sends it more than once: the shell does, and the system does.
#[test]
fn a_second_hangup_does_not_interrupt_the_saving() {
    let directory = temporary();
    let run = directory.path().join("run");
    let mut child = started(&mut started_with("--default-signal=HUP", &on_task(&run, &ENDLESS)));
    wait_until(&mut child, || lines(&run.join("metrics.jsonl")) > 0);
    for _ in 0..3 {
        send("-HUP", &child);
    }
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(129));
    assert!(is_saved(&run));
}

#[test]
fn a_run_that_ignores_hangups_goes_on() {
    let directory = temporary();
    let run = directory.path().join("run");
    let mut child = started(&mut started_with("--ignore-signal=HUP", &on_task(&run, &ENDLESS)));
    let metrics = run.join("metrics.jsonl");
    wait_until(&mut child, || lines(&metrics) > 0);
    send("-HUP", &child);
    // A run that listens would stop after the step that it is in.
    let enough = lines(&metrics) + 3;
    wait_until(&mut child, || lines(&metrics) >= enough);
    send("-TERM", &child);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
}

#[test]
fn data_that_is_cut_under_a_run_is_named_as_the_reason_of_its_end() {
    let directory = temporary();
    let (data, run) = (directory.path().join("data"), directory.path().join("run"));
    prepare(&data, &words(4000), &[]);
    let mut child = started(&mut on_text(&run, &data, &["train.steps=1000000"]));
    wait_until(&mut child, || lines(&run.join("metrics.jsonl")) > 0);
    let shard = OpenOptions::new().write(true).open(data.join("shard-00000.bin")).unwrap();
    shard.set_len(0).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: ") && last.contains("shard-00000.bin"), "{said}");
}
