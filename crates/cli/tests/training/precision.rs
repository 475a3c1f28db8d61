//! `train.precision`: what it does to a run, and what it leaves alone.

use crate::compare::{compare, written};
use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::Path;

const STEPS: [&str; 3] = ["train.steps=60", "eval.every_steps=20", "checkpoint.every_steps=7"];

fn start(out: &Path, precision: &str) -> std::process::Command {
    let mut command = on_task(out, &STEPS);
    set(&mut command, &[&format!("train.precision={precision}")]);
    command
}

/// Losses of steps, not of evaluations.
fn losses(run: &Path) -> Vec<f64> {
    let of_step = |line: &Value| (line["kind"] == "train").then(|| line["loss"].as_f64()).flatten();
    curve(run).iter().filter_map(of_step).collect()
}

#[test]
fn rounded_runs_learn_about_the_same_and_end_with_the_same_bits_when_resumed() {
    let directory = temporary();
    let place = |name: &str| directory.path().join(name);
    finish(&mut on_task(&place("f32"), &STEPS)).succeeded();
    let exact = losses(&place("f32"));
    for (precision, tolerance) in [("bf16", 0.05), ("bf16x3", 1e-3)] {
        let (whole, killed) = (place(precision), place(&format!("{precision}-killed")));
        finish(&mut start(&whole, precision)).succeeded();
        let config = fs::read_to_string(whole.join("config.toml")).unwrap();
        assert!(config.contains(&format!("precision = \"{precision}\"")), "{config}");
        let own = losses(&whole);
        assert_eq!(own.len(), exact.len());
        assert_ne!(own, exact, "{precision}: nothing was rounded");
        for (own, exact) in own.iter().zip(&exact) {
            assert!((own - exact).abs() < tolerance * exact, "{precision}: {own}, not {exact}");
        }
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&own[40..]) < 0.9 * mean(&own[..5]), "{precision}: {own:?}");
        killed_at(&mut start(&killed, precision), "write metrics.jsonl#30");
        finish(&mut resume(&killed)).succeeded();
        assert_same(&killed, &whole, precision);
    }
}

#[test]
fn f32_is_what_a_run_without_the_key_has() {
    let directory = temporary();
    let [without, with] = ["without", "with"].map(|name| directory.path().join(name));
    finish(&mut on_task(&without, &STEPS)).succeeded();
    finish(&mut start(&with, "f32")).succeeded();
    assert_same(&with, &without, "f32");
    let config = |run: &Path| fs::read_to_string(run.join("config.toml")).unwrap();
    assert_eq!(config(&with), config(&without));
    assert!(!config(&with).contains("precision"), "old settings keep their fingerprint");
}

#[test]
fn another_precision_is_another_run() {
    let directory = temporary();
    let run = directory.path().join("run");
    finish(&mut start(&run, "bf16")).succeeded();
    let file = run.join("config.toml");
    let good = fs::read_to_string(&file).unwrap();
    for other in ["precision = \"bf16x3\"", "precision = \"f32\"", ""] {
        fs::write(&file, good.replace("precision = \"bf16\"", other)).unwrap();
        finish(&mut resume(&run)).refused(1, &["config.toml changed"]);
    }
}

#[test]
fn unknown_precisions_are_named_with_what_was_meant() {
    let directory = temporary();
    let run = directory.path().join("run");
    for (precision, meant) in [("bf61", "did you mean bf16?"), ("half", "f32, bf16, bf16x3")] {
        finish(&mut start(&run, precision)).refused(2, &["train.precision", precision, meant]);
    }
    assert!(!run.exists(), "what is refused leaves nothing");
}

#[test]
fn a_suite_can_compare_precisions_and_its_table_says_so() {
    let directory = temporary();
    let out = directory.path().join("out");
    let variants = "[[variant]]\nresidual = \"prenorm\"\n\
                    [[variant]]\nname = \"rounded\"\nresidual = \"prenorm\"\nprecision = \"bf16\"\n";
    let suite = written(directory.path(), "seeds = [0, 1]", variants);
    let ended = finish(&mut compare(&suite, &out)).succeeded();
    assert!(ended.stdout.contains("rounded"), "{}", ended.stdout);
    let of = |name: &str| losses(&out.join("runs").join(name));
    assert_ne!(of("prenorm-s0"), of("rounded-s0"));
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("train.precision"), "the page does not say what differs");
}
