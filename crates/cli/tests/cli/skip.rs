//! `hadal skip` and `hadal generate --skip-threshold`, on the golden models.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A folder with prepared data of bytes, and a byte model of this policy.
struct Bench {
    folder: TempDir,
}

const TEXT: &str = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. ";

impl Bench {
    fn new(policy: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("text.txt"), TEXT.repeat(40)).unwrap();
        let settings = format!(
            "[data]\ntrain = {:?}\n\n[train]\nsteps = 2\nbatch = 2\nseq_len = 32\n\n\
             [model]\nd_model = 16\nn_layers = 2\nn_heads = 2\n",
            folder.path().join("data")
        );
        fs::write(folder.path().join("run.toml"), settings).unwrap();
        let bench = Self { folder };
        let mut prepare = command("data");
        prepare.arg("prepare").arg(bench.at("text.txt")).arg("--out").arg(bench.at("data"));
        run(&mut prepare).succeeded();
        let mut train = command("train");
        train.arg(bench.at("run.toml")).args(["--residual", policy]);
        run(train.arg("--out").arg(bench.at("run"))).succeeded();
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn skip(action: &str, subject: &Path) -> Command {
    let mut command = command("skip");
    command.arg(action).arg(subject);
    command
}

#[test]
fn a_run_is_calibrated_on_its_own_data_and_the_model_writes_text() {
    let bench = Bench::new("nag");
    let out = bench.at("skipping");
    let mut command = skip("calibrate", &bench.at("run"));
    command.args(["--rate", "0.25", "--per", "layer"]).arg("--out").arg(&out);
    let said = run(&mut command).succeeded();
    for words in ["gate       hard", "% of the FLOPs", "loss", "perplexity", "attention", "##"] {
        assert!(said.stdout.contains(words), "no {words:?} in {}", said.stdout);
    }
    assert!(said.stderr.contains("skipping"), "{}", said.stderr);
    let config = read_json(&out.join(CONFIG));
    assert_eq!(config["residual"]["skip_threshold"].as_array().unwrap().len(), 4, "{config}");
    let mut generate = crate::support::command("generate");
    let text = ["--prompt", "the ", "--max-tokens", "5", "--json"];
    run(generate.arg(&out).args(text)).succeeded();
    // Existing results are not overwritten.
    run(&mut command).refused(2, &["skipping", "not empty", "--out"]);
}

#[test]
fn scripts_get_json_and_a_config_is_changed_in_place() {
    let bench = Bench::new("mgr:streams=2");
    let (model, text) = (bench.at("run/model"), bench.at("text.txt"));
    let weights = fs::read(model.join(WEIGHTS)).unwrap();
    let mut command = skip("calibrate", &model);
    command.args(["--rate", "0.2", "--gate", "continuous", "--kv", "drop", "--json", "--write"]);
    let said = run(command.arg("--data").arg(&text)).succeeded();
    assert_eq!(said.stderr, "");
    let json = said.json();
    assert_eq!((&json["rate"], &json["scope"]), (&0.2.into(), &"model".into()));
    assert_eq!(json["sites"].as_array().unwrap().len(), 4);
    assert!(json["skipped"]["skippable_flops"].is_f64(), "{json}");
    assert!(json["before"]["loss"].is_f64() && json["after"]["loss"].is_f64());
    let residual = &read_json(&model.join(CONFIG))["residual"];
    assert_eq!(residual["skip_threshold"], json["skip_threshold"]);
    assert_eq!((&residual["skip_shrink"], &residual["skip_kv"]), (&1.0.into(), &"drop".into()));
    assert_eq!(fs::read(model.join(WEIGHTS)).unwrap(), weights);
    // The model remembers its gate and its keys.
    let mut again = skip("calibrate", &model);
    let json = run(again.args(["--rate", "0", "--json", "--data"]).arg(&text)).succeeded().json();
    assert_eq!((&json["skip_shrink"], &json["skip_kv"]), (&1.0.into(), &"drop".into()));
    assert_eq!(json["written"], Value::Null);
}

#[test]
fn a_sweep_that_was_killed_goes_on_with_the_same_command() {
    let bench = Bench::new("nag");
    // The folder is not there yet.
    let out = bench.at("new/sweep");
    let kept = bench.at("new/sweep.measured");
    let rates: Vec<String> = (0..60).map(|rate| format!("{}", f64::from(rate) / 100.0)).collect();
    let mut command = skip("sweep", &bench.at("run"));
    command.args(["--rates", &rates.join(","), "--data"]).arg(bench.at("text.txt"));
    command.arg("--out").arg(&out);
    let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while !kept.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(kept.exists() && !out.exists(), "it kept nothing, or it ended before it was killed");
    let first = read_json(&kept)["entries"].as_object().unwrap().len();
    assert!((1..60).contains(&first), "{first}");
    let said = run(command.stderr(Stdio::piped()).stdout(Stdio::piped())).succeeded();
    assert!(said.stderr.contains("going on from") && said.stderr.contains("sweep.measured"));
    assert!(out.join("sweep.html").is_file() && !kept.exists());
}

#[test]
fn a_sweep_is_a_table_and_figures() {
    let bench = Bench::new("nag");
    let out = bench.at("sweep");
    let mut command = skip("sweep", &bench.at("run"));
    command.args(["--rates", "0,0.3", "--data"]).arg(bench.at("text.txt")).arg("--out").arg(&out);
    let said = run(&mut command).succeeded();
    for words in ["rate", "perplexity", "tokens/s", "30.0 %", "kept"] {
        assert!(said.stdout.contains(words), "no {words:?} in {}", said.stdout);
    }
    for file in
        ["skip-loss.svg", "skip-loss.png", "skip-speed.csv", "skip-kinds.json", "sweep.html"]
    {
        assert!(out.join(file).is_file(), "{file}");
    }
    assert!(said.stderr.contains("sweep.html"), "{}", said.stderr);
    let page = fs::read_to_string(out.join("sweep.html")).unwrap();
    let answer = page.split("<h1>").nth(1).unwrap().split("</h1>").next().unwrap();
    assert!(answer.starts_with("Skipping ") && answer.contains("the loss is"), "{answer}");
    assert!(page.contains("hadal skip calibrate") && page.contains("of text.txt"));
    let mut dry = skip("sweep", &bench.at("run"));
    dry.args(["--rates", "0,0.3", "--dry-run", "--data"]).arg(bench.at("text.txt"));
    let said = run(&mut dry).succeeded().stdout;
    for words in ["passes ", "time ", "memory "] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let mut dry = skip("calibrate", &bench.at("run"));
    let found = run(dry.args(["--rate", "0.2", "--dry-run", "--json"])).succeeded().json();
    assert!(found["passes"][0].as_u64() < found["passes"][1].as_u64(), "{found}");
    run(&mut command).refused(2, &["sweep exists already", "-o other", "--force"]);
    let json = run(command.args(["--json", "--force"])).succeeded().json();
    let points = json["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    assert_eq!(points[0]["prefill"]["flop_ratio"], 1.0);
    assert!(points[1]["flops_per_token"].as_f64() < points[0]["flops_per_token"].as_f64());
    for key in ["loss", "perplexity", "accuracy", "tokens_per_second"] {
        assert!(points[1][key].is_f64(), "{key} of {}", points[1]);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = TempDir::new().unwrap();
    let (text, empty) = (folder.path().join("text.txt"), folder.path().join("empty.txt"));
    fs::write(&text, TEXT.repeat(20)).unwrap();
    fs::write(&empty, "").unwrap();
    for rate in ["1", "-0.1", "1.5", "NaN"] {
        let mut command = skip("calibrate", &stories());
        run(command.args(["--rate", rate, "--data"]).arg(&text)).refused(2, &["less than 1"]);
    }
    let mut command = skip("calibrate", &stories());
    run(command.args(["--rate", "0.2", "--data"]).arg(&text))
        .refused(2, &["residual policy prenorm", "mgr and nag"]);
    let mut command = skip("calibrate", &stories());
    run(command.args(["--rate", "0.2", "--data"]).arg(&empty))
        .refused(2, &["empty.txt", "tokens", "--data"]);
    run(skip("calibrate", &stories()).args(["--rate", "0.2"])).refused(2, &["--data"]);
    run(skip("calibrate", Path::new("nowhere")).args(["--rate", "0.2"])).refused(2, &["nowhere"]);
    run(&mut skip("calibrate", &stories())).refused(2, &["--rate"]);
    run(skip("calibrate", &stories()).args(["--rate", "0.2", "--per", "head"]))
        .refused(2, &["head", "model", "kind", "layer"]);
    let mut command = skip("sweep", &stories());
    run(command.args(["--rates", "0,1", "--data"]).arg(&text)).refused(2, &["less than 1"]);
    run(command.args(["--gate", "soft"])).refused(2, &["soft", "hard", "continuous"]);
}

#[test]
fn generation_can_skip_by_one_threshold_or_not_at_all() {
    let said = |threshold: Option<&str>| {
        let mut command = command("generate");
        command.arg(golden("nag-mod")).args(["--tokenizer", "bytes", "--prompt", "!"]);
        command.args(["--max-tokens", "6", "--json"]);
        if let Some(threshold) = threshold {
            command.args(["--skip-threshold", threshold]);
        }
        run(&mut command)
    };
    let ids = |run: Run| run.succeeded().json()["ids"].clone();
    let own = ids(said(None));
    // With a threshold that no gate reaches, the next token depends on the last one alone.
    assert_ne!(ids(said(Some("1e9"))), own);
    ids(said(Some("0")));
    said(Some("-1")).refused(2, &["skip_threshold", "-1"]);
    let mut command = command("generate");
    command.arg(stories()).args(["--prompt", "a", "--max-tokens", "1", "--skip-threshold"]);
    run(command.arg("0.1")).refused(2, &["residual policy prenorm"]);
}
