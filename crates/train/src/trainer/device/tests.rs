//! Steps in tensors, on the CPU: what another device does with the same operations.

use super::*;
use crate::RunConfig;
use crate::observer::{Finished, Unobserved};
use std::path::Path;

fn config(policy: &str) -> RunConfig {
    let text = "[train]\nsteps = 8\nbatch = 2\naccumulate = 2\n[model]\nd_model = 16\nn_layers = 2\nn_heads = 2\n\
         [data.generated]\ntask = \"khop\"\nlength = 24\n[schedule]\nwarmup_steps = 2\n\
         [checkpoint]\nevery_steps = 0\n";
    let layers = crate::ConfigLayers::default().with_toml(text, "test").unwrap();
    layers.with_residual(&policy.parse().unwrap()).unwrap().finish().unwrap()
}

/// Moves a run to tensors.
fn in_tensors(mut trainer: Trainer) -> Trainer {
    let device = trainer.decoder.device();
    trainer.on_device = Some(DeviceOptimizer::of(&trainer.optimizer, &device));
    trainer
}

/// Keeps losses, and asks the run to stop after some steps.
#[derive(Default)]
struct Seen<'a> {
    losses: Vec<f64>,
    stop: Option<(u64, &'a AtomicBool)>,
}

impl Observer for Seen<'_> {
    fn stepped(&mut self, report: &StepReport) {
        self.losses.push(report.loss);
        if let Some((at, stop)) = self.stop {
            stop.store(report.step >= at, Ordering::Relaxed);
        }
    }
}

/// Trains to the end, or to a step, and returns the losses.
fn run(trainer: &mut Trainer, to: Option<u64>) -> Vec<f64> {
    let stop = AtomicBool::new(false);
    let mut seen = Seen { stop: to.map(|step| (step, &stop)), ..Seen::default() };
    let finished = trainer.run(&mut seen, &stop).unwrap();
    assert_eq!(matches!(finished, Finished::Interrupted { .. }), to.is_some());
    seen.losses
}

fn close(one: &[f64], other: &[f64], what: &str) {
    assert_eq!(one.len(), other.len(), "{what}");
    for (one, other) in one.iter().zip(other) {
        assert!((one - other).abs() < 1e-4, "{what}: {one} {other}");
    }
}

#[test]
fn a_run_in_tensors_learns_as_one_in_vectors_and_may_change_from_one_to_the_other() {
    let place = tempfile::tempdir().unwrap();
    for policy in ["prenorm", "nag", "mgr:streams=2"] {
        let place = |name: &str| place.path().join(format!("{policy}-{name}"));
        let create = |name: &str| Trainer::create(config(policy), &place(name)).unwrap();
        let vectors = run(&mut create("vectors"), None);
        let tensors = run(&mut in_tensors(create("tensors")), None);
        close(&vectors, &tensors, policy);
        let mut both = run(&mut in_tensors(create("both")), Some(4));
        both.extend(run(&mut Trainer::resume(&place("both")).unwrap(), None));
        close(&vectors, &both, policy);
    }
}

#[test]
fn a_run_in_tensors_that_was_stopped_ends_with_the_same_bits() {
    let place = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| place.path().join(name));
    let create = |out: &Path| in_tensors(Trainer::create(config("hc:streams=2"), out).unwrap());
    let mut trainer = create(&whole);
    run(&mut trainer, None);
    run(&mut create(&parts), Some(3));
    let mut resumed = in_tensors(Trainer::resume(&parts).unwrap());
    assert_eq!(resumed.step(), 3);
    run(&mut resumed, None);
    assert_eq!(resumed.decoder.parameters(), trainer.decoder.parameters());
    for trainer in [&mut trainer, &mut resumed] {
        trainer.bring_to_host().unwrap();
    }
    assert_eq!(resumed.optimizer.slots(), trainer.optimizer.slots());
}

#[test]
fn numbers_that_are_none_go_back_to_the_last_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let mut config = config("prenorm");
    config.failure.on_failure = crate::OnFailure::Rollback;
    config.checkpoint.every_steps = 2;
    let mut trainer = in_tensors(Trainer::create(config, place.path()).unwrap());
    run(&mut trainer, Some(2));
    let kept = trainer.decoder.parameters();
    trainer.decoder.change_parameters(|_, values| values.fill(f32::NAN));
    let none = AtomicBool::new(false);
    assert_eq!(trainer.device_step(&mut Unobserved, &none).unwrap(), None);
    assert_eq!((trainer.step(), trainer.decoder.parameters()), (2, kept));
    trainer.device_step(&mut Unobserved, &none).unwrap().unwrap();
}

#[test]
fn a_device_that_is_not_here_is_refused_before_there_is_a_folder() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    for name in hadal_model::DEVICES.into_iter().filter(|name| *name != hadal_model::CPU) {
        if hadal_model::device_named(name).is_ok() {
            continue;
        }
        let mut config = config("prenorm");
        config.train.device = name.into();
        let error = Trainer::create(config, &out).err().unwrap();
        assert!(error.is_usage() && error.to_string().contains(name), "{error}");
        assert!(!out.exists());
    }
}
