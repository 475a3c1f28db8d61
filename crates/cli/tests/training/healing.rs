//! Training that continues from a model: the healing of a cut one.

use crate::support::*;
use std::fs;
use std::path::Path;

/// A model trained for a few steps on the task.
fn model(place: &Path) -> std::path::PathBuf {
    let run = place.join("first");
    let mut command = on_task(&run, &["train.steps=8"]);
    finish(command.args(["--residual", "prenorm"])).succeeded();
    run.join("model")
}

fn healing(from: &Path, out: &Path, settings: &[&str]) -> std::process::Command {
    let mut command = hadal(&["train", "--from"]);
    command.arg(from).arg("--out").arg(out);
    set(&mut command, &["data.generated.length=24", "train.batch=2", "train.steps=6"]);
    set(&mut command, settings);
    command
}

#[test]
fn a_run_goes_on_from_a_model_and_can_be_resumed_without_it() {
    let directory = temporary();
    let model = model(directory.path());
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    finish(&mut healing(&model, &whole, &[])).succeeded();
    let text = fs::read_to_string(whole.join("config.toml")).unwrap();
    assert!(text.contains("from = ") && text.contains("n_layers = 2"), "{text}");
    // The checkpoint of step 0 is the model itself.
    finish(&mut healing(&model, &parts, &["optimizer.adamw.lr=0", "optimizer.muon.lr=0"]))
        .succeeded();
    let bytes = |path: &Path| fs::read(path.join("model.safetensors")).unwrap();
    assert_eq!(bytes(&parts.join("model")), bytes(&model));
    assert_ne!(bytes(&whole.join("model")), bytes(&model));

    let (again, gone) = (directory.path().join("again"), directory.path().join("gone"));
    let ended = signalled(&mut healing(&model, &again, &["train.steps=200"]), "-INT", || {
        lines(&again.join("metrics.jsonl")) >= 2
    });
    fs::rename(&model, &gone).unwrap();
    if ended.code == Some(130) {
        finish(&mut resume(&again)).succeeded();
    }
    assert!(again.join("model/model.safetensors").is_file());
}

#[test]
fn settings_of_another_model_are_refused() {
    let directory = temporary();
    let model = model(directory.path());
    let out = directory.path().join("out");
    let refused = |settings: &[&str]| finish(&mut healing(&model, &out, settings));
    refused(&["model.n_layers=3"]).refused(2, &["n_layers 2", "the settings say 3"]);
    refused(&["data.generated.length=500"]).refused(2, &["max_seq_len"]);
    let missing = directory.path().join("missing");
    finish(&mut healing(&missing, &out, &[])).refused(2, &["--from", "missing"]);
    assert!(!out.exists());
}
