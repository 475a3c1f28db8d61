//! `hadal runs`.

use crate::support::{command, run};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// A run of two steps that was written so many seconds ago.
fn a_run(parent: &Path, name: &str, age: u64) -> PathBuf {
    let path = parent.join(name);
    fs::create_dir_all(path.join("model")).unwrap();
    fs::write(
        path.join("config.toml"),
        "seed = 3\n[residual]\nkind = \"mgr\"\n[train]\nsteps = 2\n",
    )
    .unwrap();
    let step = |step: u64| {
        format!(
            "{{\"kind\":\"train\",\"step\":{step},\"loss\":2.5,\"gradient_norm\":1.0,\"rate\":1.0,\
             \"tokens\":{},\"tokens_per_second\":5.0}}\n",
            step * 10
        )
    };
    let evaluation = "{\"kind\":\"eval\",\"step\":2,\"loss\":2.25,\"accuracy\":0.5}\n";
    let metrics = path.join("metrics.jsonl");
    fs::write(&metrics, [&step(1), &step(2), evaluation].concat()).unwrap();
    let file = File::options().write(true).open(metrics).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    path
}

#[test]
fn runs_are_listed_newest_first_as_a_table_and_as_json() {
    let folder = TempDir::new().unwrap();
    a_run(folder.path(), "old", 7200);
    a_run(folder.path(), "suite/runs/new", 300);
    fs::write(folder.path().join("suite/suite.json"), "{}").unwrap();
    let said = run(command("runs").arg(folder.path())).succeeded().stdout;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[1].starts_with("suite/new") && lines[1].ends_with("5 min ago"), "{said}");
    assert!(lines[2].contains("2.2500") && lines[2].ends_with("2 h ago"), "{said}");
    assert!(lines.iter().all(|line| line.len() <= 80), "{said}");
    let json = run(command("runs").arg(folder.path()).arg("--json")).succeeded().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["run"], &json[1]["state"]), (&"suite/runs/new".into(), &"done".into()));
    assert!(!folder.path().join(".hadal-index.sqlite").exists(), "listing writes nothing");
}

#[test]
fn a_run_becomes_a_csv_on_standard_output_or_in_a_file() {
    let folder = TempDir::new().unwrap();
    let one = a_run(folder.path(), "one", 10);
    let said = run(command("runs").arg("--csv").arg(&one)).succeeded().stdout;
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("step,tokens,seconds,train_loss,"), "{said}");
    assert!(lines.len() == 3 && lines[2].starts_with("2,20,4.000,2.5,1,1,5,"), "{said}");
    assert!(lines[2].ends_with("2.25,,,0.5,"), "{said}");
    let file = folder.path().join("one.csv");
    let told = run(command("runs").arg("--csv").arg(&one).arg("-o").arg(&file)).succeeded();
    assert_eq!((told.stdout.as_str(), fs::read_to_string(&file).unwrap()), ("", said));
    // Nothing is written over unless that is asked for.
    fs::write(&file, "mine").unwrap();
    let mut again = command("runs");
    again.arg("--csv").arg(&one).arg("-o").arg(&file);
    run(&mut again).refused(2, &["one.csv exists already", "-o other.csv", "--force"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    run(again.arg("--force")).succeeded();
    assert_ne!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn what_is_no_run_is_refused_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    run(command("runs").arg("--csv").arg(folder.path())).refused(2, &["holds no metrics.jsonl"]);
    run(command("runs").arg(folder.path().join("none"))).refused(2, &["is not a folder"]);
}
