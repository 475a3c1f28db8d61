//! `hadal bench`. Nothing here depends on how fast the machine is.

use crate::support::{Run, command, command_of_little_memory, golden, run, run_with_stdin};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// The settings of a run with a tiny model.
fn tiny() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("tiny.toml");
    let text = "[train]\nsteps = 1\nbatch = 1\n\n\
                [model]\nd_model = 16\nn_layers = 3\nn_heads = 2\nvocab_size = 40\n";
    fs::write(&path, text).unwrap();
    (directory, path)
}

fn bench(options: &[&str]) -> Run {
    let (_directory, path) = tiny();
    run(command("bench")
        .args(["--steps", "2", "--batch", "1", "--seq", "16", "--model"])
        .arg(path)
        .args(options))
}

fn lines(run: &Run) -> Vec<Value> {
    run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn keys(report: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn assert_positive(report: &Value, names: &[&str]) {
    for &name in names {
        assert!(report[name].as_f64().is_some_and(|value| value > 0.0), "{name} of {report}");
    }
    let memory = &report["peak_rss_mb"];
    assert!(memory.as_f64().map_or(!cfg!(target_os = "linux"), |mb| mb > 1.0), "{memory}");
}

const POLICIES: [&str; 4] = ["--residual", "prenorm", "--residual", "mgr:streams=2"];

#[test]
fn a_precision_reaches_the_steps_and_the_report() {
    for precision in ["bf16", "bf16x3"] {
        let run = bench(&["--json", "--precision", precision]).succeeded();
        assert_eq!(lines(&run)[0]["precision"], precision);
        let run = bench(&["--precision", precision]).succeeded();
        assert!(run.stdout.contains(&format!("threads, {precision};")), "{}", run.stdout);
    }
    bench(&["--precision", "half"]).refused(2, &["--precision", "half", "bf16x3"]);
}

#[test]
fn training_is_told_in_one_line_of_json_for_each_policy() {
    let run = bench(&[&POLICIES[..], &["--json"]].concat()).succeeded();
    assert_eq!(run.stderr, "");
    let reports = lines(&run);
    let kinds: Vec<_> = reports.iter().map(|report| report["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["prenorm", "mgr:streams=2"]);
    let numbers = [
        "backward_ms",
        "batch",
        "best_tokens_per_second",
        "forward_ms",
        "gemm_gflops",
        "gemm_gflops_thread",
        "mfu",
        "mfu_of_peak",
        "optimizer_ms",
        "parameters",
        "peak_gflops",
        "peak_gflops_thread",
        "ratio",
        "seq",
        "step_ms_best",
        "step_ms_median",
        "steps",
        "threads",
        "tokens_per_second",
    ];
    for report in &reports {
        let words = ["cpu", "kind", "peak_rss_mb", "precision", "simd"];
        let mut expected = [&numbers[..], &words].concat();
        expected.sort_unstable();
        assert_eq!(keys(report), expected);
        assert!(["portable", "avx2", "avx512"].contains(&report["simd"].as_str().unwrap()));
        assert_positive(report, &numbers);
        let counts = ["batch", "seq", "steps", "threads"].map(|key| report[key].as_u64().unwrap());
        assert_eq!(counts, [1, 16, 2, 2]);
    }
    assert_eq!(reports[0]["ratio"], 1.0);
    let parameters = |report: &Value| report["parameters"].as_u64().unwrap();
    assert!(parameters(&reports[1]) > parameters(&reports[0]));
}

#[test]
fn decoding_is_told_at_every_context() {
    let reports = lines(&bench(&[&POLICIES[..], &["--decode", "--json"]].concat()).succeeded());
    assert_eq!(reports.len(), 2);
    for report in &reports {
        let numbers = ["decode_ms_median", "decode_tokens_per_second", "prefill_tokens_per_second"];
        let names = ["contexts", "cpu", "kind", "peak_rss_mb", "simd"];
        let mut expected = [&numbers[..], &names].concat();
        expected.sort_unstable();
        assert_eq!(keys(report), expected);
        assert_positive(report, &numbers);
        let contexts = report["contexts"].as_array().unwrap();
        let lengths: Vec<_> = contexts.iter().map(|c| c["context"].as_u64().unwrap()).collect();
        assert_eq!(lengths, [4, 8, 16]);
        assert!(contexts.iter().all(|context| context["ms"].as_f64().unwrap() > 0.0));
    }
}

#[test]
fn skip_rates_are_entries_of_their_own() {
    let options = ["--residual", "prenorm", "--residual", "nag", "--skip", "0,0.5", "--json"];
    for decode in [false, true] {
        let options = [&options[..], if decode { &["--decode"] } else { &[] }].concat();
        let reports = lines(&bench(&options).succeeded());
        let kinds: Vec<_> = reports.iter().map(|report| report["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["prenorm", "nag", "nag+skip0", "nag+skip0.5"]);
        for report in &reports[..2] {
            assert_eq!(report.get("skip"), None);
            assert_positive(report, &["prefill_tokens_per_second"]);
        }
        let skip = &reports[3]["skip"];
        assert_eq!(skip["rate"], 0.5);
        let share = skip["skipped_share"].as_f64().unwrap();
        assert!((share - 0.5).abs() < 0.3, "{skip}");
        assert_eq!(reports[2]["skip"]["skipped_share"], 0.0);
        for part in if decode { ["prefill", "decode"] } else { ["training", "prefill"] } {
            let ratio = skip[part]["flop_ratio"].as_f64().unwrap();
            assert!(ratio > 0.0 && ratio < 1.0, "{part} of {skip}");
            assert!(skip[part]["time_ratio"].as_f64().unwrap() > 0.0);
            assert!(skip[part]["kept"].is_f64());
        }
    }
}

#[test]
fn people_see_a_table() {
    let text = bench(&POLICIES).succeeded().stdout;
    for part in ["3 blocks of 16", "tokens/s", "of peak", "prenorm", "mgr:streams=2", "1.000x"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    for part in ["GFLOP/s: multiply-adds ", "on one thread), sgemm "] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let text = bench(&["--residual", "nag", "--skip", "0.25"]).succeeded().stdout;
    for part in ["nag+skip0.25", "kept", "prefill tokens/s"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let text = bench(&["--decode"]).succeeded().stdout;
    for part in ["prefill tokens/s", "ms at 16", "prenorm"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn a_checkpoint_brings_its_policy() {
    let options = ["--steps", "1", "--batch", "1", "--seq", "8", "--json", "--model"];
    let run = run(command("bench").args(options).arg(golden("mgr-competitive"))).succeeded();
    assert_eq!(lines(&run)[0]["kind"], "mgr:streams=4,gate=competitive");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for flag in ["--batch", "--seq", "--steps", "--threads"] {
        run(command("bench").args([flag, "0"])).refused(2, &[flag, "between 1 and"]);
        run(command("bench").args([flag, "some"])).refused(2, &[flag, "between 1 and"]);
    }
    run(command("bench").args(["--residual", "mrg"])).refused(2, &["mrg", "prenorm", "mgr"]);
    run(command("bench").args(["--residual", "mgr:streams=0"]))
        .refused(2, &["at least one stream"]);
    run(command("bench").args(["--skip", "1"])).refused(2, &["--skip", "less than 1"]);
    run(command("bench").args(["--skip", "0.5"])).refused(2, &["--skip", "prenorm"]);
    run(command("bench").args(["--fast"])).refused(2, &["--fast"]);
    run(command("bench").args(["--model", "nowhere"])).refused(2, &["cannot read nowhere"]);
    let (_directory, path) = tiny();
    fs::write(&path, "[model]\nd_model = 16\nwidth = 3\n").unwrap();
    run(command("bench").arg("--model").arg(&path)).refused(2, &["tiny.toml", "line", "width"]);
}

/// There is no memory for the tokens of a step.
#[test]
#[cfg(unix)]
fn a_worker_that_dies_is_one_failure() {
    let (_directory, path) = tiny();
    let numbers = ["--batch", "1048576", "--seq", "1048576", "--model"];
    run(command_of_little_memory("bench").args(numbers).arg(path))
        .refused(1, &["the worker of prenorm died", "signal", "memory allocation"]);
}

#[test]
fn a_worker_answers_line_by_line() {
    let (_directory, path) = tiny();
    let mut worker = command("bench");
    worker.args(["--worker", "--batch", "1", "--seq", "8", "--model"]).arg(&path);
    let said = lines(&run_with_stdin(&mut worker, b"step\nend\n").succeeded());
    assert_eq!(said.len(), 3);
    assert_positive(&said[2], &["gemm_gflops", "gemm_gflops_thread", "peak_gflops"]);
    let mut portable = command("bench");
    portable.args(["--worker", "--batch", "1", "--seq", "8", "--threads", "1", "--model"]);
    portable.arg(&path).env("HADAL_SIMD", "portable");
    let ready = lines(&run_with_stdin(&mut portable, b"end\n").succeeded()).remove(0);
    assert_eq!(ready["simd"], "portable");
    assert_eq!(ready["peak_gflops"], ready["peak_gflops_thread"]);
    assert!(said[1]["step_ms"].as_f64().unwrap() > 0.0);
}
