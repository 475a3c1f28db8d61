//! `hadal diagnose` on models that were not trained here, and on files that are no model at all.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const STORY: &str = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. \
                     One day, she saw a big red ball and she wanted to play with it. ";

/// A folder with a text of several sequences.
fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("story.txt");
    fs::write(&text, STORY.repeat(20)).unwrap();
    (folder, text)
}

fn diagnose(model: &Path, data: &Path, out: &Path) -> Command {
    let mut command = command("diagnose");
    command.arg(model).args(["--batches", "1"]).arg("--data").arg(data).arg("--out").arg(out);
    command
}

fn names(out: &Path, extension: &str) -> Vec<String> {
    let entries = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|e| e == extension));
    let mut names: Vec<_> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn an_imported_model_is_diagnosed_with_a_text() {
    let (folder, text) = folder();
    let out = folder.path().join("out");
    let said = run(&mut diagnose(&stories(), &text, &out)).succeeded();
    for words in ["stories260K: prenorm, 5 blocks", "norm growth", "dearest", "activations"] {
        assert!(said.stdout.contains(words), "no {words:?} in {}", said.stdout);
    }
    // The sentences of the page come first.
    let page = fs::read_to_string(out.join("index.html")).unwrap();
    let headline = said.stdout.lines().nth(1).unwrap().trim().trim_end_matches('.');
    assert!(headline.starts_with("Every block is needed: without block"), "{headline}");
    assert!(page.contains(&format!("<h1>{headline}</h1>")), "{headline}");
    for words in ["hadal prune plan", "5 blocks", "story.txt", "id=\"removal-loss\""] {
        assert!(page.contains(words), "no {words:?} on the page");
    }
    assert!(!page.contains("id=\"removal-perplexity\""), "nothing is shown twice");
    assert!(said.stderr.contains("figures are in"), "{}", said.stderr);
    assert!(said.stderr.contains("JSON, CSV, SVG and PNG"), "{}", said.stderr);
    assert!(said.stderr.trim_end().lines().last().unwrap().contains("index.html"));
    let figures = names(&out, "json");
    assert_eq!(figures, names(&out, "csv"));
    for name in ["angular-distance", "attention-sink", "removal-perplexity", "gradient-rms"] {
        assert!(figures.iter().any(|figure| figure == name), "{name} is not in {figures:?}");
    }
    for name in &figures {
        let figure = read_json(&out.join(format!("{name}.json")));
        assert_eq!(figure["name"], name.as_str());
        assert!(figure["caption"].as_str().unwrap().len() > 20, "{figure}");
    }
    // A small model that knows stories: they are likelier to it than by chance.
    let summary = read_json(&out.join("about/summary.json"));
    assert!(summary["loss"].as_f64().unwrap() < 3.0, "{summary}");
    assert_eq!(summary["removals"].as_array().unwrap().len(), 5);
}

#[test]
fn scripts_get_json_and_only_what_they_ask_for() {
    let (folder, text) = folder();
    let out = folder.path().join("out");
    let mut command = diagnose(&stories(), &text, &out);
    let said = run(command.args(["--only", "sink,output", "--json"])).succeeded();
    let json: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(said.stderr, "");
    assert_eq!(
        json["figures"],
        serde_json::json!(["output-rms", "stream-growth", "attention-sink"])
    );
    assert!(json["models"][0]["loss"].is_f64(), "{json}");
    assert_eq!(names(&out, "json"), ["attention-sink", "output-rms", "stream-growth"]);
}

#[test]
fn several_models_share_a_figure() {
    let (folder, text) = folder();
    let (copy, out) = (copy_of(&stories()), folder.path().join("out"));
    let mut command = diagnose(&stories(), &text, &out);
    run(command.arg(copy.path()).args(["--only", "output,distance"])).succeeded();
    let lines = read_json(&out.join("output-rms.json"));
    let series = lines["marks"]["series"].as_array().unwrap();
    assert_eq!(series.len(), 2, "{lines}");
    assert_eq!(series[0]["y"], series[1]["y"]);
    assert_ne!(series[0]["name"], series[1]["name"]);
    let heat = names(&out, "json").into_iter().filter(|name| name.starts_with("angular")).count();
    assert_eq!(heat, 2, "a heat map for each");
    let alone = run(crate::support::command("diagnose").arg(stories()).arg(copy.path()));
    alone.refused(2, &["--out"]);
}

#[test]
fn what_cannot_be_diagnosed_is_refused_with_a_remedy() {
    let (folder, text) = folder();
    let out = folder.path().join("out");
    let refused = |command: &mut Command, reasons: &[&str]| run(command).refused(2, reasons);
    refused(command("diagnose").arg(stories()), &["stories260K", "--data"]);
    refused(command("diagnose").arg("nowhere"), &["nowhere", "neither a run", "nor a model"]);
    let mut unknown = diagnose(&stories(), &text, &out);
    refused(unknown.args(["--only", "sinks"]), &["`sinks`", "gradients", "sink"]);
    let mut lanes = diagnose(&stories(), &text, &out);
    refused(lanes.args(["--only", "lanes"]), &["nothing to show", "prenorm"]);
    let empty = folder.path().join("empty.txt");
    fs::write(&empty, "").unwrap();
    refused(&mut diagnose(&stories(), &empty, &out), &["empty.txt", "tokens", "--data"]);
    let binary = folder.path().join("binary.txt");
    fs::write(&binary, [0xff, 0xfe, 0x00, 0x80]).unwrap();
    refused(&mut diagnose(&stories(), &binary, &out), &["binary.txt", "UTF-8", "data prepare"]);
    refused(&mut diagnose(&golden("mgr-competitive"), &text, &out), &["tokenizer.json"]);
    let nothing = folder.path().join("nothing");
    fs::create_dir(&nothing).unwrap();
    refused(&mut diagnose(&stories(), &nothing, &out), &["nothing"]);
    run(&mut diagnose(&stories(), Path::new("gone.txt"), &out)).refused(1, &["gone.txt"]);
    assert!(!out.exists(), "what is refused leaves nothing");
}

#[test]
fn data_of_another_tokenizer_is_refused() {
    let (folder, text) = folder();
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    run(command("data").arg("prepare").arg(&text).arg("--out").arg(&data)).succeeded();
    run(&mut diagnose(&stories(), &data, &out)).refused(2, &["another tokenizer", "--tokenizer"]);
    let own = folder.path().join("own");
    let mut prepare = command("data");
    prepare.arg("prepare").arg(&text).arg("--out").arg(&own);
    run(prepare.arg("--tokenizer").arg(stories().join("tokenizer.json"))).succeeded();
    let mut command = diagnose(&stories(), &own, &out);
    run(command.args(["--only", "output"])).succeeded();
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let (folder, text) = folder();
    let model = copy_of(&stories());
    edit_tensors(&model.path().join(WEIGHTS), |tensors| {
        tensors.get_mut("model.layers.0.mlp.down_proj.weight").unwrap().set(5, |_| f32::NAN);
    });
    let out = folder.path().join("out");
    run(&mut diagnose(model.path(), &text, &out)).refused(1, &["down_proj", "NaN"]);
}

/// Everything in a folder, with what is in its folders.
fn tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(tree(&path)),
            false => found.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

#[test]
fn a_kill_loses_nothing_that_was_found() {
    let (folder, text) = folder();
    let out = folder.path().join("out");
    let diagnose = || diagnose(&stories(), &text, &out);
    run(&mut diagnose()).succeeded();
    let expected = tree(&out);
    fs::remove_dir_all(&out).unwrap();
    let killed = diagnose().env("HADAL_FAULT", "kill:write progress.json#3").output().unwrap();
    assert!(!killed.status.success());
    assert!(out.join("about/progress.json").exists());
    let said = run(&mut diagnose()).succeeded().stderr;
    assert!(said.contains("goes on; done before: output, writes"), "{said}");
    assert!(!said.contains("output, writes, distance, activations, sink done"), "{said}");
    assert_eq!(tree(&out), expected);
}

#[test]
fn a_place_that_cannot_be_written_is_refused_before_anything_is_read() {
    let (folder, text) = folder();
    let taken = folder.path().join("taken");
    fs::write(&taken, "mine").unwrap();
    // The model is no model, which would be found out next.
    let broken = folder.path().join("broken.gguf");
    fs::write(&broken, "no model").unwrap();
    for out in [taken.clone(), taken.join("below")] {
        let said = run(&mut diagnose(&broken, &text, &out));
        said.refused(2, &["cannot write", "taken"]);
        assert!(!said.stderr.contains("broken"), "{}", said.stderr);
    }
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
}

#[test]
fn a_dry_run_says_what_it_would_take() {
    let (folder, text) = folder();
    let out = folder.path().join("out");
    let said = run(diagnose(&stories(), &text, &out).arg("--dry-run")).succeeded().stdout;
    for words in ["stories260K: output, gradients", "passes over", "tokens; about", "B of memory"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert!(!out.exists());
    let plans = |only: &str| -> Value {
        let mut command = diagnose(&stories(), &text, &out);
        let said = run(command.args(["--dry-run", "--json", "--only", only])).succeeded();
        serde_json::from_str(&said.stdout).unwrap()
    };
    // Five blocks, three parts each, the whole, and the pass that all diagnostics watch.
    let removal = &plans("removal")[0];
    assert_eq!(removal["passes"], 17, "{removal}");
    assert_eq!(removal["diagnostics"], serde_json::json!(["removal"]));
    let gradients = &plans("gradients")[0];
    assert_eq!(gradients["passes"], 2, "{gradients}");
    assert!(gradients["memory"].as_f64().unwrap() > 1e6, "{gradients}");
}
