use super::testing::{model, run};
use super::*;
use hadal_model::{Device, Pass};
use hadal_residual::{StepMode, Thresholds};

fn skipper(residual: &str, settings: &[&str]) -> Skipper {
    let settings = [&["train.steps=200"], settings].concat();
    Skipper::new(&run(residual, &settings), &model(residual), 16).unwrap().unwrap()
}

/// A model, data for it, and where its skipping starts.
fn begun(residual: &str, settings: &[&str]) -> (Decoder, Batch, Skipper, SkipState) {
    let config = run(residual, settings);
    let feed = config.open_feed().unwrap();
    let model = config.model.resolve(&config.residual, feed.vocab_size(), feed.seq_len());
    let decoder = Decoder::fresh(&model, 3, &Device::flex()).unwrap();
    let batch = feed.train(0, 4).unwrap();
    let skipper = Skipper::new(&config, &model, feed.seq_len()).unwrap().unwrap();
    let state = skipper.start(&decoder, &batch).unwrap();
    (decoder, batch, skipper, state)
}

/// Which tokens run what in the first batch under these thresholds.
fn tally(decoder: &mut Decoder, batch: &Batch, thresholds: Thresholds) -> Tally {
    decoder.set_skipping(Some(Skipping { thresholds, ..Skipping::below(0.0) })).unwrap();
    let mut tally = Tally::default();
    let pass = Pass { tally: Some(&mut tally), ..Pass::default() };
    decoder.loss(&batch.input, &batch.target, &batch.scored, pass).unwrap();
    tally
}

#[test]
fn at_the_start_nobody_skips_and_a_little_more_skips_somebody() {
    for residual in ["nag", "mgr:streams=3"] {
        for per in ["skip.per=model", "skip.per=kind", "skip.per=layer"] {
            let (mut decoder, batch, skipper, state) = begun(residual, &[per]);
            let each = state.controller.thresholds();
            let at = |factor: f64| {
                let each: Vec<f64> = each.iter().map(|threshold| factor * threshold).collect();
                skipper.scopes.thresholds(&each, true)
            };
            let before = tally(&mut decoder, &batch, at(0.999));
            assert_eq!(before, before.dense(), "{residual} {per}");
            let after = tally(&mut decoder, &batch, at(1.001));
            let skipped = after.skipped_share(decoder.config());
            assert!(skipped > 0.0, "{residual} {per}: {skipped}");
        }
    }
}

#[test]
fn a_course_begins_densely_and_carefully_and_can_end_with_the_hard_rule() {
    let settings = ["train.steps=100", "skip.kv=drop", "skip.harden=0.1"];
    let (_, _, skipper, state) = begun("nag", &settings);
    assert_eq!(skipper.skipping(&state, 0, 1.0), None);
    let early = skipper.skipping(&state, 1, 0.5).unwrap();
    let Thresholds::PerSite(each) = &early.thresholds else { panic!("{early:?}") };
    let tau = state.controller.thresholds()[0];
    assert_eq!(each[..3], [0.0, 0.0, 0.5 * tau]);
    assert_eq!((early.shrink, early.keys), (1.0, hadal_residual::SkippedKeys::Drop));
    let end = skipper.skipping(&state, 100, 1.0).unwrap();
    assert_eq!((end.thresholds, end.shrink), (Thresholds::One(tau), 0.0));
}

#[test]
fn a_rate_of_zero_never_skips() {
    let (_, _, skipper, state) = begun("mgr", &["train.steps=100", "skip.rate=0"]);
    assert!((0..=100).all(|step| skipper.skipping(&state, step, 1.0).is_none()));
    assert_eq!(skipper.mean_rate(), 0.0);
}

/// The gates of a model that does not learn stay, so the rate must settle at its target.
#[test]
fn the_rate_of_real_passes_follows_the_target() {
    for (residual, per) in [("nag", "skip.per=model"), ("nag", "skip.per=layer")] {
        let settings = [per, "train.steps=120", "skip.rate=0.4", "skip.gate=hard"];
        let (mut decoder, batch, skipper, mut state) = begun(residual, &settings);
        let mut reports = Vec::new();
        for step in 0..120 {
            let mode = StepMode { forced: skipper.forced(&state, step), ..StepMode::default() };
            decoder.set_skipping(skipper.skipping(&state, step, 1.0)).unwrap();
            let mut tally = Tally::default();
            let pass = Pass { mode: &mode, tally: Some(&mut tally), ..Pass::default() };
            decoder.loss(&batch.input, &batch.target, &batch.scored, pass).unwrap();
            reports.push(skipper.learn(&mut state, step, &tally));
        }
        assert_eq!(reports[0], SkipReport { rate: 0.0, target: 0.0, threshold: 0.0 });
        let mean = reports[80..].iter().map(|report| report.rate).sum::<f64>() / 40.0;
        assert!((mean - 0.4).abs() < 0.03, "{residual} {per}: {mean}");
        assert!((reports[119].target - 0.4).abs() < 1e-12);
    }
}

#[test]
fn the_forced_change_with_step_and_seed_and_with_nothing_else() {
    let (_, _, skipper, mut state) = begun("nag", &["skip.guard_steps=1"]);
    let mut dead = Tally::everybody(&skipper.model, 2, 16);
    dead.sites[5].ran = 0;
    assert!(skipper.forced(&state, 3).shares.is_empty());
    skipper.learn(&mut state, 3, &dead);
    let forced = skipper.forced(&state, 4);
    assert_eq!(forced.shares, [0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0]);
    assert_eq!(forced, skipper.forced(&state, 4));
    assert_ne!(forced.seed, skipper.forced(&state, 5).seed);
    let other = Skipper { seed: 9, ..skipper };
    assert_ne!(forced.seed, other.forced(&state, 4).seed);
}

#[test]
fn what_the_model_cannot_do_is_refused_before_it_starts() {
    let complaint = |residual: &str, settings: &[&str], model: ModelConfig| {
        Skipper::new(&run(residual, settings), &model, 16).unwrap_err().to_string()
    };
    let said = complaint("mgr:streams=4", &["skip.rate=0.8"], model("mgr:streams=4"));
    assert!(said.contains("skip.rate is 0.8: the first 3 sub-layers always run"), "{said}");
    let depth_kv = hadal_model::DepthKv::Attention;
    let slots = ModelConfig { depth_kv, ..model("nag") };
    let said = complaint("nag", &["skip.kv=drop"], slots);
    assert!(said.contains("to \"keep\""), "{said}");
}

/// Half of the sub-layers are protected for a tenth of the run, while the target rises.
#[test]
fn what_a_run_saves_follows_from_its_course() {
    let skipper = skipper("nag", &[]);
    let expected = 0.25 * (0.05 * 0.5 + 0.9);
    assert!((skipper.mean_rate() - expected).abs() < 1e-12, "{}", skipper.mean_rate());
    let config = run("nag", &[]);
    let saved = saved_flops_per_token(&config, &model("nag"), 16).unwrap();
    // Queries, outputs and an MLP of four times the width, and two products for each key.
    let all = 4.0 * (4.0 * 64.0 * 64.0 + 4.0 * 64.0 * 8.5 + 16.0 * 64.0 * 64.0);
    assert!((saved - expected * all).abs() < 1e-6 * all, "{saved}");
    let config = RunConfig { skip: None, ..config };
    assert_eq!(saved_flops_per_token(&config, &model("nag"), 16).unwrap(), 0.0);
}
