//! When the loss stops being a number: evidence, then what the settings say.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The first step throws every parameter far away; the second cannot be finite.
const EXPLODING: [&str; 5] = [
    "train.steps=8",
    "optimizer.adamw.lr=1e30",
    "optimizer.muon.lr=1e30",
    "optimizer.clip=0",
    "schedule.warmup_steps=0",
];

fn dumps(run: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(run.join("failures")) else { return Vec::new() };
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The state before the step, and the data that it saw.
fn assert_complete(dump: &Path, rows: u64) {
    for name in STATE_FILES {
        assert!(dump.join(name).exists(), "{name}");
    }
    let failed = json(&dump.join("failed-step.json"));
    assert!(failed["problem"].as_str().unwrap().contains("NaN"), "{failed}");
    let batches = failed["batches"].as_array().unwrap();
    assert_eq!(batches.iter().map(|batch| batch["rows"].as_u64().unwrap()).sum::<u64>(), rows);
    assert_eq!(batches[0]["input"].as_array().unwrap().len() as u64, 2 * 24);
}

#[test]
fn by_default_a_failure_stops_before_the_parameters_are_touched() {
    let directory = temporary();
    let run = directory.path().join("run");
    let mut settings = EXPLODING.to_vec();
    settings.extend(["train.accumulate=3", "checkpoint.every_steps=1"]);
    let ended = finish(&mut on_task(&run, &settings));
    ended.refused(
        3,
        &["step 1", "NaN", "untouched", "failures/step-000000001", "in a new run", "on_failure"],
    );
    assert!(!run.join("model").exists());
    let [dump] = &dumps(&run)[..] else { panic!("{:?}", dumps(&run)) };
    assert_complete(dump, 6);
    // What the failing step would have changed is as it was saved before.
    let tensors = |directory: &Path| fs::read(directory.join("state.safetensors")).unwrap();
    assert!(tensors(dump) == tensors(&newest(&run)));
    // The same step of the same state fails in the same way.
    finish(&mut resume(&run)).refused(3, &["step 1", "NaN"]);
    assert_eq!(dumps(&run).len(), 1);
}

#[test]
fn skip_and_rollback_stop_at_the_limit() {
    let directory = temporary();
    for what in ["skip", "rollback"] {
        let run = directory.path().join(what);
        let mut settings = EXPLODING.to_vec();
        let on_failure = format!("failure.on_failure={what}");
        settings.extend([on_failure.as_str(), "failure.limit=3", "checkpoint.every_steps=1"]);
        let ended = finish(&mut on_task(&run, &settings)).refused(3, &["step 1", "NaN"]);
        // What the run has done already is no advice.
        assert!(ended.stderr.contains("failure.limit") && !ended.stderr.contains("on_failure to"));
        let warnings = ended.stderr.lines().filter(|line| line.starts_with("warning: step 1"));
        assert_eq!(warnings.count(), 3, "{}", ended.stderr);
        let dumps = dumps(&run);
        assert_eq!(dumps.len(), 4, "{dumps:?}");
        dumps.iter().for_each(|dump| assert_complete(dump, 2));
        // Whether the run went on is part of the evidence.
        let then = dumps.iter().map(|dump| json(&dump.join("failed-step.json"))["then"].clone());
        assert_eq!(then.collect::<Vec<_>>(), [what, what, what, "stop"]);
        // Other data each time.
        assert_ne!(
            json(&dumps[0].join("failed-step.json")),
            json(&dumps[1].join("failed-step.json"))
        );
    }
}

/// A model that is not finite writes no text, and the next step does what the settings say.
#[test]
fn a_sample_that_cannot_be_written_is_a_warning() {
    let directory = temporary();
    let data = directory.path().join("data");
    prepare(&data, &words(400), &[]);
    let run = directory.path().join("run");
    let mut settings = EXPLODING.to_vec();
    settings.extend(["sample.every_steps=1", "failure.on_failure=skip", "failure.limit=2"]);
    let ended = finish(&mut on_text(&run, &data, &settings)).refused(3, &["step 1", "NaN"]);
    assert!(ended.stderr.contains("warning: step 1: no sample: "), "{}", ended.stderr);
    assert_eq!(dumps(&run).len(), 3);
}

/// A loss that is no number is not the best so far; the checkpoint that holds it must be readable.
#[test]
fn an_evaluation_that_is_not_finite_spoils_no_checkpoint() {
    let directory = temporary();
    let run = directory.path().join("run");
    let mut settings = EXPLODING.to_vec();
    settings.extend(["eval.every_steps=1", "checkpoint.every_steps=1"]);
    finish(&mut on_task(&run, &settings)).refused(3, &["step 1"]);
    finish(&mut resume(&run)).refused(3, &["step 1", "NaN"]);
}

/// A text with a letter that few windows hold.
///
/// Decay of one and no epsilon make exactly the batches with that letter fail, while every parameter
/// stays finite: AdamW puts its update in the place of each embedding, which is zero for a token that no
/// step has seen, and a zero cannot be normalised.
pub(crate) fn rare(directory: &Path) -> PathBuf {
    let data = directory.join("data");
    let words = (0..150).map(|i| if [36, 73, 110].contains(&i) { "abcdeZ" } else { "abcdef" });
    prepare(&data, &words.collect::<String>(), &[]);
    data
}

pub(crate) const POISONED: [&str; 9] = [
    "train.steps=40",
    "model.tie_embeddings=false",
    "model.norm_eps=1e-50",
    "optimizer.adamw.lr=0.0078125",
    "optimizer.adamw.weight_decay=128",
    "schedule.warmup_steps=0",
    "schedule.final_share=1",
    "eval.batches=1",
    "failure.limit=50",
];

#[test]
fn skip_and_rollback_go_on_behind_the_data_that_failed_always_in_the_same_way() {
    let directory = temporary();
    let data = rare(directory.path());
    for what in ["skip", "rollback"] {
        let on_failure = format!("failure.on_failure={what}");
        let mut settings = POISONED.to_vec();
        settings.extend([on_failure.as_str(), "checkpoint.every_steps=3"]);
        let start = |out: &Path| {
            let mut command = on_text(out, &data, &settings);
            command.args(["--residual", "prenorm"]);
            command
        };
        let runs = ["a", "b"].map(|name| directory.path().join(format!("{what}-{name}")));
        let ends = [&runs[0], &runs[1]].map(|run| finish(&mut start(run)).succeeded());
        let warnings =
            |ended: &Ended| ended.stderr.lines().filter(|line| line.starts_with("warning")).count();
        println!("{what}: {} failures on the way", warnings(&ends[0]));
        assert!(warnings(&ends[0]) > 1, "{}", ends[0].stderr);
        assert_eq!(dumps(&runs[0]).len(), warnings(&ends[0]));
        assert_same(&runs[0], &runs[1], what);
        // However often the run went back.
        let steps = curve(&runs[0]).into_iter().filter(|line| line["kind"] == "train");
        let steps: Vec<u64> = steps.map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (1..=40).collect::<Vec<u64>>(), "{what}");
        let last = curve(&runs[0]).pop().unwrap();
        assert!(last["loss"].as_f64().is_some(), "{last}");

        // The same when it is killed on the way.
        let killed = directory.path().join(format!("{what}-killed"));
        killed_at(&mut start(&killed), "write metrics.jsonl#25");
        finish(&mut resume(&killed)).succeeded();
        assert_same(&killed, &runs[0], what);
    }
}

/// A signal makes a checkpoint that an uninterrupted run would not have. Going back to it instead of to the one before
/// would take another path from there on.
#[test]
fn a_rollback_takes_the_same_way_in_a_run_that_was_interrupted() {
    let directory = temporary();
    let data = rare(directory.path());
    let mut settings = POISONED.to_vec();
    settings.extend(["failure.on_failure=rollback", "checkpoint.every_steps=10"]);
    let start = |out: &Path| {
        let mut command = on_text(out, &data, &settings);
        command.args(["--residual", "prenorm"]);
        command
    };
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    finish(&mut start(&whole)).succeeded();
    let metrics = parts.join("metrics.jsonl");
    let mut stopped = vec![signalled(&mut start(&parts), "-INT", || lines(&metrics) > 2).code];
    for enough in [8, 14, 25] {
        stopped.push(signalled(&mut resume(&parts), "-INT", || lines(&metrics) > enough).code);
    }
    println!("signals: {stopped:?}");
    finish(&mut resume(&parts)).succeeded();
    assert_same(&parts, &whole, "rollback");
}
