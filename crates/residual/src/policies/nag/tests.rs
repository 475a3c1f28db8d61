//! Oracles N1 to N14 of the norm-agnostic stream.

mod gain;
mod skipping;

use super::*;
use crate::probe::Recorder;
use crate::residual::SubLayers;
use crate::testing::{
    Stand, assert_close, assert_near, chosen, dimensions, normal, random, traverse, values, watched,
};
use burn::tensor::Device;
use hadal_kernels::{rms, turning_part};

fn dense() -> NormAgnosticConfig {
    NormAgnosticConfig { directions: 4, ..Default::default() }
}

fn skipping(threshold: f64) -> NormAgnosticConfig {
    NormAgnosticConfig { skip_threshold: Some(Thresholds::One(threshold)), ..dense() }
}

/// Embeddings as NAG's table holds them: every row has mean zero.
fn centred(shape: [usize; 3]) -> Tensor<3> {
    let embedding = normal("embedding", shape);
    embedding.clone() - embedding.mean_dim(2)
}

/// Every value of a signal, in the order of the traversal.
fn all(seen: &Recorder, signal: Signal) -> Vec<Tensor<4>> {
    let of_signal = seen.seen.iter().filter(|(_, kind, _)| *kind == signal);
    of_signal.map(|(_, _, value)| value.clone()).collect()
}

/// The vectors of the last axis in double precision, so that the checks add no rounding.
fn rows<const D: usize>(tensor: Tensor<D>) -> Vec<Vec<f64>> {
    let width = tensor.dims()[D - 1];
    let wide: Vec<f64> = values(tensor).into_iter().map(f64::from).collect();
    wide.chunks(width).map(<[f64]>::to_vec).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

/// Kahan's formula, because the arc cosine of a number near one loses half of its digits.
fn angle(a: &[f64], b: &[f64]) -> f64 {
    let (of_a, of_b) = (length(a), length(b));
    let apart: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / of_a - b / of_b).collect();
    let along: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / of_a + b / of_b).collect();
    2.0 * length(&apart).atan2(length(&along))
}

/// The lanes after the first sub-layer if it returns `output`.
fn after_one(policy: &NormAgnostic, embedding: Tensor<3>, output: Tensor<3>) -> Lanes {
    let site = Site::new(0);
    let lanes = policy.open(embedding);
    let turn = policy.read(site, &lanes, &mut Traversal::default()).ticket;
    policy.write(site, lanes, turn, output, &mut Traversal::default())
}

#[test]
fn entry_splits_the_embedding_into_direction_and_log_norm() {
    let policy = chosen(&dense(), &dimensions(2, 1), |name, _| {
        (name == "residual.log_gain").then(|| vec![0.25])
    });
    let lanes = policy.open(Tensor::from_floats([[[3.0, 4.0]]], &Device::flex()));
    let norm = 12.5f32.sqrt();
    assert_near(&values(lanes.direction), &[3.0 / norm, 4.0 / norm], 1e-6);
    assert_near(&values(lanes.log_norm), &[norm.ln() + 0.25], 1e-6);
}

#[test]
fn the_direction_has_unit_mean_square_at_every_depth() {
    let dimensions = dimensions(16, 16);
    let policy = random(&dense(), &dimensions);
    let mut seen = Recorder::of(&[Signal::Reading]);
    watched(&policy, normal("embedding", [2, 3, 16]) * 7.0, &dimensions, &mut seen);
    assert_eq!(seen.seen.len(), 33);
    for (_, _, direction) in seen.seen {
        assert_near(&values(direction.square().mean_dim(3)), &[1.0; 6], 1e-5);
    }
}

#[test]
fn the_turning_part_is_orthogonal_and_as_long_as_the_direction() {
    for r in [centred([2, 3, 16]), normal("embedding", [2, 3, 16])] {
        let r = rms(r, 0.0);
        let u = turning_part(normal("write", [2, 3, 16]) * 5.0, r.clone(), DIRECTION_EPS);
        for (u, r) in rows(u).iter().zip(rows(r)) {
            assert!(dot(u, &r).abs() < 1e-5 * 16.0, "not orthogonal: {}", dot(u, &r));
            assert!((dot(u, u) / 16.0 - 1.0).abs() < 1e-5, "length {}", length(u));
        }
    }
}

#[test]
fn a_sub_layer_turns_by_the_arc_tangent_of_its_gain() {
    let dimensions = dimensions(16, 4);
    let policy = random(&dense(), &dimensions);
    let mut seen = Recorder::of(&[Signal::Reading, Signal::Gain]);
    watched(&policy, centred([2, 3, 16]), &dimensions, &mut seen);
    let (directions, gains) = (all(&seen, Signal::Reading), all(&seen, Signal::Gain));
    for (pair, gain) in directions.windows(2).zip(gains) {
        let gains = values(gain);
        for (t, gain) in gains.into_iter().map(f64::from).enumerate() {
            let (before, after) = (&rows(pair[0].clone())[t], &rows(pair[1].clone())[t]);
            // Both are vectors of f32, whose directions are good to about 1e-7.
            assert!((angle(before, after) - gain.abs().atan()).abs() < 2e-6);
            let cosine = dot(before, after) / length(before) / length(after);
            assert!((cosine - 1.0 / (1.0 + gain * gain).sqrt()).abs() < 2e-6);
        }
    }
}

#[test]
fn the_norm_lane_grows_by_the_length_of_the_turn() {
    let dimensions = dimensions(16, 4);
    let policy = random(&dense(), &dimensions);
    let embedding = centred([2, 3, 16]);
    let mut seen = Recorder::of(&[Signal::LogNorm, Signal::Gain]);
    watched(&policy, embedding.clone(), &dimensions, &mut seen);
    let mut expected = values(policy.open(embedding).log_norm);
    for (gain, after) in all(&seen, Signal::Gain).into_iter().zip(all(&seen, Signal::LogNorm)) {
        for (s, g) in expected.iter_mut().zip(values(gain)) {
            *s += 0.5 * (1.0 + g * g).ln();
        }
        assert_near(&values(after), &expected, 1e-5);
    }
}

#[test]
fn the_lanes_carry_what_an_additive_stream_would_hold() {
    let dimensions = dimensions(16, 64);
    let policy = random(&dense(), &dimensions);
    let embedding = centred([1, 3, 16]);
    let mut seen = Recorder::of(&[Signal::Gain, Signal::Write]);
    let out = watched(&policy, embedding.clone(), &dimensions, &mut seen);

    let log_gain = f64::from(values(policy.log_gain.val())[0]);
    let mut streams = rows(embedding);
    streams.iter_mut().flatten().for_each(|x| *x *= log_gain.exp());
    // The writes are replayed: recomputing them would let rounding choose other directions.
    let (gains, writes) = (all(&seen, Signal::Gain), all(&seen, Signal::Write));
    assert_eq!(writes.len(), 128);
    for (gain, write) in gains.into_iter().zip(writes) {
        let gains = values(gain);
        for ((stream, gain), write) in streams.iter_mut().zip(gains).zip(rows(write)) {
            let mean = write.iter().sum::<f64>() / 16.0;
            let mut part: Vec<f64> = write.iter().map(|f| f - mean).collect();
            let along = dot(&part, stream) / dot(stream, stream);
            part.iter_mut().zip(&*stream).for_each(|(q, x)| *q -= along * x);
            let scale = f64::from(gain) * length(stream) / length(&part);
            stream.iter_mut().zip(part).for_each(|(x, q)| *x += scale * q);
        }
    }
    // 128 roundings of the log-norm, which is about 5, and as many of the direction.
    for (out, stream) in rows(out).iter().zip(streams) {
        for (out, x) in out.iter().zip(&stream) {
            assert!((out * 16.0 - x).abs() < 3e-5 * length(&stream), "{} is not {x}", out * 16.0);
        }
    }
}

#[test]
fn fully_open_gates_grow_the_norm_by_the_root_of_the_depth() {
    let dimensions = dimensions(8, 64);
    let policy = chosen(&dense(), &dimensions, |name, shape| {
        // Sigmoids of 100 are one, and so is every power of them.
        let value = match name.rsplit('.').next() {
            Some("bias") => 100.0,
            Some("sharpness") => 3.0,
            _ => return None,
        };
        Some(vec![value; shape.iter().product()])
    });
    let embedding = centred([1, 2, 8]);
    let entry = values(policy.open(embedding.clone()).log_norm);
    let mut seen = Recorder::of(&[Signal::LogNorm]);
    watched(&policy, embedding, &dimensions, &mut seen);
    for (n, log_norm) in all(&seen, Signal::LogNorm).into_iter().take(128).enumerate() {
        for (after, entry) in values(log_norm).into_iter().zip(&entry) {
            let ratio = f64::from(after - entry).exp();
            let expected = ((n + 2) as f64).sqrt();
            assert!((ratio / expected - 1.0).abs() < 1e-5, "{ratio} is not {expected}");
        }
    }
}

#[test]
fn the_size_of_a_write_does_not_matter() {
    let policy = random(&dense(), &dimensions(16, 1));
    let (embedding, write) = (centred([2, 3, 16]), normal("write", [2, 3, 16]));
    let plain = after_one(&policy, embedding.clone(), write.clone());
    for size in [1e-3, 37.0] {
        let scaled = after_one(&policy, embedding.clone(), write.clone() * size);
        assert_close(scaled.direction, plain.direction.clone(), 2e-6);
        assert_eq!(values(scaled.log_norm), values(plain.log_norm.clone()));
    }
}

#[test]
fn an_opposite_write_turns_the_other_way() {
    let policy = random(&dense(), &dimensions(16, 1));
    let (embedding, write) = (centred([2, 3, 16]), normal("write", [2, 3, 16]));
    let there = after_one(&policy, embedding.clone(), write.clone());
    let back = after_one(&policy, embedding.clone(), -write);
    assert_eq!(values(there.log_norm), values(back.log_norm));
    assert_ne!(values(there.direction.clone()), values(back.direction.clone()));
    // The two turns are mirror images, so the old direction lies half-way.
    let half_way = rms(there.direction + back.direction, 0.0);
    assert_close(half_way, policy.open(embedding).direction, 2e-6);
}

#[test]
fn a_constant_in_a_write_does_not_matter() {
    let policy = random(&dense(), &dimensions(16, 1));
    let (embedding, write) = (centred([2, 3, 16]), normal("write", [2, 3, 16]));
    let plain = after_one(&policy, embedding.clone(), write.clone());
    let shifted = after_one(&policy, embedding, write + 3.0);
    assert_close(shifted.direction, plain.direction, 2e-6);
    assert_eq!(values(shifted.log_norm), values(plain.log_norm));
}

#[test]
fn a_write_along_the_direction_does_not_matter() {
    let policy = random(&dense(), &dimensions(16, 1));
    let (embedding, write) = (centred([2, 3, 16]), normal("write", [2, 3, 16]));
    let plain = after_one(&policy, embedding.clone(), write.clone());
    let along = policy.open(embedding.clone()).direction * 3.0;
    let shifted = after_one(&policy, embedding, write + along);
    assert_close(shifted.direction, plain.direction, 2e-6);
    assert_eq!(values(shifted.log_norm), values(plain.log_norm));
}

#[test]
fn a_louder_embedding_only_shifts_the_norm_lane() {
    let dimensions = dimensions(16, 4);
    let policy = random(&dense(), &dimensions);
    let wanted = [Signal::Reading, Signal::LogNorm];
    let (mut quiet, mut loud) = (Recorder::of(&wanted), Recorder::of(&wanted));
    let embedding = centred([2, 3, 16]);
    let quiet_out = watched(&policy, embedding.clone(), &dimensions, &mut quiet);
    // Four is a power of two, so the directions agree bit for bit.
    let loud_out = watched(&policy, embedding * 4.0, &dimensions, &mut loud);
    for (quiet, loud) in all(&quiet, Signal::Reading).into_iter().zip(all(&loud, Signal::Reading)) {
        assert_eq!(values(quiet), values(loud));
    }
    for (quiet, loud) in all(&quiet, Signal::LogNorm).into_iter().zip(all(&loud, Signal::LogNorm)) {
        assert_close(loud, quiet + 4f64.ln(), 1e-6);
    }
    assert_close(loud_out, quiet_out * 4.0, 1e-5);
}

#[test]
fn the_direction_of_a_centred_embedding_stays_centred() {
    let dimensions = dimensions(16, 16);
    let mut seen = Recorder::of(&[Signal::Reading]);
    watched(&random(&dense(), &dimensions), centred([2, 3, 16]), &dimensions, &mut seen);
    for (_, _, direction) in seen.seen {
        let means = values(direction.mean_dim(3));
        assert!(means.iter().all(|mean| mean.abs() < 2e-6), "{means:?}");
    }
}

#[test]
fn logits_lie_within_the_inverse_temperature_and_reach_it() {
    let dimensions = dimensions(16, 3);
    let mut seen = Recorder::of(&[Signal::Reading, Signal::LogNorm]);
    let out = watched(&random(&dense(), &dimensions), centred([1, 3, 16]), &dimensions, &mut seen);
    let directions = seen.get(Place::Out, Signal::Reading).unwrap();
    let log_norms = values(seen.get(Place::Out, Signal::LogNorm).unwrap());
    let table = rms(normal("table", [40, 16]), 0.0);
    for ((out, direction), s) in rows(out).iter().zip(rows(directions)).zip(log_norms) {
        let most = f64::from(s).exp();
        assert!(rows(table.clone()).iter().all(|row| dot(row, out).abs() < most));
        assert!((dot(&direction, out) / most - 1.0).abs() < 1e-5);
    }
}

/// A policy whose parameters keep their gradients.
fn trainable(config: &NormAgnosticConfig, dimensions: &Dimensions) -> NormAgnostic {
    let mut draw =
        |name: &str, shape: &[usize]| Some(values(normal(name, [shape.iter().product()]) * 0.5));
    config.init(dimensions, &mut Weights::stored(&mut draw, &Device::flex().autodiff()))
}

#[test]
fn bad_settings_are_refused() {
    let dimensions = dimensions(8, 1);
    for threshold in [-0.1, f64::NAN, f64::INFINITY] {
        assert!(skipping(threshold).check(&dimensions).is_err(), "{threshold}");
    }
    let none = NormAgnosticConfig { directions: 0, ..Default::default() };
    assert!(none.check(&dimensions).is_err());
}
