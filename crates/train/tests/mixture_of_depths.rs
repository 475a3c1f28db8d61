//! Mixture-of-Depths learns two things at once: which tokens are worth a block, and to predict that from each token
//! alone.

use hadal_model::{Decoder, Device, Pass, load};
use hadal_residual::{Recorder, Signal, StepMode};
use hadal_train::{ConfigLayers, Finished, Observer, RunConfig, StepReport, Trainer};
use std::sync::atomic::AtomicBool;

/// Half of the tokens run, so that guessing at random, always or never agrees with half of the choices.
const SETTINGS: &str = r#"
    [train]
    steps = 150
    batch = 8
    [model]
    d_model = 32
    n_layers = 4
    n_heads = 2
    [residual]
    kind = "prenorm"
    capacity = 0.5
    [data.generated]
    task = "khop"
    k = 1
    [optimizer.adamw]
    lr = 3e-3
    [schedule]
    warmup_steps = 10
    [eval]
    every_steps = 0
    batches = 4
"#;

/// Remembers the losses of training.
#[derive(Default)]
struct Losses(Vec<f64>);

impl Observer for Losses {
    fn stepped(&mut self, report: &StepReport) {
        self.0.push(report.loss);
    }
}

/// Share of held-out tokens and routed blocks where the predictor agrees with the router.
fn agreement(decoder: &Decoder, config: &RunConfig) -> f32 {
    let batch = config.open_feed().unwrap().held_out(0, 16).unwrap();
    let mut probe = Recorder::of(&[Signal::Agreement]);
    decoder.logits(&batch.input, Pass { probe: Some(&mut probe), ..Pass::default() }).unwrap();
    assert_eq!(probe.seen.len(), 2, "blocks 1 and 3 are routed");
    let shares = probe.seen.iter().map(|(_, _, agree)| agree.clone().mean().into_scalar::<f32>());
    shares.sum::<f32>() / 2.0
}

#[test]
fn predictors_learn_what_routers_choose_and_evaluation_uses_them() {
    let folder = tempfile::tempdir().unwrap();
    let config = ConfigLayers::default().with_toml(SETTINGS, "the test").unwrap().finish().unwrap();
    let mut trainer = Trainer::create(config.clone(), &folder.path().join("run")).unwrap();
    let fresh = Decoder::fresh(trainer.model(), config.seed, &Device::flex()).unwrap();
    let before = agreement(&fresh, &config);

    let mut losses = Losses::default();
    let finished = trainer.run(&mut losses, &AtomicBool::new(false)).unwrap();
    let Finished::Done { model, evaluation } = finished else { panic!("the run was interrupted") };
    let decoder = load(&model, &Device::flex()).unwrap().decoder;
    let after = agreement(&decoder, &config);
    assert!(after > 0.8 && after > before + 0.1, "agreement went from {before} to {after}");
    let last = losses.0[140..].iter().sum::<f64>() / 10.0;
    assert!(last < losses.0[0] - 0.2, "the loss went from {} to {last}", losses.0[0]);

    // The evaluation is that of the saved model as it is used, not of the top k.
    let batches = |mode: &StepMode| {
        let feed = config.open_feed().unwrap();
        let loss = |i: u64| {
            let batch = feed.held_out(8 * i, 8).unwrap();
            let pass = Pass { mode, ..Pass::default() };
            let loss = decoder.loss(&batch.input, &batch.target, &batch.scored, pass);
            f64::from(loss.unwrap().into_scalar::<f32>())
        };
        (0..4).map(loss).sum::<f64>() / 4.0
    };
    let in_use = batches(&StepMode::default());
    assert!((in_use - evaluation.loss).abs() < 1e-4, "{in_use} is not {}", evaluation.loss);
    let learning = batches(&StepMode { learning: true, ..StepMode::default() });
    assert!((learning - in_use).abs() > 1e-4, "the top k decided in both");
}
