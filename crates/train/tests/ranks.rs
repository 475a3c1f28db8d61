//! The same bits on any number of ranks, which are threads here, and what happens when something happens to one of them.

use hadal_ranks::{Fault, Ranks, Threads};
use hadal_train::{ConfigLayers, Finished, Observer, RunConfig, StepReport, TrainError, Trainer};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SETTINGS: &str = r#"
    seed = 5
    [train]
    steps = 4
    batch = 1
    accumulate = 8
    [model]
    d_model = 16
    n_layers = 3
    n_heads = 2
    [data.generated]
    task = "khop"
    length = 24
    [schedule]
    warmup_steps = 2
    [eval]
    every_steps = 2
    batches = 5
    [checkpoint]
    every_steps = 2
    keep = 9
"#;

/// Four policies, two rules, with skipping and with rounded gradients.
const RUNS: [(&str, &[&str]); 6] = [
    ("mgr", &[]),
    ("nag", &["skip.rate=0.3", "skip.ramp=0.5", "skip.eta=0.5", "skip.guard_steps=2"]),
    ("attnres", &["optimizer.hidden=adamw"]),
    ("hc", &["ranks.wire=bf16", "train.accumulate=11"]),
    ("prenorm", &["optimizer.hidden=adamw", "optimizer.clip=0.1"]),
    ("keel", &["train.accumulate=9", "memory.recompute=true"]),
];

fn config(policy: &str, settings: &[&str]) -> RunConfig {
    let layers = ConfigLayers::default().with_toml(SETTINGS, "the test").unwrap();
    let layers = layers.with_residual(&policy.parse().unwrap()).unwrap();
    let layers = settings.iter().fold(layers, |layers, one| layers.with_setting(one).unwrap());
    layers.finish().unwrap()
}

struct Nobody;

impl Observer for Nobody {}

/// Asks to stop after a step.
struct StopAt<'a>(u64, &'a AtomicBool);

impl Observer for StopAt<'_> {
    fn stepped(&mut self, report: &StepReport) {
        if report.step == self.0 {
            self.1.store(true, Ordering::Relaxed);
        }
    }
}

fn no() -> AtomicBool {
    AtomicBool::new(false)
}

fn train(config: &RunConfig, out: &Path, ranks: Arc<dyn Ranks>) -> Result<Finished, TrainError> {
    Trainer::create_among(config.clone(), out, ranks)?.run(&mut Nobody, &no())
}

/// Of all ranks, which must end alike.
fn trained(count: usize, config: &RunConfig, out: &Path) -> Vec<Finished> {
    Threads::run(count, |ranks| train(config, out, ranks).unwrap())
}

fn resumed(count: usize, out: &Path) -> Vec<Finished> {
    Threads::run(count, |ranks| {
        Trainer::resume_among(out, None, true, ranks).unwrap().run(&mut Nobody, &no()).unwrap()
    })
}

/// Lines without what is a matter of time.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        for key in ["tokens_per_second", "communication"] {
            value.as_object_mut().unwrap().remove(key);
        }
        value
    };
    text.lines().map(line).collect()
}

fn assert_same(one: &Path, other: &Path, what: &str) {
    for file in ["model/model.safetensors", "model/config.json", "config.toml"] {
        let [a, b] = [one, other].map(|run| fs::read(run.join(file)).unwrap());
        assert!(a == b, "{what}: {file}");
    }
    assert_eq!(lines(&one.join("metrics.jsonl")), lines(&other.join("metrics.jsonl")), "{what}");
    for step in hadal_train::checkpoint_steps(one).unwrap() {
        let file = format!("checkpoints/step-{step:09}/state.safetensors");
        let [a, b] = [one, other].map(|run| fs::read(run.join(&file)).unwrap());
        assert!(a == b, "{what}: {file}");
    }
}

#[test]
fn any_number_of_ranks_ends_with_the_same_bytes() {
    let place = tempfile::tempdir().unwrap();
    for (policy, settings) in RUNS {
        let config = config(policy, settings);
        let alone = place.path().join(format!("{policy}-alone"));
        Trainer::create(config.clone(), &alone).unwrap().run(&mut Nobody, &no()).unwrap();
        for count in [1, 2, 3, 4, 8] {
            let out = place.path().join(format!("{policy}-{count}"));
            let ends = trained(count, &config, &out);
            assert!(ends.iter().all(|end| matches!(end, Finished::Done { .. })), "{ends:?}");
            assert_same(&alone, &out, &format!("{policy} on {count} ranks"));
        }
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let place = tempfile::tempdir().unwrap();
    for (policy, settings) in &RUNS[..2] {
        let config = config(policy, settings);
        let whole = place.path().join(format!("{policy}-whole"));
        trained(2, &config, &whole);
        for (first, then) in [(3, 2), (2, 4), (1, 3), (4, 1)] {
            let out = place.path().join(format!("{policy}-{first}-{then}"));
            let ends = Threads::run(first, |ranks| {
                let stop = no();
                let mut trainer = Trainer::create_among(config.clone(), &out, ranks).unwrap();
                trainer.run(&mut StopAt(1, &stop), &stop).unwrap()
            });
            // One step later, since all must hear of it.
            let step = if first == 1 { 1 } else { 2 };
            assert!(ends.iter().all(|end| *end == Finished::Interrupted { step }), "{ends:?}");
            resumed(then, &out);
            let model = "model/model.safetensors";
            let [a, b] = [&whole, &out].map(|run| fs::read(run.join(model)).unwrap());
            assert!(a == b, "{policy}: {first} ranks, then {then}");
            let [a, b] = [&whole, &out].map(|run| lines(&run.join("metrics.jsonl")));
            assert_eq!(a, b);
        }
    }
}

#[test]
fn one_rank_that_is_asked_to_stop_is_enough() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let config = config("mgr", &[]);
    let ends = Threads::run(3, |ranks| {
        let stop = AtomicBool::new(ranks.rank() == 2);
        Trainer::create_among(config.clone(), &out, ranks).unwrap().run(&mut Nobody, &stop).unwrap()
    });
    assert!(ends.iter().all(|end| *end == Finished::Interrupted { step: 0 }), "{ends:?}");
    assert!(out.join("checkpoints/step-000000000/manifest.json").exists());
}

#[test]
fn a_lost_rank_ends_the_run_with_its_name_and_nothing_is_lost() {
    let place = tempfile::tempdir().unwrap();
    let config = config("mgr", &[]);
    let whole = place.path().join("whole");
    trained(2, &config, &whole);
    let patience = Duration::from_secs(2);
    for (what, fault) in [("stops", Fault::Stops(15)), ("hangs", Fault::Hangs(15))] {
        let out = place.path().join(what);
        let ends =
            Threads::run_with(3, patience, &[(1, fault)], |ranks| train(&config, &out, ranks));
        for rank in [0, 2] {
            let said = ends[rank].as_ref().unwrap_err();
            assert!(!said.is_usage());
            let said = said.to_string();
            assert!(said.starts_with("rank 1 (process ") && said.contains("--resume"), "{said}");
        }
        assert!(!out.join("model").exists(), "the fault came too late to be one");
        resumed(4, &out);
        let [a, b] =
            [&whole, &out].map(|run| fs::read(run.join("model/model.safetensors")).unwrap());
        assert!(a == b, "{what}");
    }
}

#[test]
fn a_stranger_is_named_with_what_differs() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let ends = Threads::run(3, |ranks| {
        let more: &[&str] = if ranks.rank() == 1 { &["optimizer.clip=0.5"] } else { &[] };
        train(&config("mgr", more), &out, ranks)
    });
    for end in ends {
        let error = end.unwrap_err();
        let said = error.to_string();
        assert!(error.is_usage(), "{said}");
        assert!(said.starts_with("rank 1 (process "), "{said}");
        assert!(said.contains("optimizer.clip = 0.5 instead of 1.0, unlike rank 0"), "{said}");
    }
    assert!(!out.exists());
}

#[test]
fn more_ranks_than_passes_are_refused_with_a_remedy() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let config = config("mgr", &["train.accumulate=2", "train.batch=3"]);
    for end in Threads::run(3, |ranks| train(&config, &out, ranks)) {
        let error = end.unwrap_err();
        assert!(error.is_usage());
        let said = error.to_string();
        assert!(said.contains("train.accumulate=3 and train.batch=2"), "{said}");
    }
    assert!(!out.exists());
}

#[test]
fn a_folder_that_rank_0_cannot_use_ends_all() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("config.toml"), "").unwrap();
    let config = config("mgr", &[]);
    let ends = Threads::run(3, |ranks| train(&config, &out, ranks));
    for (rank, end) in ends.into_iter().enumerate() {
        let error = end.unwrap_err();
        let said = error.to_string();
        assert!(error.is_usage() && said.contains("already holds a run"), "{said}");
        assert_eq!(said.starts_with("rank 0 (process "), rank > 0, "{said}");
    }
}

/// Puts a file where checkpoints go.
struct NoRoom<'a>(&'a Path);

impl Observer for NoRoom<'_> {
    fn stepped(&mut self, report: &StepReport) {
        if report.step == 1 {
            let checkpoints = self.0.join("checkpoints");
            fs::rename(&checkpoints, self.0.join("aside")).unwrap();
            fs::write(checkpoints, "").unwrap();
        }
    }
}

#[test]
fn a_disk_that_takes_no_checkpoint_ends_all_and_nothing_is_lost() {
    let place = tempfile::tempdir().unwrap();
    let config = config("nag", RUNS[1].1);
    let whole = place.path().join("whole");
    trained(1, &config, &whole);
    let out = place.path().join("run");
    let ends = Threads::run(3, |ranks| {
        let mut trainer = Trainer::create_among(config.clone(), &out, ranks).unwrap();
        trainer.run(&mut NoRoom(&out), &no())
    });
    for end in ends {
        let error = end.unwrap_err();
        let said = error.to_string();
        assert!(!error.is_usage() && said.contains("step-000000002"), "{said}");
    }
    fs::remove_file(out.join("checkpoints")).unwrap();
    fs::rename(out.join("aside"), out.join("checkpoints")).unwrap();
    resumed(2, &out);
    assert_same(&whole, &out, "after a full disk");
}

#[test]
fn numbers_that_are_not_finite_are_met_alike() {
    let place = tempfile::tempdir().unwrap();
    for on_failure in ["skip", "rollback", "stop"] {
        let settings = [
            "optimizer.adamw.lr=1e30",
            "optimizer.hidden=adamw",
            "optimizer.clip=0",
            "failure.limit=2",
            "checkpoint.every_steps=1",
            &format!("failure.on_failure={on_failure}"),
        ];
        let config = config("prenorm", &settings);
        let [alone, among] =
            ["alone", "among"].map(|n| place.path().join(format!("{on_failure}-{n}")));
        let error = Trainer::create(config.clone(), &alone).unwrap().run(&mut Nobody, &no());
        let error = error.unwrap_err();
        assert!(error.is_divergence(), "{error}");
        let ends = Threads::run(3, |ranks| train(&config, &among, ranks));
        for (rank, end) in ends.into_iter().enumerate() {
            let said = end.unwrap_err();
            assert!(said.is_divergence(), "{said}");
            if rank == 0 {
                let name = |text: String| text.replace("-among", "").replace("-alone", "");
                assert_eq!(name(said.to_string()), name(error.to_string()));
            }
        }
        assert_eq!(lines(&alone.join("metrics.jsonl")), lines(&among.join("metrics.jsonl")));
        let failures = |run: &Path| {
            let mut found = Vec::new();
            for entry in fs::read_dir(run.join("failures")).unwrap() {
                let path = entry.unwrap().path();
                found.push((
                    path.file_name().unwrap().to_owned(),
                    fs::read(path.join("failed-step.json")).unwrap(),
                    fs::read(path.join("state.safetensors")).unwrap(),
                ));
            }
            found.sort();
            found
        };
        assert!(failures(&alone) == failures(&among), "{on_failure}");
    }
}

#[test]
fn the_time_spent_with_others_is_in_metrics_and_outcome_of_several_ranks_alone() {
    let place = tempfile::tempdir().unwrap();
    let config = config("prenorm", &[]);
    for count in [1, 2] {
        let out = place.path().join(count.to_string());
        trained(count, &config, &out);
        let outcome: Value =
            serde_json::from_slice(&fs::read(out.join("outcome.json")).unwrap()).unwrap();
        match count {
            1 => assert!(outcome.get("communication").is_none()),
            _ => assert!((0.0..1.0).contains(&outcome["communication"].as_f64().unwrap())),
        }
        let metrics = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.contains("communication"), count > 1);
    }
}

/// Rounds of two steps.
const ROUNDS: [&str; 3] = ["ranks.local_steps=2", "train.steps=7", "schedule.warmup_steps=1"];

#[test]
fn ranks_that_make_steps_by_themselves_go_on_to_the_same_bits() {
    let place = tempfile::tempdir().unwrap();
    let config = config("mgr", &ROUNDS);
    let mut models = Vec::new();
    for count in [1, 2, 3] {
        let whole = place.path().join(format!("whole-{count}"));
        trained(count, &config, &whole);
        let out = place.path().join(format!("stopped-{count}"));
        let ends = Threads::run(count, |ranks| {
            let stop = no();
            let mut trainer = Trainer::create_among(config.clone(), &out, ranks).unwrap();
            trainer.run(&mut StopAt(3, &stop), &stop).unwrap()
        });
        assert!(ends.iter().all(|end| *end == Finished::Interrupted { step: 4 }), "{ends:?}");
        for end in Threads::run(count + 1, |ranks| {
            Trainer::resume_among(&out, None, true, ranks).unwrap().run(&mut Nobody, &no())
        }) {
            let error = end.unwrap_err();
            assert!(error.is_usage() && error.to_string().ends_with(&format!("start {count}")));
        }
        resumed(count, &out);
        let [a, b] =
            [&whole, &out].map(|run| fs::read(run.join("model/model.safetensors")).unwrap());
        assert!(a == b, "{count} ranks");
        models.push(a);
    }
    assert!(models[0] != models[1] && models[1] != models[2]);
}

#[test]
fn rounds_of_one_step_without_momentum_at_full_rate_are_means_of_parameters() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    // One rank: the outer step goes exactly where the inner one went.
    let settings = ["ranks.local_steps=1", "ranks.outer_rate=1", "ranks.outer_momentum=0"];
    trained(1, &config("prenorm", &settings), &out);
    let plain = place.path().join("plain");
    trained(1, &config("prenorm", &[]), &plain);
    let [a, b] = [&out, &plain].map(|run| lines(&run.join("metrics.jsonl")));
    for (a, b) in a.iter().zip(&b) {
        let [a, b] = [a, b].map(|line| line["loss"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
}

#[test]
fn what_only_all_ranks_can_decide_is_refused_between_rounds() {
    for (setting, word) in [
        ("eval.every_steps=3", "multiple"),
        ("failure.on_failure=skip", "only stop"),
        ("ranks.outer_momentum=1", "[0, 1)"),
        ("ranks.outer_rate=0", "positive"),
    ] {
        let layers = ConfigLayers::default().with_toml(SETTINGS, "the test").unwrap();
        let layers = layers.with_setting("ranks.local_steps=2").unwrap();
        let error = layers.with_setting(setting).unwrap().finish().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}
