//! Training that continues from a model: the healing of a cut one.

use crate::support::*;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

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
    set(&mut command, &["data.generated.task=khop", "data.generated.length=24"]);
    set(&mut command, &["train.batch=2", "train.steps=6"]);
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

/// Training goes on from where the source was: the first loss is the same, and the new parameters learn.
#[test]
fn a_model_with_another_stream_goes_on_from_the_same_loss() {
    let directory = temporary();
    let model = model(directory.path());
    let first = |out: &Path| {
        let evaluation = curve(out).into_iter().find(|line| line["kind"] == "eval").unwrap();
        assert_eq!(evaluation["step"], 0);
        evaluation["loss"].as_f64().unwrap()
    };
    let plain = directory.path().join("plain");
    finish(&mut healing(&model, &plain, &[])).succeeded();
    for residual in ["hc:streams=2", "mhc:streams=3,readout=mean", "gr", "hy4"] {
        let name = residual.replace([':', '=', ','], "-");
        let (wide, out) = (directory.path().join(&name), directory.path().join(name + "-run"));
        let mut command = hadal(&["convert", "--residual", residual]);
        finish(command.arg(&model).arg("--out").arg(&wide)).succeeded();
        finish(&mut healing(&wide, &out, &[])).succeeded();
        assert!((first(&out) - first(&plain)).abs() < 1e-5, "{residual}");
        let weights = |path: &Path| fs::read(path.join("model.safetensors")).unwrap();
        assert_ne!(weights(&out.join("model")), weights(&wide));
    }
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

fn stories() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K")
}

/// The model of stories without its block 2, and a text that the whole model wrote, in its tokens.
fn cut_and_text(place: &Path) -> (PathBuf, PathBuf) {
    let (cut, source, data) = (place.join("cut"), place.join("text.jsonl"), place.join("text"));
    let mut command = hadal(&["prune", "apply"]);
    finish(command.arg(stories()).args(["--blocks", "2", "--out"]).arg(&cut)).succeeded();
    let write = |seed: u64| {
        let mut command = hadal(&["generate", "--prompt", "", "-n", "400", "-t", "1", "--seed"]);
        let text = finish(command.arg(seed.to_string()).arg(stories())).succeeded().stdout;
        format!("{}\n", json!({ "text": text }))
    };
    fs::write(&source, (0..24).map(write).collect::<String>()).unwrap();
    let mut command = hadal(&["data", "prepare", "--tokenizer"]);
    finish(command.arg(&cut).arg(&source).arg("--out").arg(&data)).succeeded();
    (cut, data)
}

fn documented(cut: &Path, data: &Path, out: &Path, steps: u64) -> std::process::Command {
    let mut command = hadal(&["train", "--from"]);
    command.arg(cut).args(["--set", &format!("data.train={}", data.display())]);
    command.args(["--set", &format!("train.steps={steps}"), "--out"]).arg(out);
    command
}

#[test]
fn the_documented_command_heals_a_cut_model_and_says_so() {
    let directory = temporary();
    let (cut, data) = cut_and_text(directory.path());
    let out = directory.path().join("healed");
    let ended = finish(&mut documented(&cut, &data, &out, 12)).succeeded();
    let said = ended.stderr;
    let line = said.lines().find(|line| line.starts_with("held-out perplexity")).unwrap();
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[1] < 0.9 * numbers[0] && line.ends_with("% lower)"), "{line}");
    // Where the length comes from, and how often a small text is read.
    assert!(said.contains("sequences of") && said.contains("the model's context is 512"), "{said}");
    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    for setting in ["seq_len = ", "hidden = \"adamw\"", "lr = 0.001\n", "warmup_steps = 1\n"] {
        assert!(config.contains(setting), "{setting}: {config}");
    }
    // Both measurements are in the metrics, the first one of the model as it was.
    let evaluations: Vec<_> =
        curve(&out).into_iter().filter(|line| line["kind"] == "eval").collect();
    assert_eq!(evaluations[0]["step"], 0);
    assert_eq!(evaluations.last().unwrap()["step"], 12);
    let first = evaluations[0]["perplexity"].as_f64().unwrap();
    assert!((first - numbers[0]).abs() < 1e-3, "{first}: {line}");

    // What the user says is done, and what came of it is said plainly.
    let harmed = directory.path().join("harmed");
    let mut command = documented(&cut, &data, &harmed, 12);
    set(&mut command, &["optimizer.adamw.lr=0.3", "train.seq_len=32", "train.batch=3"]);
    let said = finish(&mut command).succeeded().stderr;
    assert!(said.contains("warning: the model got worse: held-out perplexity"), "{said}");
    let config = fs::read_to_string(harmed.join("config.toml")).unwrap();
    assert!(config.contains("lr = 0.3\n") && config.contains("seq_len = 32\n"), "{config}");

    // A small text is read often.
    let mut command = documented(&cut, &data, &out, 1000);
    let said = finish(command.arg("--dry-run")).succeeded();
    assert!(said.stdout.contains(" epochs)"), "{}", said.stdout);
    assert!(said.stderr.contains("times; more text or fewer steps"), "{}", said.stderr);
}

#[test]
fn text_in_other_tokens_than_the_models_is_refused() {
    let directory = temporary();
    let (bytes, out) = (directory.path().join("bytes"), directory.path().join("out"));
    prepare(&bytes, &words(400), &[]);
    let words =
        ["another tokenizer", "hadal data prepare TEXT --tokenizer", "stories260K --out DIR"];
    finish(&mut documented(&stories(), &bytes, &out, 3)).refused(2, &words);
    finish(documented(&stories(), &bytes, &out, 3).arg("--dry-run")).refused(2, &words);
    let text = bytes.with_extension("jsonl");
    let mut command = documented(&stories(), &text, &out, 3);
    finish(&mut command)
        .refused(2, &["bytes.jsonl --tokenizer", "stories260K --out", "data.train="]);
    let mut command = hadal(&["train", "--from"]);
    finish(command.arg(stories()).arg("--out").arg(&out))
        .refused(2, &["what to learn from", "data.train=DIR", "--tokenizer", "stories260K"]);
    assert!(!out.exists());
}

#[test]
fn a_healed_model_chats_as_the_one_that_it_was() {
    let directory = temporary();
    let place = |name: &str| directory.path().join(name);
    let (model, cut, gguf) = (place("model"), place("cut"), place("other.gguf"));
    fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::write(model.join(name), fs::read(stories().join(name)).unwrap()).unwrap();
    }
    // Turns are put together in a way of its own, and a full stop ends them.
    let template = "{% for m in messages %}{{ bos_token }}{{ m.content }} was{% endfor %}";
    let settings = json!({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"});
    fs::write(model.join("tokenizer_config.json"), settings.to_string()).unwrap();
    let stop = finish(hadal(&["generate", "--json", "-n", "0", "-p", "a."]).arg(&model));
    let stop: serde_json::Value = serde_json::from_str(&stop.succeeded().stdout).unwrap();
    let stop = &stop["prompt_ids"].as_array().unwrap().last().unwrap();
    let ends = json!({"bos_token_id": 1, "eos_token_id": [2, stop]});
    fs::write(model.join("generation_config.json"), ends.to_string()).unwrap();

    let mut command = hadal(&["prune", "apply"]);
    finish(command.arg(&model).args(["--blocks", "2", "--out"]).arg(&cut)).succeeded();
    finish(hadal(&["export", "--format", "gguf"]).arg(&cut).arg("--out").arg(&gguf)).succeeded();
    let source = place("text.txt");
    fs::write(&source, "Once upon a time there was a girl. ".repeat(200)).unwrap();
    let asked = |model: &Path| -> serde_json::Value {
        let mut command = hadal(&["generate", "--chat", "-p", "Lily", "--json", "-n", "60"]);
        let said = finish(command.arg(model)).succeeded().stdout;
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        json!([said["prompt_ids"], said["ids"], said["stop"]])
    };
    for from in [cut, gguf] {
        let before = asked(&from);
        assert_eq!(before[2], "end", "{before}");
        let (data, out) = (from.with_extension("text"), from.with_extension("healed"));
        let mut command = hadal(&["data", "prepare", "--tokenizer"]);
        finish(command.arg(&from).arg(&source).arg("--out").arg(&data)).succeeded();
        let mut command = documented(&from, &data, &out, 2);
        set(&mut command, &["optimizer.adamw.lr=0", "train.seq_len=32"]);
        finish(&mut command).succeeded();
        assert_eq!(asked(&out), before);
        let mut command = hadal(&["verify"]);
        finish(command.arg(out.join("model"))).succeeded();
    }
}
