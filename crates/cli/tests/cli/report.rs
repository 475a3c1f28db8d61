//! `hadal report`.

use crate::support::{command, run};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A run folder as `hadal train` leaves it, of one step.
fn a_run(parent: &Path, kind: &str, loss: f64) -> PathBuf {
    let path = parent.join(kind);
    fs::create_dir_all(path.join("model")).unwrap();
    fs::write(path.join("config.toml"), format!("seed = 0\n[residual]\nkind = \"{kind}\"\n"))
        .unwrap();
    let step = format!(
        "{{\"kind\":\"train\",\"step\":1,\"loss\":{loss},\"gradient_norm\":1.0,\"rate\":1.0,\"tokens\":10,\
         \"tokens_per_second\":5.0}}\n"
    );
    fs::write(path.join("metrics.jsonl"), step).unwrap();
    path
}

#[test]
fn a_report_is_written_with_its_figures_and_says_what_it_found() {
    let folder = TempDir::new().unwrap();
    let runs = [a_run(folder.path(), "prenorm", 2.0), a_run(folder.path(), "mgr", 1.5)];
    let (page, csv) = (folder.path().join("r.html"), folder.path().join("csv"));
    let said =
        run(command("report").args(&runs).arg("-o").arg(&page).arg("--csv").arg(&csv)).succeeded();
    assert!(
        said.stdout.starts_with("mgr ends lowest, 0.5000 nats below prenorm"),
        "{}",
        said.stdout
    );
    assert!(fs::read_to_string(&page).unwrap().contains("mgr ends lowest"));
    assert!(csv.join("train-loss-by-steps.csv").exists());

    let json =
        run(command("report").args(&runs).arg("-o").arg(&page).arg("--json")).succeeded().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["runs"], 2);
}

/// A page that is made again takes the old one's place; nothing else does.
#[test]
fn a_file_that_is_no_page_is_not_written_over() {
    let folder = TempDir::new().unwrap();
    let runs = a_run(folder.path(), "prenorm", 2.0);
    let report = |page: &Path| run(command("report").arg(&runs).arg("-o").arg(page));
    let page = folder.path().join("r.html");
    report(&page).succeeded();
    report(&page).succeeded();
    for mine in ["", "mine", "<!doctype html>\n<html><head><title>mine</title>"] {
        fs::write(&page, mine).unwrap();
        report(&page).refused(2, &["r.html exists already and is no page of hadal", "-o"]);
        assert_eq!(fs::read_to_string(&page).unwrap(), mine);
    }
}

#[test]
fn runs_of_other_data_stand_apart_and_damage_is_told_of() {
    let folder = TempDir::new().unwrap();
    let runs = [a_run(folder.path(), "prenorm", 2.0), a_run(folder.path(), "mgr", 1.5)];
    let page = folder.path().join("r.html");
    let report = || run(command("report").args(&runs).arg("-o").arg(&page));
    let said = report().succeeded().stderr;
    assert!(said.contains("note: prenorm, mgr do not say which data"), "{said}");
    for (run, data) in runs.iter().zip(["one", "two"]) {
        fs::write(run.join("run.json"), format!("{{\"data\": \"{data}\"}}")).unwrap();
    }
    let said = report().succeeded().stdout;
    assert!(said.starts_with("Two answers, since these runs cannot all be compared\n- "), "{said}");
    assert!(!said.contains("lowest") && !said.contains("better"), "{said}");
    for run in &runs {
        fs::write(run.join("run.json"), "{\"data\": \"one\"}").unwrap();
    }
    fs::write(runs[1].join("samples.jsonl"), "not JSON\n").unwrap();
    let said = report().succeeded().stderr;
    assert_eq!(said, "note: samples.jsonl of mgr: 1 line cannot be read and is left out.\n");
}

/// As many as `hadal serve` lists.
#[test]
fn suites_below_a_folder_are_part_of_its_report() {
    let folder = TempDir::new().unwrap();
    a_run(folder.path(), "lns", 2.0);
    let suite = folder.path().join("mine");
    a_run(&suite.join("runs"), "prenorm", 2.0);
    a_run(&suite.join("runs"), "mgr", 1.5);
    fs::write(suite.join("suite.json"), "{}").unwrap();
    let page = folder.path().join("r.html");
    let said = run(command("report").arg(folder.path()).arg("-o").arg(&page)).succeeded().stdout;
    assert!(said.contains("of 2 runs of the suite mine, 1 beside"), "{said}");
}

#[test]
fn a_folder_without_runs_is_refused() {
    let folder = TempDir::new().unwrap();
    run(command("report").arg(folder.path())).refused(2, &["holds no run", "hadal train"]);
    run(command("report").arg("nowhere")).refused(2, &["nowhere", "holds no run"]);
}

#[test]
fn a_place_that_cannot_be_written_is_a_failure() {
    let folder = TempDir::new().unwrap();
    let path = a_run(folder.path(), "prenorm", 2.0);
    let report = |page: &Path| run(command("report").arg(&path).arg("-o").arg(page));
    let below_a_file = path.join("config.toml/r.html");
    report(&below_a_file).refused(2, &["cannot write", "r.html", "-o other.html"]);
    // A folder that is missing is made.
    let page = folder.path().join("new/folder/r.html");
    report(&page).succeeded();
    assert!(page.is_file());
}
