//! `python/hadal_runs.py`: run folders in pandas.

use crate::support::{TRACE, WEIGHTS, command, copy_of, edit_tensors, golden, run};
use hadal_files::testing::skip;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const SUITE: &str = "\
baseline = \"prenorm\"
seeds = [3, 4]
[train]
steps = 20
batch = 2
[model]
d_model = 8
n_layers = 2
n_heads = 2
[data.generated]
task = \"khop\"
k = 2
length = 24
[eval]
every_steps = 10
batches = 1
[[variant]]
residual = \"prenorm\"
[[variant]]
residual = \"mgr:streams=2\"
";

/// What hadal wrote, as the script must see it.
const CHECK: &str = r#"
import json, math, sys
import hadal_runs as hadal
runs = hadal.runs("runs")
assert list(runs.run) == [f"suite/runs/{v}-s{s}" for v in ("mgr", "prenorm") for s in (3, 4)] + ["unfinished"], runs
assert list(runs.seed) == [3, 4, 3, 4, 4], runs
assert list(runs.status) == ["done"] * 4 + ["stopped"], runs
assert runs.policy[0].startswith("mgr:streams=2,gate="), runs.policy[0]
assert runs.policy[2] == "prenorm", runs.policy[2]
assert "train.steps" not in runs and "model.d_model" not in runs, list(runs)
assert list(runs["eval.batches"]) == [1, 1, 1, 1, 2], runs
assert list(runs.step) == [20] * 5, runs

cells = {c["variant"]: c for c in json.load(open("runs/suite/results.json"))["cells"]}
for variant in ("prenorm", "mgr"):
    mine = runs[runs.run.str.contains(f"/{variant}-")]
    for column, theirs in (("loss", "validation_loss"), ("train_loss", "train_loss"), ("accuracy", "accuracy")):
        assert math.isclose(mine[column].mean(), cells[variant][theirs]["mean"], rel_tol=1e-12), (variant, column)
    assert (mine.parameters == cells[variant]["parameters"]).all()

# Two damaged lines, a number that is not finite, and a line that is being written.
steps = hadal.metrics("runs/unfinished")
assert list(steps.step) == list(range(1, 20)) + [20], steps
assert math.isnan(steps.loss.iloc[-1]) and steps.loss.notna().sum() == 19, steps
assert list(hadal.evaluations("runs/unfinished").step) == [10, 20]
assert hadal.metrics("runs/absent").empty

table = hadal.suite("runs/suite")
assert sorted(table.variant) == ["mgr", "prenorm"] and len(table.attrs["verdict"]) > 0
figures = hadal.diagnosis("runs/suite/runs/mgr-s3")
assert figures["summary"]["blocks"] == 2, figures["summary"]
assert {"series", "block"} <= set(figures["output-rms"].columns), figures["output-rms"]
assert hadal.runs("runs/suite/runs/mgr-s3").run[0] == "mgr-s3" and hadal.runs("nowhere").empty
"#;

#[test]
fn pandas_sees_what_hadal_wrote() {
    let has_pandas = Command::new("python3").args(["-c", "import pandas, tomllib"]).output();
    if !has_pandas.is_ok_and(|output| output.status.success()) {
        return skip("pandas", "python3 has no pandas, or is older than 3.11");
    }
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("suite.toml"), SUITE).unwrap();
    let there = |name: &str| {
        let mut command = command(name);
        command.current_dir(directory.path());
        command
    };
    run(there("compare").arg("suite.toml")).succeeded();
    let diagnose = ["runs/suite/runs/mgr-s3", "--only", "output", "--batches", "1"];
    run(there("diagnose").args(diagnose)).succeeded();
    stopped(&at("runs/suite/runs/prenorm-s4"), &at("runs/unfinished"));

    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let checked = Command::new("python3")
        .args(["-c", CHECK])
        .current_dir(directory.path())
        .env("PYTHONPATH", reader)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// `check.py` with an adapter, on goldens.
fn checked(adapter: &str, more: &[&str], goldens: &[&Path]) -> (Option<i32>, String) {
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    let output = Command::new("python3")
        .arg("check.py")
        .args(more)
        .arg(adapter)
        .args(goldens.iter().map(|path| std::path::absolute(path).unwrap()))
        .current_dir(kit)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), said + &String::from_utf8_lossy(&output.stderr))
}

fn imports(module: &str) -> bool {
    let output = Command::new("python3").args(["-c", &format!("import {module}")]).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn the_conformance_kit_holds_its_example_to_the_goldens() {
    if !imports("numpy") {
        return skip("numpy", "python3 has no numpy");
    }
    let goldens =
        ["prenorm", "base-gqa-swiglu-qknorm-untied", "hc-static", "hc-dynamic"].map(golden);
    let all: Vec<&Path> = goldens.iter().map(AsRef::as_ref).collect();
    let (code, said) = checked("example_numpy.py", &["--forward"], &all);
    assert!(code == Some(0) && said.contains("everything agrees"), "{said}");
    assert_eq!(said.matches("not given").count(), 6, "gradients, and nothing else: {said}");
    // All or nothing of each kind of result, and gradients belong to it.
    let (code, said) = checked("example_numpy.py", &[], &all[..1]);
    assert!(code == Some(1) && said.contains("26 not given: grad.embed.weight"), "{said}");

    // Another parameter, and everything from there on differs; what was read before it does not.
    let other = copy_of(all[2]);
    edit_tensors(&other.path().join(WEIGHTS), |tensors| {
        tensors.get_mut("residual.3.post").unwrap().set(0, |value| value + 0.5);
    });
    let (code, said) = checked("example_numpy.py", &["--forward"], &[other.path()]);
    assert!(code == Some(1) && said.contains("h.4: ") && !said.contains("h.3: "), "{said}");
    fs::write(other.path().join(TRACE), "not a trace").unwrap();
    let (code, said) = checked("example_numpy.py", &["--forward"], &[other.path()]);
    assert!(code == Some(2) && said.contains("not a whole safetensors file"), "{said}");
    let (code, said) = checked("nowhere.py", &[], &all[..1]);
    assert!(code == Some(2) && said.contains("no adapter nowhere.py"), "{said}");
}

#[test]
fn the_conformance_kit_holds_its_modules_to_gradients() {
    if !imports("numpy, torch") {
        return skip("torch", "python3 has no torch");
    }
    let goldens = ["prenorm", "hc-static", "hc-dynamic"].map(golden);
    let all: Vec<&Path> = goldens.iter().map(AsRef::as_ref).collect();
    let (code, said) = checked("example_torch.py", &[], &all);
    assert!(code == Some(0) && said.contains("gradients, stream"), "{said}");
}

/// A run of other settings that was interrupted, with a damaged log.
fn stopped(run: &Path, place: &Path) {
    fs::create_dir(place).unwrap();
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    fs::write(place.join("config.toml"), config.replace("batches = 1", "batches = 2")).unwrap();
    let log = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let is_last = |line: &&str| line.contains("\"train\"") && line.contains("\"step\":20,");
    let log: Vec<&str> = log.lines().filter(|line| !is_last(line)).collect();
    let mut file =
        OpenOptions::new().create(true).append(true).open(place.join("metrics.jsonl")).unwrap();
    writeln!(file, "{}\n{{\"kind\":\"train\",\"step\":7,\"loss\":NaN}}", log.join("\n")).unwrap();
    file.write_all(b"\xff\xfe\0\n{\"kind\":\"train\",\"step\":20,\"loss\":null}\n").unwrap();
    write!(file, "{{\"kind\":\"train\",\"step\":21,\"loss\":1.0}}").unwrap();
}
