//! The number of threads changes no bit: ranks of one run may have different ones.

use hadal_residual::ResidualConfig;
use hadal_train::{ConfigLayers, Observer, RunConfig, Trainer};
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const SETTINGS: &str = r#"
    [train]
    steps = 2
    batch = 6
    [model]
    d_model = 64
    n_layers = 3
    n_heads = 2
    [data.generated]
    task = "khop"
    length = 48
    [eval]
    batches = 1
    [checkpoint]
    every_steps = 0
"#;

struct Nobody;

impl Observer for Nobody {}

fn config(policy: &ResidualConfig) -> RunConfig {
    let layers = ConfigLayers::default().with_toml(SETTINGS, "the test").unwrap();
    layers.with_residual(policy).unwrap().finish().unwrap()
}

/// The model after two steps with so many threads.
fn model(policy: &ResidualConfig, threads: usize, out: &Path) -> Vec<u8> {
    let config = config(policy);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let mut trainer = Trainer::create(config, out).unwrap();
        trainer.run(&mut Nobody, &AtomicBool::new(false)).unwrap();
    });
    fs::read(out.join("model/model.safetensors")).unwrap()
}

#[test]
fn any_number_of_threads_ends_with_the_same_bytes() {
    let place = tempfile::tempdir().unwrap();
    for policy in ResidualConfig::all() {
        let of =
            |threads| model(&policy, threads, &place.path().join(format!("{policy}-{threads}")));
        let one = of(1);
        for threads in [2, 3, 5] {
            assert!(of(threads) == one, "{policy}: {threads} threads");
        }
    }
}
