//! A run that was stopped and resumed ends with the same bits as one that was not.

use crate::support::*;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Stops a run with signals at these numbers of lines in its metrics, resumes it each time, and lets it
/// end. A busy machine may deliver a signal late; how many came in time is said, not demanded.
fn interrupted_and_resumed(run: &Path, first: &mut Command, stops: &[usize]) {
    let metrics = run.join("metrics.jsonl");
    let mut stopped = 0;
    for (i, &stop) in stops.iter().enumerate() {
        let signal = ["-INT", "-TERM"][i % 2];
        // It writes only after it listens: a signal before that would end it without a word.
        let before = lines(&metrics);
        let enough = || lines(&metrics) >= stop.max(before + 1);
        let ended = match i {
            0 => signalled(first, signal, enough),
            _ => signalled(&mut resume(run), signal, enough),
        };
        if ended.code == Some(0) {
            continue;
        }
        stopped += 1;
        assert!(ended.stderr.contains("interrupted; step "), "{}", ended.stderr);
        let next = format!("hadal train --resume {}", run.display());
        assert!(ended.stderr.contains(&next), "{}", ended.stderr);
        assert!(!run.join("model").exists());
    }
    println!("{stopped} of {} signals came in time", stops.len());
    finish(&mut resume(run)).succeeded();
}

/// Three passes per step, so that most signals arrive inside a window.
#[test]
fn a_task_run_that_was_interrupted_ends_with_the_same_bits() {
    let directory = temporary();
    for policy in ["mgr", "nag", "hc"] {
        let whole = directory.path().join(format!("{policy}-whole"));
        let parts = directory.path().join(format!("{policy}-parts"));
        let settings = [
            "train.steps=60",
            "train.accumulate=3",
            "train.nag_alpha_warmup=30",
            "eval.every_steps=20",
            "checkpoint.every_steps=0",
        ];
        let start = |out: &Path| {
            let mut command = on_task(out, &settings);
            command.args(["--residual", policy, "--seed", "5"]);
            command
        };
        finish(&mut start(&whole)).succeeded();
        interrupted_and_resumed(&parts, &mut start(&parts), &[4, 17, 32]);
        assert_same(&parts, &whole, policy);
        // A kill comes in time whatever the machine does.
        let killed = directory.path().join(format!("{policy}-killed"));
        killed_at(&mut start(&killed), "write metrics.jsonl#30");
        finish(&mut resume(&killed)).succeeded();
        assert_same(&killed, &whole, policy);
        let losses: Vec<_> =
            curve(&whole).iter().map(|line| line["loss"].as_f64().unwrap()).collect();
        assert!(losses.iter().all(|loss| loss.is_finite()));
    }
}

/// 60 steps of 4 sequences are more than three times the text's windows.
#[test]
fn a_text_run_that_was_interrupted_goes_on_across_epochs_with_the_same_samples() {
    let directory = temporary();
    let data = directory.path().join("data");
    prepare(&data, &words(400), &["--shard-tokens", "500"]);
    let settings = [
        "train.steps=60",
        "train.accumulate=2",
        "eval.every_steps=15",
        "sample.every_steps=5",
        "checkpoint.every_steps=7",
    ];
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    finish(&mut on_text(&whole, &data, &settings)).succeeded();
    interrupted_and_resumed(&parts, &mut on_text(&parts, &data, &settings), &[6, 21, 34]);
    assert_same(&parts, &whole, "text");
    let killed = directory.path().join("killed");
    killed_at(&mut on_text(&killed, &data, &settings), "write samples.jsonl#12");
    killed_at(&mut resume(&killed), "write metrics.jsonl#30");
    finish(&mut resume(&killed)).succeeded();
    assert_same(&killed, &whole, "text");
    assert_eq!(samples(&whole).lines().count(), 12);
}

#[test]
fn resuming_a_finished_run_changes_nothing() {
    let directory = temporary();
    let run = directory.path().join("run");
    let copy = directory.path().join("copy");
    for every in ["checkpoint.every_steps=0", "checkpoint.every_steps=5"] {
        let _ = fs::remove_dir_all(&run);
        finish(&mut on_task(&run, &["train.steps=10", every])).succeeded();
        let _ = fs::remove_dir_all(&copy);
        crate::support::copy(&run, &copy);
        for _ in 0..2 {
            let again = finish(&mut resume(&run)).succeeded();
            assert!(again.stdout.contains("held-out loss"), "{}", again.stdout);
            assert_same(&run, &copy, every);
        }
    }
}

/// Every kind of change: one that alters no shape, some that do, and one that is no TOML.
#[test]
fn an_edited_config_is_refused_by_name() {
    let directory = temporary();
    let run = directory.path().join("run");
    finish(&mut on_task(&run, &["train.steps=6"])).succeeded();
    let file = run.join("config.toml");
    let good = fs::read_to_string(&file).unwrap();
    let before = model(&run);
    for (from, to) in [
        ("steps = 6", "steps = 7"),
        ("seed = 0", "seed = 1"),
        ("n_layers = 2", "n_layers = 3"),
        ("d_model = 16", "d_model = 32"),
        ("lr = 0.003", "lr = 0.004"),
        ("kind = \"mgr\"", "kind = \"prenorm\" #"),
        ("[train]", "[train"),
        ("keep = 2", "keer = 2"),
        ("batch = 2", "batch = 0"),
    ] {
        let edited = good.replacen(from, to, 1);
        let edited = match to.contains('#') {
            // Another policy has no streams.
            true => edited.replace("streams = 4\ngate = \"competitive\"\n", ""),
            false => edited,
        };
        assert_ne!(edited, good, "{from}");
        fs::write(&file, edited).unwrap();
        let ended = finish(&mut resume(&run));
        assert!(matches!(ended.code, Some(1 | 2)), "{to}: {}", ended.stderr);
        assert!(ended.stderr.contains("config.toml"), "{to}: {}", ended.stderr);
        assert!(!ended.stderr.contains("damaged"), "{to}: {}", ended.stderr);
    }
    fs::write(&file, &good).unwrap();
    finish(&mut resume(&run)).succeeded();
    assert!(model(&run) == before);
}

/// Comments, spaces and the order of sections say nothing about a run.
#[test]
fn a_config_that_says_the_same_is_the_same() {
    let directory = temporary();
    let run = directory.path().join("run");
    finish(&mut on_task(&run, &["train.steps=6"])).succeeded();
    let file = run.join("config.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("# mine\n{}", good.replace(" = ", "=").replace("\n[", "\n\n\n[")))
        .unwrap();
    finish(&mut resume(&run)).succeeded();
    // A version before fingerprints had a version recorded the hash of the text.
    fs::write(&file, &good).unwrap();
    let checkpoint = newest(&run);
    let (counters, manifest) = (checkpoint.join("state.json"), checkpoint.join("manifest.json"));
    let hash = |path: &Path| hadal_files::hash(path).unwrap().0;
    let text = fs::read_to_string(&counters).unwrap();
    let before = hash(&counters);
    let begin = text.find("\"v2:").unwrap() + 1;
    let end = begin + text[begin..].find('"').unwrap();
    fs::write(&counters, format!("{}{}{}", &text[..begin], hash(&file), &text[end..])).unwrap();
    let hashes = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, hashes.replace(&before, &hash(&counters))).unwrap();
    let ended = finish(&mut resume(&run)).succeeded();
    assert!(!ended.stderr.contains("warning"), "{}", ended.stderr);
}

#[test]
fn other_data_or_another_tokenizer_is_refused() {
    let directory = temporary();
    let (run, data) = (directory.path().join("run"), directory.path().join("data"));
    let text = words(400);
    prepare(&data, &text, &[]);
    finish(&mut on_text(&run, &data, &["train.steps=4"])).succeeded();

    prepare(&data, &words(401), &[]);
    finish(&mut resume(&run)).refused(1, &["data", "changed"]);
    let tokenizer =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K/tokenizer.json");
    prepare(&data, &text, &["--tokenizer", tokenizer.to_str().unwrap()]);
    finish(&mut resume(&run)).refused(1, &["tokenizer", "changed"]);
    fs::remove_dir_all(&data).unwrap();
    finish(&mut resume(&run)).refused(2, &[data.to_str().unwrap()]);

    prepare(&data, &text, &[]);
    finish(&mut resume(&run)).succeeded();
}

#[test]
fn a_folder_without_a_run_and_a_run_at_work_are_refused() {
    let directory = temporary();
    let nowhere = directory.path().join("nowhere");
    finish(&mut resume(&nowhere)).refused(2, &["nowhere holds no run", "hadal train --out"]);
    finish(&mut resume(directory.path())).refused(2, &["holds no run"]);

    let run = directory.path().join("run");
    let mut child = started(&mut on_task(&run, &["train.steps=100000", "train.accumulate=50"]));
    wait_until(&mut child, || lines(&run.join("metrics.jsonl")) > 0);
    finish(&mut resume(&run)).refused(2, &["being trained by another process"]);
    finish(&mut on_task(&run, &[])).refused(2, &["being trained by another process", "--out"]);
    send("-INT", &child);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
}

/// Defect 16: the summary is that of the run, not of the last process.
#[test]
fn the_summary_of_a_resumed_run_begins_with_its_first_step() {
    let directory = temporary();
    let [whole, parts] = ["whole", "parts"].map(|name| directory.path().join(name));
    let settings = ["train.steps=40", "train.accumulate=4"];
    let summary = |said: &str| {
        said.lines().find(|line| line.starts_with("training loss")).map(str::to_owned).unwrap()
    };
    let expected = summary(&finish(&mut on_task(&whole, &settings)).succeeded().stderr);
    let ended = signalled(&mut on_task(&parts, &settings), "-INT", || {
        lines(&parts.join("metrics.jsonl")) >= 2
    });
    if ended.code == Some(130) {
        let said = finish(&mut resume(&parts)).succeeded().stderr;
        assert_eq!(summary(&said), expected);
    }
}
