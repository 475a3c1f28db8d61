//! Runs that are there already: of other data, other builds, damaged or killed.

use super::*;

#[test]
fn a_folder_with_runs_of_something_else_is_refused_by_name() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0]", THREE);
    let out = directory.path().join("out");
    finish(&mut compare(&suite, &out)).succeeded();
    let mut other = compare(&suite, &out);
    set(&mut other, &["train.steps=31", "optimizer.muon.lr=0.5"]);
    let words = ["prenorm-s0", "train.steps is 30, not 31", "muon.lr", "remove it", "--out"];
    finish(&mut other).refused(2, &words);
    written(directory.path(), "seeds = [0]\nthreads = 2", THREE);
    finish(&mut compare(&suite, &out)).refused(2, &["1 threads", "says 2", "threads = 1"]);
}

/// A suite of one policy on prepared text.
fn on_prepared(directory: &Path, data: &Path, head: &str) -> PathBuf {
    let path = directory.join("suite.toml");
    let body = BODY
        .replace("steps = 30", "steps = 10\nseq_len = 24")
        .replace("[data.generated]\ntask = \"khop\"\nlength = 24", "[data]\ntrain = \"DATA\"")
        .replace("DATA", &data.display().to_string());
    fs::write(&path, format!("{head}\n{body}\n[[variant]]\nresidual = \"prenorm\"\n")).unwrap();
    path
}

/// Other text under the same path, and another seed: one table would hold both texts.
#[test]
fn runs_of_other_data_are_refused_and_the_same_data_goes_on() {
    let directory = temporary();
    let (data, out) = (directory.path().join("data"), directory.path().join("out"));
    let (text, other) = (words(900), words(900).replace('1', "7"));
    prepare(&data, &text, &[]);
    let suite = on_prepared(directory.path(), &data, "seeds = [0]");
    finish(&mut compare(&suite, &out)).succeeded();
    prepare(&data, &other, &[]);
    on_prepared(directory.path(), &data, "seeds = [0, 1]");
    let said = [
        "runs/prenorm-s0",
        "other data (its run.json says ",
        ", and this is ",
        "--out",
        "remove that run's folder",
    ];
    finish(&mut compare(&suite, &out)).refused(2, &said);
    // A run that is not done as well, before anything is started.
    let model = out.join("runs/prenorm-s0/model");
    fs::rename(&model, directory.path().join("model")).unwrap();
    finish(&mut compare(&suite, &out)).refused(2, &said);
    assert!(!out.join("runs/prenorm-s1").exists());
    // Nor does a report mix them.
    fs::rename(directory.path().join("model"), &model).unwrap();
    let elsewhere = directory.path().join("elsewhere");
    finish(&mut compare(&suite, &elsewhere)).succeeded();
    let mut report = hadal(&["report"]);
    report.arg(out.join("runs/prenorm-s0")).arg(elsewhere.join("runs/prenorm-s1"));
    report.arg("-o").arg(directory.path().join("r.html"));
    let said = finish(&mut report).succeeded().stdout;
    assert!(said.starts_with("Two answers, since these runs cannot all be compared"), "{said}");
    prepare(&data, &text, &[]);
    let ended = finish(&mut compare(&suite, &out)).succeeded();
    assert!(ended.stderr.contains("1 of 2 runs were done before (by hadal"), "{}", ended.stderr);
}

/// Changes what a run says about its making.
fn change(run: &Path, change: impl FnOnce(&mut Value)) {
    let path = run.join("run.json");
    let mut about = json(&path);
    change(&mut about);
    fs::write(path, about.to_string()).unwrap();
}

#[test]
fn runs_of_another_build_are_named_and_those_of_another_generator_refused() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0]", THREE);
    let out = directory.path().join("out");
    finish(&mut compare(&suite, &out)).succeeded();
    change(&out.join("runs/mgr-s0"), |about| {
        about["commit"] = "0123456789abcdef0123456789abcdef01234567".into();
        about["executable"] = "other".into();
    });
    change(&out.join("runs/again-s0"), |about| about["simd"] = "abacus".into());
    let old = "{\"hadal\": \"0.0.1\", \"commit_of_working_directory\": null, \"task_generator\": 1, \"threads\": 2}";
    fs::write(out.join("runs/prenorm-s0/run.json"), old).unwrap();
    let ended = finish(compare(&suite, &out).arg("--json")).succeeded();
    let results: Value = serde_json::from_str(&ended.stdout).unwrap();
    let warnings = results["earlier"]["warnings"].to_string();
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    for words in [
        "mgr-s0 was made by another build or in another way (commit: 0123456789ab then, ",
        "executable: other then, ",
        "again-s0 was made by another build or in another way (SIMD form: abacus then, ",
        "prenorm-s0 was made by another build or in another way (data: unknown then, ",
        "hadal: 0.0.1 then, ",
    ] {
        for text in [&ended.stderr, &warnings, &report] {
            assert!(text.contains(words), "no {words:?} in {text}");
        }
    }
    assert!(ended.stderr.contains("3 of 3 runs were done before (1 by hadal "), "{}", ended.stderr);
    change(&out.join("runs/mgr-s0"), |about| about["task_generator"] = 0.into());
    let said = ["runs/mgr-s0", "generator 0", "this is generator 1", "--out"];
    finish(&mut compare(&suite, &out)).refused(2, &said);
}

/// It recovered from a failure once, which its folder shows for ever; then its process was killed.
#[test]
fn a_killed_process_is_a_failure_and_no_divergence() {
    let directory = temporary();
    let one = "[failure]\non_failure = \"skip\"\n[[variant]]\nresidual = \"prenorm\"\n";
    let suite = written(directory.path(), "seeds = [0]", one);
    let out = directory.path().join("out");
    let run = out.join("runs/prenorm-s0");
    let killed = |at: &str| finish(compare(&suite, &out).env("HADAL_FAULT", format!("kill:{at}")));
    killed("rename step-000000010").refused(1, &["1 of 1 runs failed"]);
    fs::create_dir_all(run.join("failures/step-000000005-0")).unwrap();
    let ended = killed("rename step-000000030");
    assert!(ended.stdout.contains("prenorm-s0 failed: its process ended"), "{}", ended.stdout);
    ended.refused(1, &["1 of 1 runs failed"]);
    assert_eq!(json(&out.join("results.json"))["runs"][0]["state"], "failed");
    finish(&mut compare(&suite, &out)).succeeded();
}

#[test]
fn a_damaged_run_is_named_and_left_out_of_the_table() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1, 2]", THREE);
    let out = directory.path().join("out");
    finish(&mut compare(&suite, &out)).succeeded();
    flip(&out.join("runs/mgr-s1/metrics.jsonl"), 0);
    // The last number of a finished run: a line that can be read.
    let metrics = out.join("runs/mgr-s2/metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    let at = text.rfind("\"loss\":").unwrap() + "\"loss\":".len();
    let digit = if text[at..].starts_with('1') { "2" } else { "1" };
    fs::write(&metrics, format!("{}{digit}{}", &text[..at], &text[at + 1..])).unwrap();
    fs::write(out.join("runs/again-s0/outcome.json"), "{").unwrap();
    let ended = finish(&mut compare(&suite, &out));
    for words in [
        "metrics.jsonl of mgr-s1: 1 line cannot be read and is left out.",
        "metrics.jsonl of mgr-s2: it is not what was written when the run ended.",
        "mgr-s2 is damaged: its numbers are not those that were written.",
        "outcome.json of again-s0: it is damaged (",
        "again: no difference from prenorm seen",
        "1/3",
    ] {
        assert!(ended.stdout.contains(words), "no {words:?} in {}", ended.stdout);
    }
    ended.refused(1, &["2 of 9 runs are damaged", "remove their folders", "runs"]);
    let states: Vec<Value> = json(&out.join("results.json"))["runs"].as_array().unwrap().clone();
    let counted = states.iter().filter(|run| run["state"] == "done").count();
    assert_eq!(counted, 7);
    for run in ["mgr-s1", "mgr-s2"] {
        fs::remove_dir_all(out.join("runs").join(run)).unwrap();
    }
    finish(&mut compare(&suite, &out)).succeeded();
}
