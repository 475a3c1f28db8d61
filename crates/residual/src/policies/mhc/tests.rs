//! Doubly stochastic mixing, the start, worked cases; the forms are in `tests/forms.rs`.

// The constants are those of the spec, digit by digit.
#![allow(clippy::excessive_precision)]

mod forms;

use super::*;
use crate::probe::{Place, Recorder, Signal};
use crate::residual::{Read, Residual};
use crate::site::Site;
use crate::testing::{
    assert_close, assert_manifold_start, assert_near, assert_streams_can_be_renamed, chosen,
    dimensions, fresh, normal, random, values, watched, watching,
};
use crate::traversal::Traversal;
use burn::tensor::Device;

const STREAMS: usize = 4;

/// Enough rounds that only rounding keeps the columns from one.
fn converged() -> ManifoldHyperConnectionsConfig {
    ManifoldHyperConnectionsConfig { streams: STREAMS, sinkhorn_iters: 300, ..Default::default() }
}

/// The mixing matrices of a traversal, one for each site.
fn mixings(policy: &ManifoldHyperConnections, dimensions: &Dimensions) -> Vec<Tensor<4>> {
    let embedding = normal("embedding", [2, 3, dimensions.width]);
    let mut seen = Recorder::of(&[Signal::Mixing]);
    watched(policy, embedding, dimensions, &mut seen);
    seen.seen.into_iter().map(|(_, _, mixing)| mixing).collect()
}

#[test]
fn documented_gates_are_those_of_the_reference_code() {
    let gates = ManifoldHyperConnectionsConfig::default().initial_gates(&dimensions(8, 3));
    for (name, value) in [
        ("pre (chosen stream)", 0.731_058_58),
        ("pre (others)", 0.268_941_42),
        ("post (chosen stream)", 1.462_117_16),
        ("post (others)", 0.537_882_84),
        ("res diagonal", 0.998_994_62),
    ] {
        let gate = gates.iter().find(|gate| gate.name == name).unwrap();
        assert!((gate.values[0] - value).abs() < 1e-8, "{name} is {}", gate.values[0]);
    }
}

#[test]
fn a_fresh_policy_gates_as_documented() {
    let policy = fresh(&ManifoldHyperConnectionsConfig::default(), &dimensions(8, 3));
    assert_manifold_start(&policy, 0.998_994_62, 0.000_335_13);
}

#[test]
fn mixing_is_doubly_stochastic() {
    let dimensions = dimensions(8, 3);
    for mixing in mixings(&random(&converged(), &dimensions), &dimensions) {
        let ones = [1.0; 2 * 3 * STREAMS];
        assert_near(&values(mixing.clone().sum_dim(3)), &ones, 1e-5);
        assert_near(&values(mixing.clone().sum_dim(2)), &ones, 1e-5);
        assert!(values(mixing).iter().all(|weight| *weight >= 0.0));
    }
}

#[test]
fn mixing_over_all_of_depth_is_still_doubly_stochastic() {
    let dimensions = dimensions(8, 8);
    let mixings = mixings(&random(&converged(), &dimensions), &dimensions);
    assert_eq!(mixings.len(), 16);
    let product = mixings.into_iter().reduce(|so_far, next| next.matmul(so_far)).unwrap();
    let ones = [1.0; 2 * 3 * STREAMS];
    assert_near(&values(product.clone().sum_dim(3)), &ones, 1e-4);
    assert_near(&values(product.sum_dim(2)), &ones, 1e-4);
}

#[test]
fn mixing_never_lengthens_a_vector_over_streams() {
    let dimensions = dimensions(8, 3);
    let vectors = normal("vectors", [2, 3, STREAMS, 50]);
    let lengths = |vectors: Tensor<4>| values(vectors.square().sum_dim(2));
    let before = lengths(vectors.clone());
    for mixing in mixings(&random(&converged(), &dimensions), &dimensions) {
        let after = lengths(mixing.matmul(vectors.clone()));
        assert!(before.iter().zip(after).all(|(before, after)| after <= before * 1.0001));
    }
}

#[test]
fn mixing_conserves_the_sum_of_the_streams() {
    let policy = random(&converged(), &dimensions(8, 1));
    let site = Site::new(1);
    let streams = normal("streams", [2, 3, STREAMS, 8]);
    let Read { ticket, .. } = policy.read(site, &streams.clone().into(), &mut Traversal::default());
    let nothing = Tensor::zeros([2, 3, 8], &Device::flex());
    let state = streams.clone().into();
    let after = policy.write(site, state, ticket, nothing, &mut Traversal::default()).streams;
    assert_close(after.clone().sum_dim(2), streams.clone().sum_dim(2), 1e-5);
    assert_ne!(values(after), values(streams));
}

#[test]
fn a_single_stream_is_kept_whole() {
    let dimensions = dimensions(8, 2);
    let config = ManifoldHyperConnectionsConfig { streams: 1, ..Default::default() };
    for mixing in mixings(&random(&config, &dimensions), &dimensions) {
        assert_eq!(values(mixing), [1.0; 6]);
    }
}

#[test]
fn a_row_of_the_mixing_makes_a_new_stream() {
    // One round leaves the columns off one, so that the transpose would be another matrix.
    let config =
        ManifoldHyperConnectionsConfig { streams: 2, sinkhorn_iters: 1, ..Default::default() };
    let policy = chosen(&config, &dimensions(2, 1), |name, _| match name {
        "residual.0.pre_bias" => Some(vec![0.0, 1.0]),
        "residual.0.post_bias" => Some(vec![-1.0, 0.0]),
        "residual.0.res_bias" => Some([1.0f32, 2.0, 3.0, 4.0].map(f32::ln).to_vec()),
        _ => None,
    });
    let site = Site::new(0);
    let streams = Tensor::from_floats([[[[7.0, 0.0], [0.0, 17.0]]]], &Device::flex()).into();
    let mut seen = Recorder::of(&[Signal::Reading]);
    let Read { ticket, .. } = policy.read(site, &streams, &mut watching(&mut seen));
    let reading = seen.get(Place::Site(site), Signal::Reading).unwrap();
    assert_near(&values(reading), &[3.5, 17.0 * 0.731_058_6], 1e-6);

    let output = Tensor::from_floats([[[10.0, 20.0]]], &Device::flex());
    let after = policy.write(site, streams, ticket, output, &mut Traversal::default());
    let post = 2.0 * 0.268_941_4;
    let expected =
        [3.0 + 10.0 * post, 4.0 / 7.0 * 17.0 + 20.0 * post, 9.0 / 17.0 * 7.0 + 10.0, 8.0 + 20.0];
    assert_near(&values(after.streams), &expected, 1e-6);
}

/// Random parameters with the streams renamed: the new stream i is the old `order[i]`.
fn renamed(order: [usize; 3], dimensions: &Dimensions) -> ManifoldHyperConnections {
    let config = ManifoldHyperConnectionsConfig { streams: 3, ..Default::default() };
    let pairs: Vec<usize> = order.iter().flat_map(|&i| order.map(|j| 3 * i + j)).collect();
    chosen(&config, dimensions, |name, shape| {
        let part = name.rsplit('.').next().unwrap_or_default();
        let around = if name.contains("norm") { 1.0 } else { 0.0 };
        let drawn = values(normal(name, [shape.iter().product()]) * 0.3 + around);
        let outputs: &[usize] = if part.starts_with("res_") { &pairs } else { &order };
        let rename = |row: &[f32]| outputs.iter().map(|&i| row[i]).collect::<Vec<_>>();
        Some(if part.ends_with("_bias") {
            rename(&drawn)
        } else if part.ends_with("_weight") {
            // Rows belong to the features of one stream after the other.
            let rows: Vec<&[f32]> = drawn.chunks(outputs.len()).collect();
            let width = rows.len() / 3;
            order
                .iter()
                .flat_map(|&i| &rows[i * width..][..width])
                .flat_map(|r| rename(r))
                .collect()
        } else {
            drawn
        })
    })
}

#[test]
fn renaming_the_streams_renames_the_state_and_nothing_else() {
    assert_streams_can_be_renamed(renamed);
}

#[test]
fn bad_settings_are_refused() {
    let dimensions = dimensions(8, 1);
    for (streams, sinkhorn_iters) in [(0, 20), (65, 20), (4, 0), (4, 1001)] {
        let config =
            ManifoldHyperConnectionsConfig { streams, sinkhorn_iters, ..Default::default() };
        assert!(config.check(&dimensions).is_err(), "{config:?}");
    }
}
