//! `hadal prune`, `--without` and `hadal export` as their users meet them.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const STORY: &str = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. \
                     One day, she saw a big red ball and she wanted to play with it. ";

/// A folder with a text of several sequences.
fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("story.txt");
    fs::write(&text, STORY.repeat(60)).unwrap();
    (folder, text)
}

fn prune(action: &str) -> std::process::Command {
    let mut command = command("prune");
    command.arg(action);
    command
}

fn story(model: &Path, more: &[&str]) -> String {
    let mut command = command("generate");
    command.arg(model).args(["--prompt", "Once upon a time", "-n", "40"]).args(more);
    run(&mut command).succeeded().stdout
}

#[test]
fn from_a_plan_to_a_checked_model() {
    let (folder, text) = folder();
    let (plan, out) = (folder.path().join("plan.json"), folder.path().join("smaller"));
    let mut planning = prune("plan");
    planning.arg(stories()).arg("--data").arg(&text).args(["--blocks", "1", "--batches", "2"]);
    let figures = folder.path().join("figures");
    let said = run(planning.arg("--out").arg(&plan).arg("--figures").arg(&figures)).succeeded();
    for name in ["plan.html", "prune-perplexity.csv", "prune-loss-change.svg", "prune-angles.png"] {
        assert!(fs::metadata(figures.join(name)).unwrap().len() > 0, "{name}");
    }
    for words in ["loss change", "goes (1)", "predicted", "measured", "speed", "memory"] {
        assert!(said.stdout.contains(words), "no {words:?} in {}", said.stdout);
    }
    assert!(said.stderr.contains("no model was written"), "{}", said.stderr);
    let json = read_json(&plan);
    let removed = json["remove"][0].as_str().unwrap().to_owned();
    assert!(["2", "3"].contains(&removed.as_str()), "the first, second and last stay: {removed}");
    assert_eq!(json["source"]["files"][1]["name"], "model.safetensors");

    let said = run(prune("apply").arg(&plan).arg("--out").arg(&out)).succeeded();
    assert!(said.stdout.contains("4 of 5 blocks"), "{}", said.stdout);
    for words in ["redo: hadal prune apply", "undo: rm -r", "next: hadal prune check"] {
        assert!(said.stderr.contains(words), "no {words:?} in {}", said.stderr);
    }
    let mut checking = prune("check");
    checking
        .arg(&out)
        .arg("--original")
        .arg(stories())
        .arg("--data")
        .arg(&text)
        .args(["--batches", "1"]);
    let said = run(&mut checking).succeeded().stdout;
    for words in ["the same to the bit", "perplexity", "arithmetic", "copy", "original", "cut"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert_eq!(story(&out, &[]), story(&stories(), &["--without", &removed]));
    assert_ne!(story(&out, &[]), story(&stories(), &[]));
    let report = run(checking.arg("--json")).succeeded().json();
    assert_eq!(report["passed"], true);
}

#[test]
fn what_cannot_be_cut_is_refused_with_the_reason() {
    let (folder, text) = folder();
    let out = folder.path().join("out");
    let apply = |parts: &str| {
        let mut command = prune("apply");
        command.arg(stories()).args(["--blocks", parts, "--out"]).arg(&out);
        run(&mut command)
    };
    apply("7").refused(2, &["7 is not in this model, whose blocks are 0 to 4"]);
    apply("0,1,2,3,4").refused(2, &["keep at least one"]);
    apply("x").refused(2, &["`x` is not a part"]);
    run(prune("apply").arg(stories()).arg("--out").arg(&out))
        .refused(2, &["nothing says what goes"]);
    let mut existing = prune("apply");
    existing.arg(stories()).args(["--blocks", "2", "--out"]).arg(folder.path());
    run(&mut existing).refused(2, &["exists already"]);
    assert!(!out.exists());

    let plan = |more: &[&str]| {
        let mut command = prune("plan");
        command
            .arg(stories())
            .args(["--batches", "1", "--out"])
            .arg(folder.path().join("plan.json"));
        run(command.args(more))
    };
    plan(&["--data", text.to_str().unwrap()]).refused(2, &["nothing says how much to cut"]);
    plan(&["--blocks", "1"]).refused(2, &["brings no data of its own"]);
    plan(&["--blocks", "1", "--score", "luck"]).failed(&["unknown score `luck`"]);
    plan(&["--blocks", "1", "--protect", "first"]).refused(2, &["`first` is not a block"]);
    plan(&["--blocks", "4", "--data", text.to_str().unwrap()]).refused(2, &["only 2 may"]);
    let mut checking = prune("check");
    run(checking.arg(stories()).arg("--original").arg(stories()))
        .refused(2, &["holds no pruned.json"]);
}

#[test]
fn blocks_are_skipped_when_loading() {
    let refused = |parts: &str| {
        let mut command = command("generate");
        command.arg(stories()).args(["--prompt", "Once", "--without", parts]);
        run(&mut command)
    };
    refused("9").refused(2, &["is not in this model"]);
    assert_ne!(story(&stories(), &["--without", "2,attn:3"]), story(&stories(), &[]));
    let (folder, text) = folder();
    let loss = |more: &[&str]| {
        let mut command = command("diagnose");
        command
            .arg(stories())
            .arg("--data")
            .arg(&text)
            .arg("--out")
            .arg(folder.path().join("figures"));
        command.args(["--batches", "1", "--only", "removal", "--json"]).args(more);
        run(&mut command).succeeded().json()["models"][0]["loss"].as_f64().unwrap()
    };
    assert!(loss(&["--without", "2"]) > loss(&[]));
}

#[test]
fn an_exported_model_writes_the_same_story() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("exported");
    let mut exporting = command("export");
    exporting.arg(stories()).args(["--format", "hf", "--out"]).arg(&out);
    let said = run(&mut exporting).succeeded();
    assert!(said.stderr.contains("LlamaForCausalLM"), "{}", said.stderr);
    assert_eq!(story(&out, &[]), story(&stories(), &[]));
    run(&mut exporting).refused(2, &["exists already"]);
    let mut refused = command("export");
    refused
        .arg(golden("mgr-competitive"))
        .args(["--format", "gguf", "--out"])
        .arg(folder.path().join("x.gguf"));
    run(&mut refused).refused(2, &["residual policy mgr", "only prenorm and lns"]);
}
