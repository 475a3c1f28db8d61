//! `hadal plan`'s memory is that of runs, counted by an allocator.

use hadal_files::testing::{Counting, peak};
use hadal_residual::ResidualConfig;
use hadal_train::plan::{Counted, DeviceMemory, Job, Machine, PROGRAM, Wire};
use hadal_train::{ConfigLayers, Evaluation, Observer, RunConfig, Trainer, model_config};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

/// The counters are global, so measurements must not overlap.
static MEASURING: Mutex<()> = Mutex::new(());

#[global_allocator]
static COUNTING: Counting = Counting;

/// Six policies: one stream, streams that are computed backwards, sources, streams that are kept, a direction, two streams.
const POLICIES: [&str; 6] = ["prenorm", "mgr", "attnres", "hc", "nag", "siamese"];

/// Nearer than a tenth: what is left is the data, and notes on operations.
const NEAR: std::ops::RangeInclusive<f64> = 0.97..=1.04;

/// Mostly activations, and mostly parameters.
const SIZES: [&str; 2] = [
    "[train]\nsteps = 2\nbatch = 8\nseq_len = 128\n\
     [model]\nvocab_size = 512\nd_model = 128\nn_layers = 6\nn_heads = 4\n",
    "[train]\nsteps = 2\nbatch = 4\nseq_len = 64\n\
     [model]\nvocab_size = 2048\nd_model = 256\nn_layers = 4\nn_heads = 4\nmlp = \"swiglu\"\n",
];

struct Silent;

impl Observer for Silent {
    fn evaluated(&mut self, _: u64, _: &Evaluation) {}
}

fn config(size: &str, policy: &str, settings: &[&str]) -> RunConfig {
    let policy: ResidualConfig = policy.parse().unwrap();
    let layers = ConfigLayers::default()
        .with_toml(size, "test")
        .and_then(|layers| {
            layers.with_toml("[data]\ntext = \"yankee\"\n[eval]\nbatches = 1\n", "test")
        })
        .and_then(|layers| layers.with_residual(&policy));
    let settings = settings.iter().fold(layers, |layers, setting| layers?.with_setting(setting));
    settings.and_then(ConfigLayers::finish).unwrap()
}

fn planned(config: &RunConfig) -> DeviceMemory {
    let feed = config.open_feed().unwrap();
    let model = model_config(config, &feed).unwrap();
    let machine =
        Machine { devices: 1, memory: None, bandwidth: 1e9, flops: 1e12, wire: Wire::F32 };
    Counted::new(Job::of(config, model, feed.seq_len())).unwrap().plan(&machine).memory
}

/// The most bytes that are live during a run.
fn measured(config: &RunConfig) -> u64 {
    let place = tempfile::tempdir().unwrap();
    let run = || {
        let mut trainer = Trainer::create(config.clone(), &place.path().join("run")).unwrap();
        trainer.run(&mut Silent, &AtomicBool::new(false)).unwrap();
    };
    peak(run).1 as u64
}

#[allow(clippy::print_stderr, reason = "shown if a test fails")]
fn ratio(size: &str, policy: &str, settings: &[&str]) -> f64 {
    let config = config(size, policy, settings);
    let plan = planned(&config);
    let live = plan.live();
    assert_eq!(live + PROGRAM, plan.total() - plan.allocator);
    let ratio = measured(&config) as f64 / live as f64;
    eprintln!("{policy} {settings:?}: {ratio:.3} of {:.1} MB: {plan:?}", live as f64 / 1e6);
    ratio
}

#[test]
fn a_run_holds_what_was_planned() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    for size in SIZES {
        for policy in POLICIES {
            let ratio = ratio(size, policy, &[]);
            assert!(NEAR.contains(&ratio), "{policy}: {ratio:.3} of what was planned\n{size}");
        }
    }
}

#[test]
fn so_it_is_with_streams_kept_sub_layers_again_several_passes_and_another_rule() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    for (policy, settings) in [
        ("mgr", &["memory.inversion=false"][..]),
        ("prenorm", &["memory.recompute=true"]),
        ("hc", &["memory.recompute=true"]),
        ("mgr", &["train.accumulate=3"]),
        ("prenorm", &["optimizer.hidden=adamw"]),
    ] {
        for size in SIZES {
            let ratio = ratio(size, policy, settings);
            assert!(NEAR.contains(&ratio), "{policy} {settings:?}: {ratio:.3}\n{size}");
        }
    }
}
