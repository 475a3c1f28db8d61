//! Small models whose gates are ajar.

use super::*;
use crate::{Samples, Subject};
use burn::module::Module;
use hadal_data::Batch;
use hadal_model::{
    Decoder, DepthKv, Device, ModelConfig, Pass, Saving, Tally, Tokens, load, read_config,
};
use hadal_residual::{Init, Site, Skipping, StepMode, Thresholds, Weights};
use std::fs;

fn config(residual: &str) -> ModelConfig {
    ModelConfig { vocab_size: 499, residual: residual.parse().unwrap(), ..ModelConfig::tiny() }
}

fn decoder(residual: &str) -> Decoder {
    let mut stored = |name: &str, shape: &[usize]| {
        let (mean, std) = match name.rsplit('.').next() {
            Some("alpha" | "sharpness") => (0.6, 0.1),
            _ if name.contains("norm") => (1.0, 0.2),
            _ if shape.len() == 2 => (0.0, 1.0 / (shape[1] as f64).sqrt()),
            _ => (0.0, 0.6),
        };
        let mut weights = Weights::fresh(7, &Device::flex());
        let values = weights.param(name, [shape.iter().product()], Init::Normal { std }).val();
        (values + mean).try_into_vec_as().ok()
    };
    Decoder::stored(&config(residual), &mut stored, &Device::flex().autodiff()).unwrap()
}

/// No token occurs twice: gates of the first sub-layer depend on the token alone, and a threshold cannot separate equal
/// ones.
fn ids(from: usize, count: usize) -> Vec<u32> {
    (from..from + count).map(|i| (37 * i % 499) as u32).collect()
}

fn batch(from: usize, rows: usize, time: usize) -> Batch {
    let tokens = || Tokens::rows(ids(from, rows * time), rows).unwrap();
    Batch { input: tokens(), target: tokens(), scored: Vec::new() }
}

fn samples(rows: usize, time: usize) -> Samples<'static> {
    Samples::tokens(ids(0, rows * time + 1), time)
}

fn subject(residual: &str) -> Subject {
    let decoder = decoder(residual);
    Subject {
        name: "a".into(),
        path: "a".into(),
        step: None,
        decoder,
        config: None,
        mode: StepMode::default(),
        absent: Vec::new(),
    }
}

/// What is skipped when no probe watches.
fn tally(decoder: &Decoder, batches: &[Batch]) -> Tally {
    let mut tally = Tally::default();
    for batch in batches {
        let pass = Pass { tally: Some(&mut tally), ..Pass::default() };
        decoder.logits(&batch.input, pass).unwrap();
    }
    tally
}

fn silent() -> impl FnMut(usize, usize, &str) {
    |_, _, _| {}
}

const SCOPES: [SkipPer; 3] = [SkipPer::Model, SkipPer::Kind, SkipPer::Layer];

/// Oracle M7.
#[test]
fn a_share_is_met_to_the_weight_of_one_token_at_one_sub_layer() {
    let batches = [batch(0, 6, 20), batch(120, 5, 20)];
    for policy in ["nag:directions=3", "mgr:streams=2", "mgr:streams=3,gate=independent"] {
        for keys in [SkippedKeys::Keep, SkippedKeys::Drop] {
            for (scope, shrink) in SCOPES.into_iter().zip([0.0, 1.0, 0.0]) {
                for rate in [0.0, 0.1, 0.25, 0.5] {
                    let mut decoder = decoder(policy).valid();
                    let aim = Aim { rate, scope, shrink, keys };
                    calibrated(&mut decoder, &StepMode::default(), &batches, &aim, &mut |_| {})
                        .unwrap();
                    let (found, config) = (tally(&decoder, &batches), decoder.config());
                    let share = found.skipped_share(config);
                    let heaviest = (0..6).map(|site| {
                        let Saving { token, key, own_key } = Saving::of(config, Site::new(site));
                        token + own_key + 20 * key
                    });
                    let skippable = (found.dense().depth_flops(config)
                        - everybody_skips(&decoder, &batches).depth_flops(config))
                        as f64;
                    let grain = heaviest.max().unwrap() as f64 / skippable;
                    assert!(
                        (share - rate).abs() <= grain,
                        "{policy} {keys:?} {scope:?}: {share} is not {rate} within {grain}"
                    );
                }
            }
        }
    }
}

/// The same with a threshold that no gate reaches. Keys that no token asks for are not part of what is skipped.
fn everybody_skips(decoder: &Decoder, batches: &[Batch]) -> Tally {
    let mut decoder = decoder.clone();
    let own = decoder.config().residual.skipping().unwrap();
    let everybody = Skipping { thresholds: Thresholds::One(1e9), ..own.clone() };
    decoder.set_skipping(Some(everybody)).unwrap();
    let mut tally = tally(&decoder, batches);
    for (index, site) in tally.sites.iter_mut().enumerate() {
        if own.keys == SkippedKeys::Keep && index % 2 == 0 {
            site.keyed = tally.tokens;
        }
    }
    tally
}

#[test]
fn thresholds_of_layers_let_every_layer_skip_alike() {
    let (batches, rate) = ([batch(0, 8, 20)], 0.3);
    let mut decoder = decoder("nag:directions=3").valid();
    let aim = Aim { rate, scope: SkipPer::Layer, shrink: 0.0, keys: SkippedKeys::Keep };
    calibrated(&mut decoder, &StepMode::default(), &batches, &aim, &mut |_| {}).unwrap();
    let found = tally(&decoder, &batches);
    // Late tokens weigh more at attention, so shares of tokens agree only roughly there.
    for site in 0..6 {
        let (skipped, slack) = (found.skipped_at(Site::new(site)), [0.06, 0.02][site % 2]);
        assert!((skipped - rate).abs() < slack, "sub-layer {site}: {skipped}");
    }
}

#[test]
fn gates_that_cannot_be_told_apart_are_reported_as_they_are() {
    // Fresh MGR has the same gates for every token.
    let decoder = Decoder::fresh(&config("mgr:streams=2"), 3, &Device::flex()).unwrap();
    let mut decoder = decoder.valid();
    let aim = Aim { rate: 0.3, scope: SkipPer::Model, shrink: 0.0, keys: SkippedKeys::Keep };
    calibrated(&mut decoder, &StepMode::default(), &[batch(0, 3, 9)], &aim, &mut |_| {}).unwrap();
    let share = tally(&decoder, &[batch(0, 3, 9)]).skipped_share(decoder.config());
    assert!(share == 0.0 || share > 0.6, "{share}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_read() {
    let refused = |policy: &str, rate: f64| {
        let error = calibrate(
            &subject(policy),
            &samples(4, 9),
            rate,
            &Options::default(),
            &mut |_, _, _| {},
        );
        let error = error.unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    };
    for rate in [1.0, -0.1, 1.5, f64::NAN] {
        assert!(refused("nag", rate).contains("less than 1"));
    }
    assert!(refused("prenorm", 0.2).contains("residual policy prenorm"));
    assert!(refused("mgr:streams=2", 0.95).contains("can be skipped"));
    assert!(refused("mgr:streams=9", 0.1).contains("no sub-layer"));
    let one = sweep(
        &subject("nag"),
        &samples(1, 9),
        &[0.1],
        &Options::default(),
        Keep::default(),
        &mut silent(),
    );
    assert!(matches!(one, Err(SkipError::OneSequence)));
    let drop = Options { keys: Some(SkippedKeys::Drop), ..Options::default() };
    let mut deep = subject("nag");
    let slots = ModelConfig { depth_kv: DepthKv::Attention, ..config("nag") };
    deep.decoder = Decoder::fresh(&slots, 1, &Device::flex().autodiff()).unwrap();
    let error = calibrate(&deep, &samples(4, 9), 0.2, &drop, &mut silent()).unwrap_err();
    assert!(error.to_string().contains("depth_kv"), "{error}");
}

#[test]
fn a_model_keeps_its_gate_unless_it_is_told_otherwise() {
    let subject = subject("nag:directions=3,skip_threshold=0.2,skip_shrink=1.0,skip_kv=drop");
    let with = |options: &Options| {
        calibrate(&subject, &samples(6, 9), 0.2, options, &mut silent()).unwrap().report
    };
    let own = with(&Options::default());
    assert_eq!((own.skip_shrink, own.skip_kv), (1.0, SkippedKeys::Drop));
    assert!(own.before_skipped.skippable_flops > 0.0);
    let told = Options {
        shrink: Some(0.0),
        keys: Some(SkippedKeys::Keep),
        scope: SkipPer::Kind,
        ..Options::default()
    };
    let told = with(&told);
    assert_eq!((told.skip_shrink, told.skip_kv), (0.0, SkippedKeys::Keep));
    assert!(matches!(told.skip_threshold, Thresholds::PerKind { .. }));
    assert!((told.skipped.skippable_flops - 0.2).abs() < 0.02, "{:?}", told.skipped);
}

#[test]
fn a_calibrated_model_is_written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (folder.path().join("model"), folder.path().join("out"));
    let own = decoder("nag:directions=3");
    hadal_model::save(&own, &model).unwrap();
    fs::write(model.join("tokenizer.json"), "{}").unwrap();
    let options = Options { scope: SkipPer::Layer, ..Options::default() };
    let subject = Subject::open(&model).unwrap();
    let found = calibrate(&subject, &samples(6, 9), 0.3, &options, &mut silent()).unwrap();
    found.save(&out).unwrap();
    let read = load(&out, &Device::flex()).unwrap().decoder;
    assert_eq!(read.config().residual.to_string(), found.report.residual);
    assert_eq!(read.parameters(), own.parameters());
    assert_eq!(fs::read_to_string(out.join("tokenizer.json")).unwrap(), "{}");
    assert!(matches!(check_free(&out), Err(SkipError::Occupied { .. })));

    let weights = fs::read(model.join("model.safetensors")).unwrap();
    assert_eq!(found.write().unwrap(), model);
    assert_eq!(read_config(&model).unwrap(), *read.config());
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), weights);
    let left: Vec<_> = fs::read_dir(&model).unwrap().collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn a_sweep_starts_where_nobody_skips() {
    let subject = subject("nag:directions=3");
    let mut passes = Vec::new();
    let mut progress = |done: usize, most: usize, _: &str| passes.push((done, most));
    let rates = [0.0, 0.2, 0.5];
    let options = Options::default();
    let keep = Keep::default();
    let found = sweep(&subject, &samples(12, 9), &rates, &options, keep, &mut progress).unwrap();
    assert_eq!((found.calibration_tokens, found.tokens), (54, 54));
    let dense = &found.points[0];
    assert_eq!((dense.skipped.runs, dense.prefill.flop_ratio), (0.0, 1.0));
    let held_out = samples(12, 9).batch(0).unwrap();
    let held_out = held_out.rows(6..12);
    let (quality, _) =
        super::measure::measure(&subject.decoder.valid(), &subject.mode, &[held_out], &mut || {})
            .unwrap();
    assert_eq!(dense.quality, quality);
    for (point, rate) in found.points.iter().zip(rates) {
        // Tokens outside the calibration data skip about as much.
        assert!((point.skipped.skippable_flops - rate).abs() < 0.2, "{point:?}");
        assert!(point.tokens_per_second > 0.0 && point.dense_tokens_per_second > 0.0);
    }
    assert!(found.points[2].flops_per_token < dense.flops_per_token);
    assert!(passes.iter().all(|(done, most)| done <= most), "{passes:?}");

    let folder = tempfile::tempdir().unwrap();
    let figures = figures(&found);
    write(folder.path(), &found, &answer(&found, "run".as_ref(), None)).unwrap();
    for figure in &figures {
        for extension in ["json", "csv", "svg", "png"] {
            let file = folder.path().join(format!("{}.{extension}", figure.name));
            assert!(fs::metadata(&file).unwrap().len() > 50, "{}", file.display());
        }
    }
    let page = fs::read_to_string(folder.path().join("sweep.html")).unwrap();
    assert!(figures.iter().all(|figure| page.contains(&figure.name)));
    assert!(folder.path().join("about/sweep.json").is_file());
}

#[test]
fn only_scored_positions_count() {
    let decoder = decoder("nag:directions=3").valid();
    let all = batch(0, 4, 9);
    let (whole, _) = super::measure::measure(
        &decoder,
        &StepMode::default(),
        std::slice::from_ref(&all),
        &mut || {},
    )
    .unwrap();
    let scored: Vec<bool> = (0..36).map(|place| place % 2 == 0).collect();
    let halves = [scored.clone(), scored.iter().map(|scored| !scored).collect()].map(|scored| {
        let half = Batch { scored, ..all.clone() };
        super::measure::measure(&decoder, &StepMode::default(), &[half], &mut || {}).unwrap().0
    });
    let mean = |get: fn(&super::Quality) -> f64| (get(&halves[0]) + get(&halves[1])) / 2.0;
    assert!((mean(|quality| quality.loss) - whole.loss).abs() < 1e-6);
    assert!((mean(|quality| quality.accuracy) - whole.accuracy).abs() < 1e-9);
    assert_ne!(halves[0].loss, halves[1].loss);
}

#[test]
fn a_sweep_that_was_stopped_goes_on_and_nothing_is_measured_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sweep.measured");
    let keep = Keep { path: Some(&path), force: false };
    let options = Options::default();
    let run = |policy: &str, data: &Samples, rates: &[f64], keep: Keep| {
        let mut measured = Vec::new();
        let mut progress = |_: usize, _: usize, note: &str| {
            let (rate, what) = note.split_once(": ").unwrap();
            if what == "measuring" {
                measured.push(rate.to_owned());
            }
        };
        let found = sweep(&subject(policy), data, rates, &options, keep, &mut progress);
        (found, measured)
    };
    let (first, _) = run("nag:directions=3", &samples(12, 9), &[0.0, 0.3], keep);
    let (both, measured) = run("nag:directions=3", &samples(12, 9), &[0.3, 0.1, 0.0], keep);
    assert_eq!(measured, ["rate 0.1"]);
    // To the bit, clock included.
    let (first, both) = (first.unwrap(), both.unwrap());
    assert_eq!((&both.points[2], &both.points[0]), (&first.points[0], &first.points[1]));
    assert_eq!((both.tokens, both.calibration_tokens), (first.tokens, first.calibration_tokens));
    // Other data are other points.
    let (_, measured) = run("nag:directions=3", &samples(10, 9), &[0.3], keep);
    assert_eq!(measured, ["rate 0.3"]);
    // Another model's numbers are neither used nor thrown away.
    let content = fs::read(&path).unwrap();
    let (refused, _) = run("nag:directions=2", &samples(12, 9), &[0.3], keep);
    assert!(matches!(refused, Err(SkipError::OtherMeasurements { .. })));
    assert_eq!(fs::read(&path).unwrap(), content);
    let forced = Keep { force: true, ..keep };
    let (found, measured) = run("nag:directions=2", &samples(12, 9), &[0.3], forced);
    assert_eq!((found.is_ok(), measured.len()), (true, 1));
}
