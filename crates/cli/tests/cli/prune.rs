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
    assert!(said.stderr.contains("plan.html"), "{}", said.stderr);
    let page = fs::read_to_string(figures.join("plan.html")).unwrap();
    let answer = page.split("<h1>").nth(1).unwrap().split("</h1>").next().unwrap();
    assert!(answer.contains("block ") && answer.contains("perplexity"), "{answer}");
    for words in ["of story.txt", "hadal prune apply", "hadal prune check", "hadal train --from"] {
        assert!(page.contains(words), "no {words:?} on the page");
    }
    for name in [
        "plan.html",
        "prune-halves.csv",
        "prune-perplexity.csv",
        "prune-loss-change.svg",
        "prune-angles.png",
    ] {
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

/// The model does not exist, so whoever looked at it first would complain about that.
#[test]
fn places_are_looked_at_before_anything_else() {
    let (folder, text) = folder();
    let taken = folder.path().join("plan.json");
    fs::write(&taken, "mine").unwrap();
    let plan = |more: &[&str]| {
        let mut command = prune("plan");
        command.arg("nowhere").arg("--data").arg(&text).args(["--blocks", "1"]);
        run(command.current_dir(folder.path()).args(more))
    };
    plan(&[]).refused(2, &["plan.json exists already", "-o other.json", "--force"]);
    plan(&["-o", "new.json", "--figures", "."]).refused(2, &["exists already", "--figures other"]);
    plan(&["--force"]).refused(2, &["nowhere"]);
    plan(&["-o", "new.json"]).refused(2, &["nowhere"]);
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
    if cfg!(target_os = "linux") {
        // Nobody can write there.
        plan(&["-o", "/proc/plan.json"]).refused(2, &["/proc/plan.json", "-o other.json"]);
        plan(&["-o", "a", "--figures", "/proc/b"]).refused(2, &["/proc/b", "--figures other"]);
        let mut apply = prune("apply");
        run(apply.args(["nowhere", "--blocks", "1", "-o", "/proc/a"]))
            .refused(2, &["/proc/a", "-o"]);
        let mut export = command("export");
        export.args(["nowhere", "--format", "hf", "--out", "/proc/a"]);
        run(&mut export).refused(2, &["/proc/a", "-o"]);
        let mut calibrate = command("skip");
        calibrate.args(["calibrate", "nowhere", "--rate", "0.1", "--out", "/proc/a"]);
        run(&mut calibrate).refused(2, &["/proc/a", "-o"]);
        let mut sweep = command("skip");
        run(sweep.args(["sweep", "nowhere", "-o", "/proc/a"])).refused(2, &["/proc/a", "-o"]);
    }
}

#[test]
fn a_dry_run_says_what_it_takes_and_measures_nothing() {
    let (folder, text) = folder();
    let mut planning = prune("plan");
    planning.current_dir(folder.path()).arg(stories()).arg("--data").arg(&text);
    planning.args(["--batches", "2", "--dry-run", "--figures", "figures"]);
    run(&mut planning).refused(2, &["nothing says how much to cut"]);
    let said = run(planning.args(["--blocks", "2"])).succeeded().stdout;
    for words in [
        "5 blocks",
        "260,032 parameters",
        "tokens to choose on",
        "2 of 2 blocks",
        "time   ",
        "memory  ",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the text");
    // What is promised is what is done.
    let promised = run(planning.arg("--json")).succeeded().json();
    assert_eq!(promised["passes"][0], promised["passes"][1]);
    let pieces = 2;
    let scores = 1 + pieces / 2 * (1 + 15);
    let (round, judge, timing) = (1 + 1, 1 + 2, 24);
    assert_eq!(promised["passes"][1], scores + round + judge + timing);
    let mut taken = prune("plan");
    taken.arg(stories()).args(["--blocks", "1", "--dry-run", "-o"]).arg(&text).arg("--data");
    run(taken.arg(&text)).refused(2, &["exists already"]);
}

/// A small GGUF file.
fn gguf(folder: &Path) -> PathBuf {
    let file = folder.join("models/stories.gguf");
    let mut export = command("export");
    export.arg(stories()).args(["--format", "gguf", "--out"]).arg(&file);
    run(&mut export).succeeded();
    file
}

#[test]
fn a_gguf_file_is_cut_to_a_gguf_file() {
    let (folder, text) = folder();
    let at = |name: &str| folder.path().join(name);
    let (model, cut) = (gguf(folder.path()), at("cuts/c.gguf"));
    let apply =
        |model: &Path| run(prune("apply").arg(model).args(["--blocks", "2", "--out"]).arg(&cut));
    apply(&stories()).refused(2, &["c.gguf", "directory", "hadal export"]);
    assert!(!cut.exists());
    let said = apply(&model).succeeded();
    assert!(cut.is_file() && at("cuts/c.pruned.json").is_file());
    assert!(said.stderr.contains("undo: rm ") && said.stderr.contains("c.pruned.json"));
    assert_eq!(fs::read_dir(at("cuts")).unwrap().count(), 2);
    assert_eq!(story(&cut, &[]), story(&model, &["--without", "2"]));
    apply(&model).refused(2, &["c.gguf exists already"]);
    let check = |model: &Path| {
        let mut command = prune("check");
        command.arg(model).arg("--original").arg(at("models/stories.gguf"));
        run(command.args(["--batches", "1", "--data"]).arg(&text))
    };
    assert!(check(&cut).succeeded().stdout.contains("the same to the bit"));
    check(&model).refused(2, &["there is no stories.pruned.json"]);
    // A name without an ending is a directory, as for every other model.
    let mut directory = prune("apply");
    run(directory.arg(&model).args(["--blocks", "2", "--out"]).arg(at("smaller"))).succeeded();
    assert!(at("smaller/stories.gguf").is_file());
}

#[test]
fn a_check_measures_what_the_plan_was_judged_by_or_nothing() {
    let (folder, text) = folder();
    let (plan, out) = (folder.path().join("plan.json"), folder.path().join("smaller"));
    let mut planning = prune("plan");
    planning.arg(stories()).arg("--data").arg(&text).args(["--blocks", "1", "--batches", "2"]);
    let said = run(planning.arg("--out").arg(&plan)).succeeded().stdout;
    let line = |begin: &str| said.lines().find(|line| line.starts_with(begin)).unwrap().to_owned();
    assert!(line("memory").contains("1.28 kB -> 1.02 kB"), "{said}");
    let speed = line("speed");
    assert!(speed.contains(" of the time") || speed.contains("scatter too much"), "{speed}");
    let outcome = read_json(&plan)["outcome"].clone();
    run(prune("apply").arg(&plan).arg("--out").arg(&out)).succeeded();
    let check = |more: &[&str]| {
        let mut command = prune("check");
        run(command.arg(&out).arg("--original").arg(stories()).args(more)).succeeded()
    };
    let found = check(&["--json"]).json();
    for cost in ["original", "cut"] {
        let of_plan = if cost == "original" { "whole" } else { cost };
        assert_eq!(found[cost]["perplexity"], outcome[of_plan]["perplexity"], "{cost}");
    }
    assert_eq!((&found["of_plan"], &found["tokens"]), (&true.into(), &outcome["tokens"]));
    // Another text in its place is not the plan's.
    fs::write(&text, "Another story. ".repeat(400)).unwrap();
    let said = check(&[]).stdout;
    assert!(said.contains("the same to the bit"), "{said}");
    assert!(said.contains("perplexity  not measured") && said.contains("--data"), "{said}");
    assert_eq!(said.matches("perplexity").count(), 1, "{said}");
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
