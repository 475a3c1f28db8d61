//! Training in which tokens skip sub-layers: the same bits however often it is stopped, the planned rate and FLOPs, and
//! clear messages where it cannot be done.

use crate::failures::{POISONED, rare};
use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

fn skipping(out: &Path, policy: &str, settings: &[&str]) -> Command {
    let mut command = on_task(out, &["model.n_layers=4", "skip.rate=0.4"]);
    set(&mut command, settings);
    command.args(["--residual", policy]);
    command
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A number of each step.
fn steps(run: &Path, name: &str) -> Vec<f64> {
    let curve = curve(run);
    let steps = curve.iter().filter(|line| line["kind"] == "train");
    steps.map(|line| line[name].as_f64().unwrap()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Stops a run again and again, each time a few steps after it resumed, and lets it end.
fn stopped_often(run: &Path, first: &mut Command) {
    let metrics = run.join("metrics.jsonl");
    let mut stopped = 0;
    for steps in [2, 5, 3, 7] {
        let enough = lines(&metrics) + steps;
        let mut again = resume(run);
        let command = if enough == 2 { &mut *first } else { &mut again };
        let ended = signalled(command, "-INT", || lines(&metrics) >= enough);
        match ended.code {
            Some(130) => stopped += 1,
            _ => {
                ended.succeeded();
            }
        }
    }
    assert!(stopped > 0, "no signal came in time");
    finish(&mut resume(run)).succeeded();
}

/// A short guard and a warm-up, so that every part of a state is in use.
#[test]
fn a_skipping_run_that_was_interrupted_ends_with_the_same_bits() {
    let directory = temporary();
    for (policy, more) in [
        ("nag", &["skip.per=kind", "train.nag_alpha_warmup=12"][..]),
        ("mgr:streams=3", &["skip.per=layer", "skip.kv=drop"]),
    ] {
        let name = &policy[..3];
        let whole = directory.path().join(format!("{name}-whole"));
        let parts = directory.path().join(format!("{name}-parts"));
        let settings = [
            "train.steps=60",
            "train.accumulate=2",
            "eval.every_steps=15",
            "checkpoint.every_steps=0",
            "skip.guard_steps=5",
            "skip.guard_share=0.2",
        ];
        let start = |out: &Path| {
            let mut command = skipping(out, policy, &settings);
            set(&mut command, more);
            command
        };
        finish(&mut start(&whole)).succeeded();
        stopped_often(&parts, &mut start(&parts));
        assert_same(&parts, &whole, policy);
        let config = |run: &Path| fs::read(run.join("model/config.json")).unwrap();
        assert!(config(&parts) == config(&whole), "{policy}: other thresholds");
        let rates = steps(&whole, "skip_rate");
        assert_eq!(rates[0], 0.0, "{policy} begins densely");
        assert!(mean(&rates[30..]) > 0.1, "{policy}: {rates:?}");
    }
}

/// What was learnt on a path that was given up must be forgotten with it, or a run that was killed on that path would
/// continue differently.
#[test]
fn a_rollback_takes_the_controller_back_as_well() {
    let directory = temporary();
    let data = rare(directory.path());
    for policy in ["nag", "mgr:streams=2"] {
        let start = |out: &Path| {
            let mut command = on_text(out, &data, &POISONED);
            let more = ["failure.on_failure=rollback", "checkpoint.every_steps=3", "skip.rate=0.3"];
            set(&mut command, &more);
            set(&mut command, &["model.n_layers=4", "skip.protect=0", "train.accumulate=2"]);
            // A seed whose first step does not see the rare letter.
            command.args(["--residual", policy, "--seed", "2"]);
            command
        };
        let [whole, killed] = ["whole", "killed"]
            .map(|name| directory.path().join(format!("{}-{name}", &policy[..3])));
        let ended = finish(&mut start(&whole)).succeeded();
        let warnings = ended.stderr.lines().filter(|line| line.starts_with("warning")).count();
        println!("{policy}: {warnings} failures on the way");
        assert!(warnings > 1, "{}", ended.stderr);
        assert!(mean(&steps(&whole, "skip_rate")) > 0.05, "{policy}");
        signalled(&mut start(&killed), "-KILL", || lines(&killed.join("metrics.jsonl")) > 12);
        finish(&mut resume(&killed)).succeeded();
        assert_same(&killed, &whole, policy);
    }
}

#[test]
fn a_rate_of_zero_is_a_run_without_the_section_to_the_bit() {
    let directory = temporary();
    for policy in ["nag", "mgr:streams=3"] {
        let name = &policy[..3];
        let [with, without] =
            ["with", "without"].map(|n| directory.path().join(format!("{name}-{n}")));
        let settings = ["train.steps=20", "eval.every_steps=10", "model.n_layers=4"];
        finish(on_task(&without, &settings).args(["--residual", policy])).succeeded();
        let mut zero = on_task(&with, &settings);
        set(&mut zero, &["skip.rate=0"]);
        finish(zero.args(["--residual", policy])).succeeded();
        assert!(model(&with) == model(&without), "{policy}");
        assert_eq!(steps(&with, "loss"), steps(&without, "loss"));
        assert_eq!(steps(&with, "flops"), steps(&without, "flops"));
        let config = |run: &Path| fs::read(run.join("model/config.json")).unwrap();
        assert!(config(&with) == config(&without));
    }
}

#[test]
fn the_finished_model_holds_the_thresholds_and_the_rule_that_it_ended_with() {
    let directory = temporary();
    for (per, harden, kv) in
        [("model", "0.1", "keep"), ("kind", "0", "drop"), ("layer", "0.2", "keep")]
    {
        let run = directory.path().join(per);
        let [per, harden, kv] =
            [("per", per), ("harden", harden), ("kv", kv)].map(|(k, v)| format!("skip.{k}={v}"));
        let settings = ["train.steps=30", "eval.batches=1", &per, &harden, &kv];
        finish(&mut skipping(&run, "nag", &settings)).succeeded();
        let residual = json(&run.join("model/config.json"))["residual"].clone();
        let threshold = &residual["skip_threshold"];
        match per.as_str() {
            "skip.per=model" => {
                let last = *steps(&run, "skip_threshold").last().unwrap();
                let kept = threshold.as_f64().unwrap();
                assert!((kept / last).ln().abs() < 1.0, "{kept} follows {last} by one step");
            }
            "skip.per=kind" => assert!(threshold["attention"].as_f64().unwrap() > 0.0),
            _ => assert_eq!(threshold.as_array().unwrap().len(), 8),
        }
        // Missing settings mean zero, and keys that are kept.
        let shrink = residual.get("skip_shrink").map(|shrink| shrink.as_f64().unwrap());
        assert_eq!(shrink, (harden == "skip.harden=0").then_some(1.0), "{residual}");
        let drops = residual.get("skip_kv").map(|kv| kv.as_str().unwrap());
        assert_eq!(drops, (kv == "skip.kv=drop").then_some("drop"), "{residual}");
        finish(hadal(&["diagnose", "--batches", "1"]).arg(&run)).succeeded();
    }
}

/// Equal FLOPs are equal in what was spent, not only in what was planned.
#[test]
fn a_suite_spends_the_flops_that_it_planned() {
    let directory = temporary();
    let suite = directory.path().join("suite.toml");
    let text = "
baseline = \"nag\"
seeds = [0, 1]
iso_flop = true
[train]
steps = 200
batch = 4
[model]
d_model = 32
n_layers = 4
n_heads = 2
[data.generated]
task = \"khop\"
length = 24
[eval]
every_steps = 50
batches = 1
[[variant]]
residual = \"nag\"
[[variant]]
name = \"skips\"
residual = \"nag\"
skip_rate = 0.3
";
    fs::write(&suite, text).unwrap();
    let out = directory.path().join("out");
    let ended = finish(hadal(&["compare"]).arg(&suite).arg("--out").arg(&out)).succeeded();
    for words in ["FLOPs planned", "FLOPs spent", "skipped, %"] {
        assert!(ended.stdout.contains(words), "no {words:?} in {}", ended.stdout);
    }
    let results = json(&out.join("results.json"));
    let [dense, skips] = [&results["cells"][0], &results["cells"][1]];
    let ratio = |cell: &Value| {
        cell["spent_flops"]["mean"].as_f64().unwrap() / cell["flops"].as_f64().unwrap()
    };
    assert!((ratio(dense) - 1.0).abs() < 1e-12, "{dense}");
    println!("a skipping run spends {} of what was planned", ratio(skips));
    assert!((ratio(skips) - 1.0).abs() < 0.02, "{skips}");
    assert!(skips["steps"].as_u64() > dense["steps"].as_u64(), "savings buy steps");
    assert_eq!(skips["spent_tokens"]["mean"].as_f64(), skips["tokens"].as_f64());
    let rate = skips["skip_rate"]["mean"].as_f64().unwrap();
    assert!((rate - 0.3).abs() < 0.05, "{rate}");
    assert_eq!(dense["skip_rate"], Value::Null);
}

#[test]
fn skipping_that_makes_no_sense_is_refused_by_name() {
    let directory = temporary();
    let run = directory.path().join("run");
    for (policy, setting, words) in [
        ("nag", "skip.rate=1", &["skip.rate is 1", "less than 1"][..]),
        ("nag", "skip.rate=-0.5", &["skip.rate is -0.5"]),
        ("nag", "skip.rate=some", &["skip"]),
        ("nag", "skip.per=block", &["block"]),
        ("nag", "skip.guard_steps=0", &["skip.guard_steps is 0"]),
        ("prenorm", "skip.rate=0.25", &["skip.rate", "prenorm", "mgr and nag"]),
        ("nag:skip_threshold=0.1", "skip.rate=0.25", &["residual.skip_threshold", "[skip]"]),
        ("mgr:streams=4", "skip.rate=0.9", &["skip.rate is 0.9", "first 3 sub-layers"]),
        ("nag", "model.depth_kv=attention", &["depth_kv", "skip_kv"]),
        ("nag", "model.value_residual=fixed", &["value_residual", "skip_kv"]),
    ] {
        finish(&mut skipping(&run, policy, &["skip.kv=drop", setting])).refused(2, words);
    }
    finish(on_task(&run, &["skip.ramp=0.5"]).args(["--residual", "nag"])).refused(2, &["rate"]);
    assert!(!run.exists(), "what is refused leaves nothing");
}
