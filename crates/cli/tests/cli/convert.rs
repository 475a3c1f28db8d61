//! `hadal convert` and `hadal prune mixers` as their users meet them.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn convert(model: &Path, residual: &str) -> Command {
    let mut command = command("convert");
    command.arg(model).args(["--residual", residual]);
    command
}

fn story(model: &Path) -> String {
    let mut command = command("generate");
    command.arg(model).args(["--prompt", "Once upon a time", "-n", "40"]);
    run(&mut command).succeeded().stdout
}

fn text(folder: &TempDir) -> PathBuf {
    let text = folder.path().join("story.txt");
    fs::write(&text, story(&stories()).repeat(60)).unwrap();
    text
}

#[test]
fn a_converted_model_tells_the_same_story() {
    let folder = TempDir::new().unwrap();
    let text = text(&folder);
    for residual in ["hc:streams=2", "deepseek_v4", "gr", "attnres:delta=true,gated=true"] {
        let out = folder.path().join(residual.replace([':', '=', ','], "-"));
        let mut command = convert(&stories(), residual);
        let said = run(command.arg("--data").arg(&text).arg("--out").arg(&out)).succeeded();
        for words in ["stream      prenorm -> ", "parameters  260,032 -> ", "logits      moved by"]
        {
            assert!(said.stdout.contains(words), "no {words:?} in {}", said.stdout);
        }
        assert!(said.stderr.contains("next: hadal train --from"), "{}", said.stderr);
        assert_eq!(story(&out), story(&stories()));
        run(command.arg("--json")).refused(2, &["exists already"]);
        run(crate::support::command("verify").arg(&out)).succeeded();
    }
}

#[test]
fn models_of_other_makers_are_converted() {
    let folder = TempDir::new().unwrap();
    let (gguf, out) = (folder.path().join("stories.gguf"), folder.path().join("out"));
    let mut export = command("export");
    run(export.arg(stories()).args(["--format", "gguf", "--out"]).arg(&gguf)).succeeded();
    let json = run(convert(&gguf, "glm5_flash").arg("--json").arg("--out").arg(&out)).succeeded();
    let json = json.json();
    assert!(json["result"]["difference"].as_f64().unwrap() < 1e-5, "{json}");
    assert_eq!(json["result"]["config"]["residual"]["readout"], "mean");
    assert_eq!(story(&out), story(&gguf));
    let qwen = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden-hf/qwen2");
    run(convert(&qwen, "hy4").arg("--out").arg(folder.path().join("qwen"))).succeeded();
}

#[test]
fn a_dry_run_proves_and_writes_nothing() {
    let folder = TempDir::new().unwrap();
    let said = run(convert(&stories(), "hc").current_dir(folder.path()).arg("--dry-run"));
    let said = said.succeeded();
    assert!(said.stdout.contains("logits      moved by"), "{}", said.stdout);
    assert!(said.stderr.contains("nothing was written"), "{}", said.stderr);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_converted_is_refused_with_the_reason() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let refused = |model: &Path, residual: &str, code: i32, reasons: &[&str]| {
        run(convert(model, residual).arg("--out").arg(&out)).refused(code, reasons);
        assert!(!out.exists());
    };
    for kind in ["postnorm", "deepnorm", "mixln", "sandwich", "highway", "siamese", "mgr"] {
        refused(&stories(), kind, 2, &[kind, "cannot go on from a prenorm model"]);
    }
    refused(&stories(), "attnres:normed=true", 2, &["normed is true"]);
    refused(&golden("nag"), "hc", 2, &["the stream of this model is nag"]);
    refused(&stories(), "hc:streams=0", 2, &["streams is 0"]);
    refused(Path::new("nowhere"), "hc", 1, &["nowhere"]);
    run(command("convert").arg(stories()).args(["--residual", "hk"])).failed(&["hk"]);
    let mut tolerant = convert(&stories(), "hc");
    run(tolerant.args(["--tolerance", "2", "--dry-run"])).failed(&["at most 0.1"]);
    let mut short = convert(&stories(), "hc");
    fs::write(folder.path().join("empty"), "").unwrap();
    run(short.arg("--dry-run").arg("--data").arg(folder.path().join("empty")))
        .refused(2, &["too short"]);
    let mut large = convert(&stories(), "mhc_lite:streams=6");
    run(large.arg("--out").arg(&out).env("HADAL_MEMORY", "2MB"))
        .refused(1, &["memory", "HADAL_MEMORY=any"]);
    assert!(!out.exists());
    if cfg!(target_os = "linux") {
        run(convert(Path::new("nowhere"), "hc").args(["--out", "/proc/a"]))
            .refused(2, &["/proc/a", "--out other"]);
    }
}

#[test]
fn damaged_models_are_not_converted() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(WEIGHTS), |tensors| {
        tensors.remove("layers.1.attn.q.weight");
    });
    run(convert(copy.path(), "hc").arg("--out").arg(&out)).refused(1, &["layers.1.attn.q.weight"]);
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(WEIGHTS), |tensors| {
        tensors.get_mut("norm.weight").unwrap().set(3, |_| f32::NAN);
    });
    run(convert(copy.path(), "gr").arg("--out").arg(&out)).refused(1, &["norm.weight"]);
    fs::write(copy.path().join(WEIGHTS), "x").unwrap();
    run(convert(copy.path(), "hc").arg("--out").arg(&out)).refused(1, &["truncated"]);
    assert!(!out.exists());
}

/// The mixers of a converted model are the identity, so nothing is lost without them.
#[test]
fn mixers_that_mix_nothing_can_go() {
    let folder = TempDir::new().unwrap();
    let text = text(&folder);
    let at = |name: &str| folder.path().join(name);
    run(convert(&stories(), "mhc:streams=2,readout=mean").arg("--out").arg(at("mhc"))).succeeded();
    let prune = |more: &[&str]| {
        let mut command = command("prune");
        command.arg("mixers").arg(at("mhc")).arg("--data").arg(&text).args(["--batches", "2"]);
        run(command.current_dir(folder.path()).args(more))
    };
    let said = prune(&["--replace", "identity", "-o", "without"]).succeeded();
    for words in ["replaced    0,1,2,3,4 by the identity", "perplexity", "streams=2,identity=true"]
    {
        assert!(said.stdout.contains(words), "no {words:?} in {}", said.stdout);
    }
    assert!(said.stderr.contains("undo: rm -r"), "{}", said.stderr);
    assert_eq!(story(&at("without")), story(&stories()));
    let record = read_json(&at("without/mixers.json"));
    let (before, after) = (&record["whole"]["perplexity"], &record["cut"]["perplexity"]);
    let ratio = after.as_f64().unwrap() / before.as_f64().unwrap();
    assert!((ratio - 1.0).abs() < 1e-3, "{record}");
    run(command("verify").arg(at("without"))).succeeded();

    let json = prune(&["--replace", "mean", "--keep", "3", "--json"]).succeeded().json();
    assert_eq!(json["worth"].as_array().unwrap().len(), 10);
    assert_eq!(json["files"].as_array().unwrap().len(), 0);
    let said = prune(&["--replace", "mean", "--sites", "0,attn:3", "--dry-run"]).succeeded();
    assert!(
        said.stdout.contains("10 sub-layers") && said.stdout.contains("time "),
        "{}",
        said.stdout
    );

    prune(&["--replace", "identity", "-o", "without"]).refused(2, &["exists already"]);
    prune(&["--replace", "mean", "--sites", "9"]).refused(2, &["0 to 4"]);
    prune(&["--replace", "mean", "--sites", "x"]).failed(&["`x` is not a part", "`all`"]);
    prune(&["--replace", "mean", "--keep", "10"]).refused(2, &["keep fewer"]);
    let mut none = command("prune");
    none.arg("mixers").arg(stories()).args(["--replace", "mean", "--data"]).arg(&text);
    run(&mut none).refused(2, &["prenorm", "not mixed"]);
}
