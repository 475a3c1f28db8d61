//! Oracles G1 to G11 of Multi-Gate Residuals.

mod limits;
mod skipping;
mod start;

use super::*;
use crate::pool::{Source, pool};
use crate::probe::Recorder;
use crate::testing::{
    Stand, assert_close, assert_gradients, assert_near, assert_tokens_are_independent, chosen,
    dimensions, drawn, fresh, normal, random, traverse, values, watched, watching,
};
use burn::module::ParamId;
use burn::tensor::Device;

fn competitive(streams: usize) -> MultiGateConfig {
    MultiGateConfig { streams, ..Default::default() }
}

fn independent(streams: usize) -> MultiGateConfig {
    MultiGateConfig { gate: MultiGateKind::Independent, ..competitive(streams) }
}

fn derived(streams: usize) -> MultiGateConfig {
    MultiGateConfig { independent_start: IndependentStart::Derived, ..independent(streams) }
}

fn tokens(width: usize) -> Tensor<3> {
    normal("tokens", [2, 3, width])
}

/// What a traversal along [`Stand`] shows.
fn seen<R: Residual>(policy: &R, dimensions: &Dimensions, signals: &[Signal]) -> Recorder {
    let mut recorder = Recorder::of(signals);
    watched(policy, tokens(dimensions.width), dimensions, &mut recorder);
    recorder
}

fn at(recorder: &Recorder, site: usize, signal: Signal) -> Tensor<4> {
    recorder.get(Place::Site(Site::new(site)), signal).unwrap()
}

/// Length of every vector.
fn lengths(x: Tensor<4>) -> Vec<f32> {
    values(x.square().sum_dim(3).sqrt())
}

fn vector(elements: &[f32]) -> Tensor<1> {
    Tensor::from_floats(elements, &Device::flex())
}

fn gate(kind: MultiGateKind, weight: Tensor<1>, bias: &[f32]) -> StreamGate {
    let param = |value| Param::initialized(ParamId::new(), value);
    StreamGate { weight: param(weight), bias: param(vector(bias)), kind }
}

fn streams(count: usize) -> Vec<Source> {
    (0..count).map(|i| Source::new(normal(&format!("stream.{i}"), [2, 3, 5]), 1e-6)).collect()
}

#[test]
fn sub_layers_append_until_the_streams_are_filled_and_then_gate() {
    let dimensions = dimensions(4, 2);
    let signals = [Signal::Streams, Signal::Gates, Signal::PoolWeights];
    for n in 1..=6 {
        for config in [competitive(n), independent(n)] {
            let recorder = seen(&random(&config, &dimensions), &dimensions, &signals);
            let count = |site: usize, signal| {
                recorder.get(Place::Site(Site::new(site)), signal).map(|x| x.dims()[2])
            };
            for site in 0..4 {
                assert_eq!(count(site, Signal::Streams), Some(n.min(site + 2)));
                assert_eq!(count(site, Signal::Gates), (site >= n - 1).then_some(n));
                let pooled = (site > 0).then_some(n.min(site + 1));
                assert_eq!(count(site, Signal::PoolWeights), pooled);
            }
            let out = recorder.get(Place::Out, Signal::PoolWeights).unwrap();
            assert_eq!(out.dims()[2], n.min(5));
            assert_eq!(config.cost(&dimensions).state, 4 * n.min(5) as u64);
        }
    }
}

#[test]
fn an_appended_stream_is_the_write() {
    let dimensions = dimensions(4, 2);
    let policy = random(&competitive(3), &dimensions);
    let recorder = seen(&policy, &dimensions, &[Signal::Streams, Signal::Write]);
    let write = |site| at(&recorder, site, Signal::Write);
    let filled = Tensor::cat(vec![tokens(4).unsqueeze_dim(2), write(0), write(1)], 2);
    assert_close(at(&recorder, 1, Signal::Streams), filled, 0.0);
}

#[test]
fn a_sub_layer_that_fills_a_stream_cannot_be_absent() {
    let needed = |streams: usize| -> Vec<bool> {
        let dimensions = dimensions(4, 2);
        let policy = random(&competitive(streams), &dimensions);
        dimensions.each_site().map(|site| policy.required_because(site).is_some()).collect()
    };
    assert_eq!(needed(1), [false; 4]);
    assert_eq!(needed(3), [true, true, false, false]);
    assert_eq!(needed(4), [true, true, true, false]);
    // No gate ever expects these streams.
    assert_eq!(needed(5), [false; 4]);
}

#[test]
fn an_absent_gate_leaves_the_streams_alone() {
    let dimensions = dimensions(4, 2);
    let policy = random(&competitive(2), &dimensions);
    let mut recorder = Recorder::of(&[Signal::Streams, Signal::Reading]);
    let mut layers = Stand::without(&dimensions, &[3]);
    policy.traverse(tokens(4), &mut layers, &mut watching(&mut recorder));
    let streams = at(&recorder, 2, Signal::Streams);
    let streams: Vec<_> =
        (0..2).map(|i| Source::new(streams.clone().narrow(2, i, 1).squeeze_dim(2), 1e-6)).collect();
    let expected = pool(&streams, scaled(&policy.out)).value;
    let read = recorder.get(Place::Out, Signal::Reading).unwrap();
    assert_close(read.squeeze_dim(2), expected, 1e-6);
}

#[test]
fn an_absent_append_leaves_one_stream_less_where_nothing_gates() {
    let dimensions = dimensions(4, 2);
    let policy = random(&competitive(5), &dimensions);
    let mut recorder = Recorder::of(&[Signal::PoolWeights]);
    let mut layers = Stand::without(&dimensions, &[1]);
    policy.traverse(tokens(4), &mut layers, &mut watching(&mut recorder));
    let out = recorder.get(Place::Out, Signal::PoolWeights).unwrap();
    assert_eq!(out.dims()[2], 4);
}

#[test]
fn competing_gates_and_what_is_forgotten_sum_to_one() {
    let (streams, bias) = (streams(3), [0.7, 0.3, -0.4, 0.1]);
    let gate = gate(MultiGateKind::Competitive, normal("weight", [5]), &bias);
    let beta = gate.forward(&streams);
    assert_eq!(beta.dims(), [2, 3, 3]);
    let scores = streams.iter().map(|s| s.score(scaled(&gate.weight))).collect();
    let scores = values(Tensor::cat(scores, 2));
    for (beta, u) in values(beta).chunks(3).zip(scores.chunks(3)) {
        let open: f32 = (0..3).map(|i| (u[i] + bias[i + 1]).exp()).sum();
        let forget = bias[0].exp() / (bias[0].exp() + open);
        assert_near(&[beta.iter().sum::<f32>() + forget], &[1.0], 1e-6);
    }
}

#[test]
fn no_stream_grows_beyond_what_it_was_and_what_is_written() {
    let dimensions = dimensions(4, 4);
    for config in [competitive(3), independent(3)] {
        let signals = [Signal::Streams, Signal::Write];
        let recorder = seen(&random(&config, &dimensions), &dimensions, &signals);
        for site in 2..8 {
            let before = lengths(at(&recorder, site - 1, Signal::Streams));
            let after = lengths(at(&recorder, site, Signal::Streams));
            let write = lengths(at(&recorder, site, Signal::Write));
            assert_eq!(after.len(), 3 * write.len());
            for (i, length) in after.iter().enumerate() {
                let bound = before[i].max(write[i / 3]);
                assert!(*length <= bound * (1.0 + 1e-5), "{length} > {bound}");
            }
        }
    }
}

#[test]
fn no_reading_is_longer_than_the_longest_stream() {
    let dimensions = dimensions(4, 4);
    for config in [competitive(3), independent(3)] {
        let signals = [Signal::Streams, Signal::Reading];
        let recorder = seen(&random(&config, &dimensions), &dimensions, &signals);
        for site in 1..8 {
            let streams = at(&recorder, site - 1, Signal::Streams);
            let count = streams.dims()[2];
            let streams = lengths(streams);
            let read = lengths(at(&recorder, site, Signal::Reading));
            assert_eq!(streams.len(), count * read.len());
            for (length, streams) in read.iter().zip(streams.chunks(count)) {
                let bound = streams.iter().fold(0.0, |most: f32, length| most.max(*length));
                assert!(*length <= bound * (1.0 + 1e-5), "{length} > {bound}");
            }
        }
    }
}

#[test]
fn closed_gates_hold_the_streams() {
    let dimensions = dimensions(4, 3);
    let shut = [(competitive(3), vec![100.0, 0.0, 0.0, 0.0]), (independent(3), vec![-100.0; 3])];
    for (config, bias) in shut {
        let policy = chosen(&config, &dimensions, |name, shape| {
            Some(if name.ends_with("gate.bias") { bias.clone() } else { drawn(name, shape) })
        });
        let recorder = seen(&policy, &dimensions, &[Signal::Streams]);
        let filled = at(&recorder, 1, Signal::Streams);
        for site in 2..6 {
            assert_close(at(&recorder, site, Signal::Streams), filled.clone(), 1e-6);
        }
    }
}

/// The streams before the gated write at `site`, from those after it.
fn undone(recorder: &Recorder, site: usize, streams: Tensor<4>) -> Tensor<4> {
    let beta = at(recorder, site, Signal::Gates);
    let write = at(recorder, site, Signal::Write);
    (streams - beta.clone() * write) / (1.0 - beta)
}

#[test]
fn every_update_can_be_undone() {
    let dimensions = dimensions(8, 6);
    let signals = [Signal::Streams, Signal::Gates, Signal::Write];
    for config in [competitive(4), independent(4)] {
        let recorder = seen(&random(&config, &dimensions), &dimensions, &signals);
        for site in 3..12 {
            let before = undone(&recorder, site, at(&recorder, site, Signal::Streams));
            assert_close(before, at(&recorder, site - 1, Signal::Streams), 1e-5);
        }
    }
}

#[test]
fn the_updates_of_a_fresh_policy_can_be_undone_one_after_another() {
    let dimensions = dimensions(8, 6);
    let signals = [Signal::Streams, Signal::Gates, Signal::Write];
    // Each of the nine steps divides the error by 1 - beta; gates this small keep it below 3.
    for config in [competitive(4), independent(4), derived(4)] {
        let recorder = seen(&fresh(&config, &dimensions), &dimensions, &signals);
        let last = at(&recorder, 11, Signal::Streams);
        let filled = (3..12).rev().fold(last, |streams, site| undone(&recorder, site, streams));
        assert_close(filled, at(&recorder, 2, Signal::Streams), 1e-5);
    }
}

#[test]
fn gradients_agree_with_central_differences() {
    for config in [competitive(2), independent(2), competitive(3), independent(1)] {
        assert_gradients(&config, &dimensions(6, 2));
    }
}

#[test]
fn tokens_are_independent() {
    let dimensions = dimensions(8, 3);
    for config in [competitive(3), independent(3), competitive(9)] {
        assert_tokens_are_independent(&random(&config, &dimensions), &dimensions);
    }
}

#[test]
fn reordered_streams_and_biases_read_the_same() {
    // Only its `write` is used, which has no weights.
    let policy = fresh(&competitive(3), &dimensions(5, 2));
    let step = |kind, order: [usize; 3]| {
        let streams: Vec<_> = order.map(|i| streams(3)[i].clone()).into();
        let biases = order.map(|i| [-0.5, 0.2, 1.1][i]);
        let bias = match kind {
            MultiGateKind::Independent => biases.to_vec(),
            MultiGateKind::Competitive => [&[0.4], &biases[..]].concat(),
        };
        let beta = gate(kind, normal("weight", [5]), &bias).forward(&streams);
        let (site, f) = (Site::new(2), normal("write", [2, 3, 5]));
        let streams = policy.write(
            site,
            streams.into(),
            Some(Opening { gates: beta.clone(), skipped: None }),
            f,
            &mut Traversal::default(),
        );
        (beta, streams.pool(normal("query", [5]), 1e-6).value)
    };
    for kind in [MultiGateKind::Independent, MultiGateKind::Competitive] {
        let (beta, read) = step(kind, [0, 1, 2]);
        let (reordered, reordered_read) = step(kind, [2, 0, 1]);
        assert_close(reordered_read, read, 1e-5);
        for (to, from) in [2, 0, 1].into_iter().enumerate() {
            let moved = reordered.clone().narrow(2, to, 1);
            assert_close(moved, beta.clone().narrow(2, from, 1), 1e-5);
        }
    }
}

/// Two streams, (1, 2) and (-1, 0.5), after a gated write of (0.5, -1.5): the gates, the
/// streams, the weights of the read-out and the read-out.
fn worked(config: &MultiGateConfig, bias: &[f32]) -> [Vec<f32>; 4] {
    let policy = chosen(config, &dimensions(2, 1), |name, _| match name {
        "residual.1.gate.weight" => Some(vec![0.3, -0.2]),
        "residual.1.gate.bias" => Some(bias.to_vec()),
        "residual.out.pool.weight" => Some(vec![-0.4, 0.6]),
        _ => None,
    });
    let token = |v: [f32; 2]| Tensor::<3>::from_floats([[v]], &Device::flex());
    let signals = [Signal::Gates, Signal::Streams, Signal::PoolWeights, Signal::Reading];
    let mut recorder = Recorder::of(&signals);
    let mut streams = policy.open(token([1.0, 2.0]));
    for (site, write) in [(0, [-1.0, 0.5]), (1, [0.5, -1.5])] {
        let site = Site::new(site);
        let Read { ticket, .. } = policy.read(site, &streams, &mut watching(&mut recorder));
        streams = policy.write(site, streams, ticket, token(write), &mut watching(&mut recorder));
    }
    policy.close(streams, &mut watching(&mut recorder));
    [
        values(at(&recorder, 1, Signal::Gates)),
        values(at(&recorder, 1, Signal::Streams)),
        values(recorder.get(Place::Out, Signal::PoolWeights).unwrap()),
        values(recorder.get(Place::Out, Signal::Reading).unwrap()),
    ]
}

#[test]
fn scores_of_the_worked_case_have_its_numbers() {
    let weight = Param::initialized(ParamId::new(), vector(&[0.3, -0.2]));
    let scores = [[1.0, 2.0], [-1.0, 0.5]].map(|v| {
        let stream = Source::new(Tensor::from_floats([[v]], &Device::flex()), 1e-6);
        values(stream.score(scaled(&weight)))[0]
    });
    assert_near(&scores, &[-0.044_721_35, -0.357_770_6], 1e-6);
}

#[test]
fn the_worked_case_of_competitive_gates_gives_its_numbers() {
    let [beta, streams, alpha, read] = worked(&competitive(2), &[2.0, 0.1, -0.1]);
    assert_near(&beta, &[0.116_409_68, 0.069_690_67], 1e-6);
    assert_near(&streams, &[0.941_795_2, 1.592_566_1, -0.895_464, 0.360_618_66], 1e-6);
    assert_near(&alpha, &[0.429_881_06, 0.570_118_94], 1e-6);
    assert_near(&read, &[-0.105_661_07, 0.890_209_54], 1e-6);
}

#[test]
fn the_worked_case_of_independent_gates_gives_its_numbers() {
    let [beta, streams, alpha, read] = worked(&independent(2), &[-2.0, -1.5]);
    assert_near(&beta, &[0.114_586_85, 0.134_963_12], 1e-6);
    assert_near(&streams, &[0.942_706_6, 1.598_946, -0.797_555_3, 0.230_073_76], 1e-6);
    assert_near(&alpha, &[0.441_044_03, 0.558_956], 1e-6);
    assert_near(&read, &[-0.030_023_2, 0.833_806_7], 1e-6);
}
