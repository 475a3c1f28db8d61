//! `--device`: what is refused everywhere, and runs on the devices that are compiled in and found.

use crate::support::*;
use hadal_files::testing::skip;
use hadal_model::{CPU, DEVICES, device_named};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A few steps: a software driver compiles every kernel first.
const SHORT: [&str; 4] =
    ["train.steps=6", "eval.every_steps=3", "eval.batches=1", "checkpoint.every_steps=0"];

fn on(device: &str, out: &Path, policy: &str) -> Command {
    let mut command = on_task(out, &SHORT);
    command.args(["--residual", policy]);
    match device {
        CPU => command.env("HADAL_PLAIN", "1"),
        device => command.args(["--device", device]),
    };
    command
}

/// Losses of steps and evaluations.
fn losses(run: &Path) -> Vec<f64> {
    curve(run).iter().filter_map(|line: &Value| line["loss"].as_f64()).collect()
}

fn devices() -> Vec<&'static str> {
    let others = DEVICES.into_iter().filter(|name| *name != CPU);
    others
        .filter(|name| match device_named(name) {
            Ok(_) => true,
            Err(reason) => {
                skip("gpu", reason);
                false
            }
        })
        .collect()
}

#[test]
fn a_device_that_is_not_here_is_one_message_and_nothing_is_made() {
    let directory = temporary();
    let out = directory.path().join("run");
    let missing = DEVICES.into_iter().filter(|name| device_named(name).is_err());
    for name in missing {
        finish(&mut on(name, &out, "prenorm")).refused(2, &[name]);
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K");
        for words in [["perplexity", "--data"], ["diagnose", "--data"]] {
            let mut command = hadal(&[words[0]]);
            command.arg(&golden).arg(words[1]).arg(golden.join("config.json"));
            finish(command.args(["--device", name])).refused(2, &[name]);
        }
        finish(&mut hadal(&["bench", "--device", name])).refused(2, &[name]);
        let mut compare = hadal(&["compare", "--device", name, "--out"]);
        finish(compare.arg(&out)).refused(2, &[name]);
        assert!(!out.exists(), "{name}");
    }
    let unknown = finish(&mut on("abacus", &out, "prenorm"));
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    let mut unknown = on_task(&out, &SHORT);
    set(&mut unknown, &["train.device=abacus"]);
    finish(&mut unknown).refused(2, &["train.device", "abacus", "wgpu"]);
    let mut twice = on_task(&out, &SHORT);
    set(&mut twice, &["train.device=wgpu", "memory.recompute=true"]);
    finish(&mut twice).refused(2, &["memory.recompute", "wgpu"]);
    assert!(!out.exists());
}

#[test]
fn the_cpu_by_its_name_is_what_a_run_has_anyway() {
    let directory = temporary();
    let [without, with] = ["without", "with"].map(|name| directory.path().join(name));
    finish(&mut on_task(&without, &SHORT)).succeeded();
    finish(on_task(&with, &SHORT).args(["--device", CPU])).succeeded();
    assert_same(&with, &without, CPU);
    let config = |run: &Path| fs::read_to_string(run.join("config.toml")).unwrap();
    assert_eq!(config(&with), config(&without));
    assert!(!config(&with).contains("device"), "old settings keep their fingerprint");
    let about = fs::read_to_string(with.join("run.json")).unwrap();
    assert!(!about.contains("device") && !about.contains("inexact"), "{about}");
}

#[test]
fn a_run_on_a_device_learns_as_on_the_cpu_and_says_where_it_was() {
    for device in devices() {
        let directory = temporary();
        for policy in ["mgr", "attnres", "hc", "nag", "prenorm"] {
            let [here, there] = [CPU, device].map(|name| {
                let out = directory.path().join(format!("{policy}-{name}"));
                finish(&mut on(name, &out, policy)).succeeded();
                out
            });
            let (here, found) = (losses(&here), losses(&there));
            assert_eq!(here.len(), found.len());
            for (here, found) in here.iter().zip(&found) {
                assert!((here - found).abs() < 1e-3, "{policy} on {device}: {found}, not {here}");
            }
            let about: Value =
                serde_json::from_str(&fs::read_to_string(there.join("run.json")).unwrap()).unwrap();
            assert_eq!(about["device"], device);
            assert!(about["inexact"].as_array().is_some_and(|why| !why.is_empty()));
        }
    }
}

#[test]
fn a_run_on_a_device_that_was_killed_ends_with_the_same_bits_and_may_move_to_the_cpu() {
    for device in devices() {
        let directory = temporary();
        let place = |name: &str| directory.path().join(name);
        let (whole, killed, moved) = (place("whole"), place("killed"), place("moved"));
        let start = |out: &Path| {
            let mut command = on(device, out, "mgr");
            set(&mut command, &["checkpoint.every_steps=2"]);
            command
        };
        finish(&mut start(&whole)).succeeded();
        for out in [&killed, &moved] {
            killed_at(&mut start(out), "write metrics.jsonl#5");
        }
        finish(&mut resume(&killed)).succeeded();
        assert_same(&killed, &whole, device);
        let ended = finish(resume(&moved).args(["--device", CPU])).succeeded();
        assert!(ended.stderr.contains(&format!("device: {device} then, CPU now")), "{ended:?}");
        let pairs = losses(&whole);
        for (one, other) in pairs.iter().zip(losses(&moved)) {
            assert!((one - other).abs() < 1e-3, "{one} {other}");
        }
    }
}

#[test]
fn finished_models_are_measured_on_a_device_as_on_the_cpu() {
    let stories = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K");
    for device in devices() {
        let directory = temporary();
        let text = directory.path().join("text.txt");
        fs::write(&text, "Once upon a time there was a little girl. ".repeat(20)).unwrap();
        let perplexity = |name: &str| -> f64 {
            let mut command = hadal(&["perplexity", "--json", "--chunks", "1", "--context", "64"]);
            command.arg(&stories).arg("--data").arg(&text).args(["--device", name]);
            let found: Value =
                serde_json::from_str(&finish(&mut command).succeeded().stdout).unwrap();
            found["loss"].as_f64().unwrap()
        };
        let (here, there) = (perplexity(CPU), perplexity(device));
        assert!((here - there).abs() < 1e-4, "{here} {there}");
        let mut diagnose = hadal(&["diagnose", "--only", "output,removal", "--batches", "1"]);
        diagnose.arg(&stories).arg("--data").arg(&text).args(["--device", device]);
        finish(diagnose.arg("--out").arg(directory.path().join("diagnosis"))).succeeded();
        let mut bench = hadal(&["bench", "--json", "--steps", "1", "--batch", "1", "--seq", "16"]);
        finish(bench.args(["--device", device, "--residual", "prenorm"])).succeeded();
    }
}
