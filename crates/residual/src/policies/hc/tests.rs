use super::*;
use crate::policies::prenorm::PreNormConfig;
use crate::probe::{Place, Recorder, Signal};
use crate::residual::{Read, Residual};
use crate::streams::StreamState;
use crate::testing::{
    assert_close, assert_gradients, assert_near, assert_streams_can_be_renamed, chosen, dimensions,
    drawn, normal, random, random_norms, traverse, values, watched, watching,
};
use crate::traversal::Traversal;
use burn::tensor::Device;

fn both_kinds() -> [HyperConnectionsConfig; 2] {
    [false, true].map(|dynamic| HyperConnectionsConfig {
        streams: 3,
        dynamic,
        ..Default::default()
    })
}

/// One token with the streams (1, 10) and (100, 1000).
fn two_streams() -> StreamState {
    Tensor::from_floats([[[[1.0, 10.0], [100.0, 1000.0]]]], &Device::flex()).into()
}

#[test]
fn the_start_is_prenorm() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    let prenorm = random(&PreNormConfig::default(), &dimensions);
    let expected = traverse(&prenorm, embedding.clone(), &dimensions);
    for config in both_kinds() {
        let policy = chosen(&config, &dimensions, random_norms);
        // The read-out is three times PreNorm's, so the final norm's epsilon weighs less.
        assert_close(traverse(&policy, embedding.clone(), &dimensions), expected.clone(), 1e-5);
    }
}

#[test]
fn streams_that_start_alike_stay_alike() {
    let dimensions = dimensions(8, 3);
    for config in both_kinds() {
        let policy = chosen(&config, &dimensions, random_norms);
        let mut seen = Recorder::of(&[Signal::Streams]);
        watched(&policy, normal("embedding", [2, 3, 8]), &dimensions, &mut seen);
        assert_eq!(seen.seen.len(), 6);
        for (_, _, streams) in seen.seen {
            let stream = |i| values(streams.clone().narrow(2, i, 1));
            assert_eq!(stream(1), stream(0));
            assert_eq!(stream(2), stream(0));
        }
    }
}

#[test]
fn each_site_starts_with_the_next_stream() {
    let dimensions = dimensions(2, 2);
    let config = HyperConnectionsConfig { streams: 2, dynamic: false, ..Default::default() };
    let policy = chosen(&config, &dimensions, random_norms);
    for site in dimensions.each_site() {
        let mut seen = Recorder::of(&[Signal::Reading]);
        policy.read(site, &two_streams(), &mut watching(&mut seen));
        let reading = values(seen.get(Place::Site(site), Signal::Reading).unwrap());
        let expected = [[1.0, 10.0], [100.0, 1000.0]];
        assert_eq!(reading, expected[site.index % 2]);
    }
}

#[test]
fn res_leads_from_its_row_to_its_column() {
    let config = HyperConnectionsConfig { streams: 2, dynamic: false, ..Default::default() };
    let policy = chosen(&config, &dimensions(2, 1), |name, _| match name {
        "residual.0.pre" => Some(vec![5.0, 7.0]),
        "residual.0.res" => Some(vec![1.0, 2.0, 3.0, 4.0]),
        "residual.0.post" => Some(vec![0.5, -1.0]),
        _ => None,
    });
    let site = Site::new(0);
    let mut seen = Recorder::of(&[Signal::Reading]);
    let Read { ticket, .. } = policy.read(site, &two_streams(), &mut watching(&mut seen));
    let reading = seen.get(Place::Site(site), Signal::Reading).unwrap();
    assert_eq!(values(reading), [705.0, 7050.0]);

    let output = Tensor::from_floats([[[2.0, 4.0]]], &Device::flex());
    let after = policy.write(site, two_streams(), ticket, output, &mut Traversal::default());
    // 1 (1, 10) + 3 (100, 1000) + 0.5 (2, 4), then 2 (1, 10) + 4 (100, 1000) - (2, 4).
    assert_eq!(values(after.streams), [302.0, 3012.0, 400.0, 4016.0]);
}

#[test]
fn a_dynamic_site_adds_what_each_stream_asks_for() {
    let config = HyperConnectionsConfig { streams: 2, dynamic: true, ..Default::default() };
    let policy = chosen(&config, &dimensions(2, 1), |name, _| match name {
        "residual.0.pre" => Some(vec![5.0, 7.0]),
        "residual.0.res" => Some(vec![1.0, 2.0, 3.0, 4.0]),
        "residual.0.post" => Some(vec![0.5, -1.0]),
        "residual.0.norm" => Some(vec![2.0, 1.0]),
        "residual.0.pre_weight" => Some(vec![0.3, -0.2]),
        "residual.0.res_weight" => Some(vec![0.1, -0.6, 0.3, 0.4]),
        "residual.0.post_weight" => Some(vec![-0.5, 0.1]),
        "residual.0.mix_scale" => Some(vec![0.7]),
        "residual.0.post_scale" => Some(vec![0.9]),
        _ => None,
    });
    let streams = Tensor::from_floats([[[[3.0, 4.0], [1.0, 0.0]]]], &Device::flex()).into();
    let mut seen = Recorder::of(&[Signal::PoolWeights, Signal::Mixing, Signal::Gates]);
    policy.read(Site::new(0), &streams, &mut watching(&mut seen));
    let found = |signal| values(seen.get(Place::Site(Site::new(0)), signal).unwrap());

    let normed = [[2.0 * 3.0 / 12.5f32.sqrt(), 4.0 / 12.5f32.sqrt()], [2.0 / 0.5f32.sqrt(), 0.0]];
    let along = |i: usize, w: [f32; 2]| (normed[i][0] * w[0] + normed[i][1] * w[1]).tanh();
    let pre = |i, start| start + 0.7 * along(i, [0.3, -0.2]);
    let post = |i, start| start + 0.9 * along(i, [-0.5, 0.1]);
    let res = |i, j: usize, start| start + 0.7 * along(i, [[0.1, 0.3], [-0.6, 0.4]][j]);
    // The norm's epsilon is two millionths of the smaller stream's mean square.
    assert_near(&found(Signal::PoolWeights), &[pre(0, 5.0), pre(1, 7.0)], 2e-6);
    assert_near(&found(Signal::Gates), &[post(0, 0.5), post(1, -1.0)], 2e-6);
    // Signals are [target, source], the parameter is [source, target].
    let mixing = [res(0, 0, 1.0), res(1, 0, 3.0), res(0, 1, 2.0), res(1, 1, 4.0)];
    assert_near(&found(Signal::Mixing), &mixing, 2e-6);
}

/// Random parameters with the streams renamed: the new stream i is the old `order[i]`.
fn renamed(order: [usize; 3], dimensions: &Dimensions) -> HyperConnections {
    let config = HyperConnectionsConfig { streams: 3, dynamic: true, ..Default::default() };
    let rename = |row: &[f32]| order.map(|i| row[i]);
    chosen(&config, dimensions, |name, shape| {
        let around = if name.contains("norm") { 1.0 } else { 0.0 };
        let drawn = values(normal(name, [shape.iter().product()]) * 0.5 + around);
        Some(match name.rsplit('.').next() {
            Some("pre" | "post") => rename(&drawn).to_vec(),
            Some("res") => order.map(|i| rename(&drawn[3 * i..][..3])).concat(),
            Some("res_weight") => drawn.chunks(3).flat_map(rename).collect(),
            _ => drawn,
        })
    })
}

#[test]
fn renaming_the_streams_renames_the_state_and_nothing_else() {
    assert_streams_can_be_renamed(renamed);
}

#[test]
fn identity_is_mixing_by_the_identity() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    for config in both_kinds() {
        let mixed = chosen(&config, &dimensions, |name, shape| {
            let at_start = name.ends_with(".res") || name.ends_with("res_weight");
            (!at_start).then(|| drawn(name, shape))
        });
        let alone = random(&HyperConnectionsConfig { identity: true, ..config }, &dimensions);
        let expected = traverse(&alone, embedding.clone(), &dimensions);
        assert_close(traverse(&mixed, embedding.clone(), &dimensions), expected, 1e-5);
    }
}

#[test]
fn identity_starts_as_prenorm_and_has_the_right_slopes() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    let prenorm = random(&PreNormConfig::default(), &dimensions);
    let expected = traverse(&prenorm, embedding.clone(), &dimensions);
    for config in both_kinds() {
        let config = HyperConnectionsConfig { identity: true, ..config };
        let policy = chosen(&config, &dimensions, random_norms);
        assert_close(traverse(&policy, embedding.clone(), &dimensions), expected.clone(), 1e-5);
        let config = HyperConnectionsConfig { streams: 2, stream_scale: true, ..config };
        // A stream near zero would bend too much for differences.
        assert_gradients(&config, &Dimensions::new(4, 1, 0.3));
    }
}

#[test]
fn no_streams_or_too_many_are_refused() {
    for streams in [0, 65] {
        let config = HyperConnectionsConfig { streams, dynamic: false, ..Default::default() };
        assert!(config.check(&dimensions(8, 1)).is_err());
    }
}
