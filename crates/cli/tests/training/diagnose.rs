//! Looking into runs: while they train, and afterwards.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::Path;

fn summary(diagnosis: &Path) -> Value {
    let text = fs::read_to_string(diagnosis.join("about/summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn looking_into_a_run_leaves_its_bits_alone() {
    let directory = temporary();
    for policy in ["mgr:streams=2", "nag"] {
        let (plain, watched) = (directory.path().join("plain"), directory.path().join("watched"));
        let settings = ["train.steps=8", "eval.every_steps=4", "eval.batches=1"];
        finish(on_task(&plain, &settings).args(["--residual", policy])).succeeded();
        let mut command = on_task(&watched, &settings);
        command.args(["--residual", policy, "--diagnose-every", "3"]);
        let ended = finish(&mut command).succeeded();
        assert!(ended.stderr.contains("step 6: norm growth"), "{}", ended.stderr);
        assert_same(&watched, &plain, policy);
        let diagnosis = watched.join("diagnosis");
        assert_eq!(summary(&diagnosis.join("step-000000003"))["step"], 3);
        assert_eq!(summary(&diagnosis)["step"], 6);
        assert!(diagnosis.join("angular-distance.json").exists());
        assert!(!plain.join("diagnosis").exists());
        fs::remove_dir_all(&plain).unwrap();
        fs::remove_dir_all(&watched).unwrap();
    }
}

#[test]
fn a_run_is_diagnosed_on_its_own_held_out_data() {
    let directory = temporary();
    let run = directory.path().join("run");
    let settings = ["train.steps=6", "eval.batches=1", "checkpoint.every_steps=3"];
    finish(on_task(&run, &settings).args(["--residual", "nag"])).succeeded();
    let diagnose = |more: &[&str]| {
        let mut command = hadal(&["diagnose", "--batches", "1"]);
        finish(command.arg(&run).args(more))
    };
    let text = directory.path().join("text.txt");
    fs::write(&text, words(400)).unwrap();
    let words = ["trained on the generated task khop, so it reads no text", "leave --data out"];
    diagnose(&["--data", &text.display().to_string()]).refused(2, &words);
    diagnose(&[]).succeeded();
    let finished = summary(&run.join("diagnosis"));
    assert_eq!(finished["step"], 6);
    assert!(finished["lanes"]["rotation"].as_f64().unwrap() > 0.0, "{finished}");

    // Without its finished model the newest checkpoint is diagnosed, which is the same.
    fs::remove_dir_all(run.join("model")).unwrap();
    diagnose(&[]).succeeded();
    assert_eq!(summary(&run.join("diagnosis")), finished);
    flip(&newest(&run).join("state.safetensors"), 5000);
    diagnose(&[]).refused(1, &["damaged"]);
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    diagnose(&[]).refused(2, &["no checkpoint"]);
}

#[test]
fn a_run_whose_text_is_gone_says_so_and_takes_another() {
    let directory = temporary();
    let (run, data) = (directory.path().join("run"), directory.path().join("data"));
    prepare(&data, &words(4000), &[]);
    finish(&mut on_text(&run, &data, &["train.steps=2", "eval.batches=1"])).succeeded();
    let moved = directory.path().join("moved");
    fs::rename(&data, &moved).unwrap();
    let mut command = hadal(&["diagnose", "--batches", "1"]);
    finish(command.arg(&run)).refused(2, &["data"]);
    finish(command.arg("--data").arg(&moved)).succeeded();
}

#[test]
fn an_interrupted_diagnosis_says_what_is_saved_and_how_to_go_on() {
    let directory = temporary();
    let run = directory.path().join("run");
    let settings = ["train.steps=2", "eval.batches=1"];
    finish(on_task(&run, &settings).args(["--residual", "prenorm"])).succeeded();
    let diagnosis = run.join("diagnosis");
    // Far more passes than can be made before the signal comes.
    let diagnose = |more: &[&str]| {
        let mut command = hadal(&["diagnose", "--batches", "60"]);
        command.arg(&run).args(more);
        command
    };
    let progress = diagnosis.join("about/progress.json");
    let ended = signalled(&mut diagnose(&[]), "-INT", || progress.exists());
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    for words in
        ["stopped; saved in", "output, writes", "go on with: hadal diagnose", "--batches 60"]
    {
        assert!(ended.stderr.contains(words), "no {words:?} in {}", ended.stderr);
    }
    // What is saved is there at once, and the rest stays.
    let ended = finish(&mut diagnose(&["--only", "output,sink"])).succeeded();
    assert!(ended.stderr.contains("goes on; done before: output"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("sink done"), "{}", ended.stderr);
    assert!(diagnosis.join("index.html").exists() && progress.exists());
    let other = finish(&mut diagnose(&["--only", "writes", "--without", "0"])).succeeded();
    assert!(other.stderr.contains("it was of other settings: begins anew"), "{}", other.stderr);
}
