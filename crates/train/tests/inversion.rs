//! Streams that are computed backwards, in a deep model that has learned something: its gates are no longer
//! where they started.

use hadal_model::{Decoder, Device, Pass, Tokens, load};
use hadal_residual::Memory;
use hadal_train::{ConfigLayers, Finished, Observer, Trainer};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

const SETTINGS: &str = r#"
    [train]
    steps = 200
    batch = 2
    [model]
    d_model = 16
    n_layers = 24
    n_heads = 2
    [residual]
    kind = "mgr"
    streams = 4
    gate = "competitive"
    [data.generated]
    task = "khop"
    k = 1
    [optimizer.adamw]
    lr = 3e-3
    [schedule]
    warmup_steps = 10
    [eval]
    every_steps = 0
    batches = 1
"#;

struct Nobody;

impl Observer for Nobody {}

fn gradients(
    decoder: &Decoder,
    tokens: &Tokens,
    targets: &Tokens,
    memory: Memory,
) -> BTreeMap<String, Vec<f32>> {
    let pass = Pass { memory, ..Pass::default() };
    let loss = decoder.loss(tokens, targets, &[], pass).unwrap();
    decoder.gradients(loss.backward()).into_iter().collect()
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| value.abs().max(most))
}

#[test]
fn gradients_of_a_trained_model_of_24_blocks_agree_with_those_of_kept_streams() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let config = ConfigLayers::default().with_toml(SETTINGS, "the test").unwrap().finish().unwrap();
    let mut trainer = Trainer::create(config, &out).unwrap();
    let finished = trainer.run(&mut Nobody, &AtomicBool::new(false)).unwrap();
    let Finished::Done { model, .. } = finished else { panic!("the run was interrupted") };

    let device = Device::flex().autodiff();
    let mut decoder = load(&model, &device).unwrap().decoder;
    inversion_agrees(&decoder, "as trained");

    // One write, in the middle, that is much larger than what it is written to: as massive activations are.
    for times in [1e2, 1e4, 1e6] {
        let mut found = false;
        decoder.change_parameters(|name, values| {
            if name.starts_with("layers.11.mlp.down") {
                found = true;
                values.iter_mut().for_each(|value| *value *= 100.0);
            }
        });
        assert!(found, "no matrix has been changed");
        inversion_agrees(&decoder, &format!("one write x {times}"));
    }
}

fn inversion_agrees(decoder: &Decoder, name: &str) {
    let vocabulary = decoder.config().vocab_size as u32;
    let text = |by: u32| -> Tokens {
        Tokens::rows((0..64).map(|i| (i * i * by + i) % vocabulary).collect(), 4).unwrap()
    };
    let with = |kept_share| {
        let memory = Memory { kept_share, recompute: false };
        gradients(decoder, &text(7), &text(11), memory)
    };
    let exact = with(None);
    let most = exact.values().map(|g| largest(g)).fold(0.0, f32::max);
    for share in [0.0, 0.01] {
        let inverted = with(Some(share));
        assert_eq!(inverted.len(), exact.len());
        for (parameter, exact) in &exact {
            // What is a thousandth of the largest gradient is mostly the rounding of larger ones.
            let scale = largest(exact).max(1e-3 * most);
            let error = inverted[parameter].iter().zip(exact).map(|(i, e)| (i - e).abs());
            let error = error.fold(0.0, f32::max) / scale;
            assert!(error < 1e-4, "{name}, keeping {share}: {parameter} is off by {error:.1e}");
        }
    }
}
