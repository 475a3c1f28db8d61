//! A kill and a full disk at every operation on files: what a command writes is whole or absent, and the next try works.

use crate::support::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const STORY: &str =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. ";

/// Every file below a path, or the file itself.
fn tree(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    if path.is_file() {
        found.insert(PathBuf::new(), fs::read(path).unwrap());
    }
    for entry in fs::read_dir(path).into_iter().flatten() {
        let entry = entry.unwrap();
        for (inner, content) in tree(&entry.path()) {
            found.insert(Path::new(&entry.file_name()).join(inner), content);
        }
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn clear(path: &Path) {
    let _ = fs::remove_dir_all(path);
    let _ = fs::remove_file(path);
}

/// Runs a command that writes `out` with every fault there is. `same` compares what it writes with what it should have.
fn every_fault(
    folder: &Path,
    out: &Path,
    command: impl Fn() -> Command,
    same: impl Fn(&BTreeMap<PathBuf, Vec<u8>>, &BTreeMap<PathBuf, Vec<u8>>) -> bool,
) {
    run(&mut command()).succeeded();
    let expected = tree(out);
    assert!(!expected.is_empty());
    clear(out);
    let before = names(folder);
    for fault in ["kill", "full"] {
        let mut faults = 0;
        for at in 1.. {
            let output = command().env("HADAL_FAULT", format!("{fault}:{at}")).output().unwrap();
            if output.status.success() {
                break;
            }
            faults += 1;
            let stderr = String::from_utf8_lossy(&output.stderr);
            let found = tree(out);
            assert!(
                !out.exists() || same(&found, &expected),
                "{fault}:{at} left {:?}: {stderr}",
                found.keys()
            );
            if fault == "full" {
                assert!(stderr.starts_with("error: "), "{fault}:{at}: {stderr}");
                clear(out);
                assert_eq!(names(folder), before, "{fault}:{at}");
            }
            clear(out);
            run(&mut command()).succeeded();
            assert!(same(&tree(out), &expected), "after {fault}:{at}");
            clear(out);
            assert_eq!(names(folder), before, "after {fault}:{at}");
        }
        assert!(faults > 1, "only {faults} operations with {fault}");
        clear(out);
    }
}

fn equal(a: &BTreeMap<PathBuf, Vec<u8>>, b: &BTreeMap<PathBuf, Vec<u8>>) -> bool {
    a == b
}

/// A folder with a text.
fn folder() -> (TempDir, PathBuf, PathBuf) {
    let folder = TempDir::new().unwrap();
    let (text, out) = (folder.path().join("story.txt"), folder.path().join("out"));
    fs::write(&text, STORY.repeat(30)).unwrap();
    (folder, text, out)
}

#[test]
fn a_cut_is_whole_or_absent() {
    let (folder, _, out) = folder();
    every_fault(
        folder.path(),
        &out,
        || {
            let mut command = command("prune");
            command.arg("apply").arg(stories()).args(["--blocks", "2", "--out"]).arg(&out);
            command
        },
        equal,
    );
}

#[test]
fn a_cut_of_our_own_model_is_whole_or_absent() {
    let (folder, _, out) = folder();
    every_fault(
        folder.path(),
        &out,
        || {
            let mut command = command("prune");
            command.arg("apply").arg(golden("prenorm")).args(["--blocks", "1", "--out"]).arg(&out);
            command
        },
        equal,
    );
}

#[test]
fn a_plan_is_whole_or_absent() {
    let (folder, text, out) = folder();
    let out = out.with_extension("json");
    every_fault(
        folder.path(),
        &out,
        || {
            let mut command = command("prune");
            command.arg("plan").arg(stories()).arg("--data").arg(&text);
            command.args(["--blocks", "1", "--batches", "1", "--method", "one-shot", "--out"]);
            command.arg(&out);
            command
        },
        // It holds how long something took.
        |found, _| {
            let json: serde_json::Value = serde_json::from_slice(&found[Path::new("")]).unwrap();
            json["hash"].as_str().is_some_and(|hash| hash.len() == 64)
        },
    );
}

#[test]
fn a_diagnosis_is_whole_or_absent() {
    let (folder, text, out) = folder();
    every_fault(
        folder.path(),
        &out,
        || {
            let mut command = command("diagnose");
            command.arg(stories()).arg("--data").arg(&text);
            command.args(["--only", "sink", "--batches", "1", "--out"]).arg(&out);
            command
        },
        equal,
    );
}

#[test]
fn a_calibrated_model_is_whole_or_absent_with_its_tokenizer() {
    let (folder, text, out) = folder();
    let model = copy_of(&golden("nag-mod"));
    edit_json(&model.path().join(CONFIG), |config| config["max_seq_len"] = 64.into());
    // Any text that this tokenizer reads will do.
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"Once": 0, "upon": 1, "<unk>": 2}, "unk_token": "<unk>"},
    });
    fs::write(model.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    every_fault(
        folder.path(),
        &out,
        || {
            let mut command = command("skip");
            command.arg("calibrate").arg(model.path()).arg("--data").arg(&text);
            command.args(["--rate", "0.2", "--batches", "1", "--out"]).arg(&out);
            command
        },
        |found, expected| found == expected && found.contains_key(Path::new("tokenizer.json")),
    );
}

/// Preparing goes on where it was, so what a fault leaves is a beginning. The end is always the same.
#[test]
fn a_preparation_goes_on_after_any_fault() {
    let (folder, text, out) = folder();
    let command = || {
        let mut command = command("data");
        command.arg("prepare").arg(&text).args(["--shard-tokens", "1000", "--out"]).arg(&out);
        command
    };
    run(&mut command()).succeeded();
    let expected = tree(&out);
    for fault in ["kill", "full"] {
        for at in 1.. {
            clear(&out);
            let output = command().env("HADAL_FAULT", format!("{fault}:{at}")).output().unwrap();
            if output.status.success() {
                assert!(at > 10, "{at}");
                break;
            }
            // Whatever has its final name is what it will be in the end.
            for (name, content) in tree(&out) {
                let name_text = name.to_string_lossy();
                if name_text.ends_with(".bin") || name_text == "manifest.json" {
                    assert_eq!(Some(&content), expected.get(&name), "{fault}:{at}");
                }
            }
            run(&mut command()).succeeded();
            assert_eq!(tree(&out), expected, "after {fault}:{at}");
        }
    }
    assert_eq!(names(folder.path()), ["out", "story.txt"]);
}

/// A directory that holds something stays as it was, up to whole files that are new.
#[test]
fn a_full_disk_leaves_the_old_figures() {
    let (_folder, text, out) = folder();
    let command = |only: &str| {
        let mut command = command("diagnose");
        command.arg(stories()).arg("--data").arg(&text);
        command.args(["--only", only, "--batches", "1", "--out"]).arg(&out);
        command
    };
    run(&mut command("sink")).succeeded();
    fs::write(out.join("mine.txt"), "mine").unwrap();
    let old = tree(&out);
    // The place is looked at before anything is computed.
    run(command("sink").env("HADAL_FAULT", "full:1")).refused(2, &["cannot write", "--out"]);
    for at in [2, 3, 5] {
        let fault = format!("full:{at}");
        run(command("sink").env("HADAL_FAULT", &fault)).failed(&["cannot write"]);
        assert_eq!(tree(&out), old, "{fault}");
    }
    run(&mut command("writes")).succeeded();
    let new = tree(&out);
    assert!(new.len() > old.len());
    assert_eq!(new[Path::new("mine.txt")], b"mine");
}
