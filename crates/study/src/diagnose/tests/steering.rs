//! Surgery on mixers, and streams that are held and rescued.

use super::*;
use crate::diagnose::steer::{Steer, everywhere, top};
use burn::tensor::{Tensor, TensorData};
use hadal_model::Pass;
use hadal_residual::{Place, Signal, Site};
use hadal_train::quality::{losses, mean_loss};

/// Two streams of one block with static weights.
fn two_streams(pre: [f32; 2], res: [f32; 4], post: [f32; 2]) -> Decoder {
    model(&config("hc:streams=2,dynamic=false", 2), move |name, _| {
        Some(match name.rsplit('.').next()? {
            "pre" => pre.to_vec(),
            "res" => res.to_vec(),
            "post" => post.to_vec(),
            _ => return None,
        })
    })
}

const APART: [f32; 4] = [1.0, 0.0, 0.0, 1.0];
const MIXED: [f32; 4] = [0.8, 0.2, 0.3, 0.7];

fn asked(decoder: &Decoder) -> Steerable {
    steer::steerable(&decoder.valid(), Variant::default()).unwrap()
}

fn operated(decoder: &Decoder, batch: &Batch) -> SurgerySummary {
    let mut summary = Summary::default();
    let surgery = Surgery::new(decoder.config().n_layers, asked(decoder));
    seen(decoder, batch, surgery).tell(&mut summary);
    summary.surgery.unwrap()
}

fn rescued(decoder: &Decoder, batch: &Batch) -> RescueSummary {
    let mut summary = Summary::default();
    let rescue = Rescue::new(decoder.config().n_layers, asked(decoder));
    seen(decoder, batch, rescue).tell(&mut summary);
    summary.rescue.unwrap()
}

#[test]
fn only_policies_with_streams_are_steered() {
    assert_eq!(asked(&fresh(&config("prenorm", 2))), Steerable::default());
    let mixed = Steerable { streams: 3, mixes: true };
    assert_eq!(asked(&fresh(&config("mhc:streams=3", 2))), mixed);
}

#[test]
fn steering_that_changes_nothing_changes_nothing() {
    let decoder = model(&config("mhc", 2), |_, _| None).valid();
    let batch = batch(2, 7);
    let plain = mean_loss(&decoder, &batch, Pass::default()).unwrap();
    let mut calls = 0;
    let mut probe = Steer(|_, _, value| {
        calls += 1;
        value
    });
    let steered =
        mean_loss(&decoder, &batch, Pass { probe: Some(&mut probe), ..Pass::default() }).unwrap();
    assert_close(steered, plain, 1e-6);
    // Reading, mixing, writing and streams of four sub-layers.
    assert_eq!(calls, 16);
}

#[test]
fn a_mixer_replaced_by_the_identity_is_a_model_with_the_identity() {
    let batch = batch(3, 7);
    let whole = two_streams([0.6, 0.4], MIXED, [1.2, 0.5]);
    let found = operated(&whole, &batch);
    let apart = two_streams([0.6, 0.4], APART, [1.2, 0.5]);
    let expected = mean_loss(&apart.valid(), &batch, Pass::default()).unwrap() - found.loss;
    let identity = found.identity.unwrap();
    assert_close(identity.all, expected, 1e-5);
    assert!(expected.abs() > 1e-3 && identity.sites.len() == 4);
    // All streams are equal before the first sub-layer, and R's rows do not add up to one here.
    assert!(identity.sites.iter().any(|change| change.abs() > 1e-4), "{identity:?}");
    // Static mixers are their own mean.
    let mean = found.mean.unwrap();
    for change in [mean.all, mean.early, mean.late].into_iter().chain(mean.sites) {
        assert!(change.abs() < 1e-6, "{change}");
    }
}

#[test]
fn halves_make_a_whole_and_weights_that_are_zero_are_not_missed() {
    let batch = batch(3, 7);
    let found = operated(&two_streams([0.0, 1.0], MIXED, [0.7, 0.0]), &batch);
    assert_eq!(found.top.len(), 1);
    for change in found.top[0] {
        assert!(change.abs() < 1e-6, "{:?}", found.top);
    }
    let both = operated(&two_streams([0.5, 1.0], MIXED, [0.7, 0.4]), &batch);
    assert!(both.top[0].iter().all(|change| change.abs() > 1e-4), "{:?}", both.top);
    let (words, _) = both.sentence().unwrap();
    assert!(words.starts_with("Mixers at the identity cost"), "{words}");
}

#[test]
fn the_largest_weights_stay_and_of_equals_the_first() {
    let device = Device::flex();
    let tensor =
        |values: Vec<f32>| Tensor::<4>::from_data(TensorData::new(values, [1, 2, 3, 1]), &device);
    let kept = top(tensor(vec![0.1, -0.5, 0.3, 0.2, 0.2, 0.2]), 2).unwrap();
    let kept: Vec<f32> = kept.try_into_vec_as().unwrap();
    assert_eq!(kept, [0.0, -0.5, 0.3, 0.2, 0.2, 0.0]);
    let like = Tensor::<4>::zeros([1, 2, 2, 2], &device);
    let matrix: Vec<f32> = everywhere(&[1.0, 2.0, 3.0, 4.0], &like).try_into_vec_as().unwrap();
    assert_eq!(matrix, [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn without_any_stream_nothing_is_predicted() {
    let batch = batch(3, 7);
    let decoder = two_streams([0.6, 0.4], MIXED, [1.2, 0.5]);
    let found = rescued(&decoder, &batch);
    // Zero logits: KL(p, uniform) = ln V - H(p).
    let vocabulary = decoder.config().vocab_size as f64;
    let logits = decoder.valid().logits(&batch.input, Pass::default()).unwrap();
    let logits: Vec<f32> = logits.try_into_vec_as().unwrap();
    let entropy = |row: &[f32]| {
        let exp: Vec<f64> = row.iter().map(|&x| f64::from(x).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.iter().map(|e| -(e / sum) * (e / sum).ln()).sum::<f64>()
    };
    let rows = logits.chunks(decoder.config().vocab_size);
    let expected = rows.map(|row| vocabulary.ln() - entropy(row)).sum::<f64>() / 21.0;
    assert_eq!(found.pairs.len(), 1);
    assert_close(found.pairs[0].together, expected, 1e-4);
    assert_close(found.pairs[0].apart, found.zero[0] + found.zero[1], 1e-12);
    assert_eq!((found.from, found.zero.len(), found.mean.len()), (2, 2, 2));
    assert!(found.zero.iter().all(|kl| *kl > 1e-4), "{found:?}");
}

#[test]
fn streams_that_never_meet_cannot_rescue_each_other() {
    let batch = batch(3, 7);
    // The second stream is the embedding, read by the head alone.
    let apart = rescued(&two_streams([1.0, 0.0], APART, [1.0, 0.0]), &batch);
    assert_close(apart.rescued[0][1].unwrap(), 0.0, 1e-5);
    assert_close(apart.rescued[1][0].unwrap(), 0.0, 1e-5);
    assert_eq!(apart.rescued[0][0], None);
    // It is read, too: the first stream feels what becomes of it, and not the other way round.
    let fed = rescued(&two_streams([1.0, 1.0], APART, [1.0, 0.0]), &batch);
    assert!(fed.rescued[1][0].unwrap().abs() > 0.01, "{fed:?}");
    assert_close(fed.rescued[0][1].unwrap(), 0.0, 1e-5);
    assert_close(fed.asymmetry.unwrap(), fed.rescued[1][0].unwrap().abs(), 1e-4);
    let (words, _) = fed.sentence().unwrap();
    assert!(words.starts_with("Predictions hang most on stream"), "{words}");
}

/// Weights that depend on the streams stay those of the clean run.
#[test]
fn routing_is_frozen_while_a_stream_is_held() {
    let decoder = model(&config("mhc:streams=2", 2), |name, shape| {
        let count = shape.iter().product();
        name.starts_with("residual.").then(|| normal(name, 9, count, 0.5))
    });
    let plain = decoder.valid();
    let batch = batch(2, 5);
    let found = rescued(&decoder, &batch);
    // The same by hand: the first run keeps the weights, the second takes them.
    let mut kept = std::collections::HashMap::new();
    let mut keep = Steer(|place, signal, value: Tensor<4>| {
        kept.insert((place, signal), value.clone());
        value
    });
    let pass = Pass { probe: Some(&mut keep), ..Pass::default() };
    let clean = plain.logits(&batch.input, pass).unwrap();
    let mut hold = Steer(|place, signal, value: Tensor<4>| match (place, signal) {
        (Place::Site(Site { index }), Signal::Streams) if index >= 1 => {
            let [b, t, _, d] = value.dims();
            Tensor::cat(
                vec![Tensor::zeros([b, t, 1, d], &value.device()), value.narrow(2, 1, 1)],
                2,
            )
        }
        (_, Signal::Streams) => value,
        _ => kept[&(place, signal)].clone(),
    });
    let pass = Pass { probe: Some(&mut hold), ..Pass::default() };
    let held = plain.logits(&batch.input, pass).unwrap();
    let whole =
        crate::prune::Whole::of(clean.try_into_vec_as().unwrap(), plain.config().vocab_size);
    let kl = whole.divergence(&held.clone().try_into_vec_as::<f32>().unwrap(), &batch) / 10.0;
    assert_close(found.zero[0], kl, 1e-6);
    assert!(kl > 1e-5 && losses(held, &batch.target).unwrap().len() == 10);
}
