//! Tokens whose widest gate is small skip; the gates bound what that costs.

use super::{at, competitive, independent, tokens};
use crate::policies::mgr::{MultiGateConfig, MultiGateKind};
use crate::probe::{Place, Recorder, Signal};
use crate::residual::Residual;
use crate::site::Site;
use crate::skip::{Forced, StepMode, Thresholds};
use crate::testing::{Stand, dimensions, random, traverse, values, watched};
use crate::traversal::Traversal;
use burn::tensor::Tensor;

/// The first sub-layer that gates, of three streams.
const FIRST_GATED: usize = 2;

fn skipping(config: MultiGateConfig, threshold: f64) -> MultiGateConfig {
    MultiGateConfig { skip_threshold: Some(Thresholds::One(threshold)), ..config }
}

/// The middle of the widest gates of all tokens at the first gated sub-layer.
fn middle(config: &MultiGateConfig) -> f64 {
    let dimensions = dimensions(8, 3);
    let mut seen = Recorder::of(&[Signal::Gates]);
    watched(&random(config, &dimensions), tokens(8), &dimensions, &mut seen);
    let mut widest = values(at(&seen, FIRST_GATED, Signal::Gates).max_dim(2));
    widest.sort_by(f32::total_cmp);
    let half = widest.len() / 2;
    f64::from(widest[half - 1] + widest[half]) / 2.0
}

/// `[tokens][streams]` lengths of vectors of streams.
fn by_stream(x: Tensor<4>) -> Vec<Vec<f32>> {
    let streams = x.dims()[2];
    let lengths = values(x.square().sum_dim(3).sqrt());
    lengths.chunks(streams).map(<[f32]>::to_vec).collect()
}

#[test]
fn a_skip_moves_no_stream_by_more_than_its_gate_times_the_distance_to_the_write() {
    let dimensions = dimensions(8, 3);
    for config in [competitive(3), independent(3)] {
        let threshold = middle(&config);
        let signals = [Signal::Streams, Signal::Gates, Signal::Write, Signal::Skipped];
        let [dense, skipped] = [config.clone(), skipping(config, threshold)].map(|config| {
            let mut seen = Recorder::of(&signals);
            watched(&random(&config, &dimensions), tokens(8), &dimensions, &mut seen);
            seen
        });
        let read = |seen: &Recorder, signal| at(seen, FIRST_GATED, signal);
        let moved = by_stream(read(&dense, Signal::Streams) - read(&skipped, Signal::Streams));
        let before = at(&dense, FIRST_GATED - 1, Signal::Streams);
        let away = read(&dense, Signal::Write).expand(before.dims()) - before;
        let bounds = by_stream(read(&dense, Signal::Gates) * away);
        let skips = values(read(&skipped, Signal::Skipped));
        assert!(skips.contains(&1.0) && skips.contains(&0.0), "{skips:?}");
        for ((moved, bounds), skips) in moved.iter().zip(&bounds).zip(skips) {
            for (moved, bound) in moved.iter().zip(bounds) {
                match skips {
                    // The bound is reached: exactly this was lost.
                    1.0 => assert!((moved - bound).abs() <= 1e-5 * bound.max(1.0)),
                    _ => assert!(*moved <= 1e-6, "{moved}"),
                }
            }
        }
    }
}

#[test]
fn thresholds_of_zero_change_nothing_and_high_ones_stop_behind_the_filling() {
    let dimensions = dimensions(8, 3);
    let run = |config: &MultiGateConfig| {
        values(traverse(&random(config, &dimensions), tokens(8), &dimensions))
    };
    let dense = run(&competitive(3));
    assert_eq!(run(&skipping(competitive(3), 0.0)), dense);
    let policy = random(&skipping(competitive(3), 9.0), &dimensions);
    let mut seen = Recorder::of(&[Signal::Streams, Signal::Skipped]);
    watched(&policy, tokens(8), &dimensions, &mut seen);
    let filled = values(at(&seen, FIRST_GATED - 1, Signal::Streams));
    assert_eq!(values(at(&seen, 5, Signal::Streams)), filled);
    let sites = seen.seen.iter().filter(|(_, signal, _)| *signal == Signal::Skipped);
    assert_eq!(sites.count(), 6 - FIRST_GATED, "only gated sub-layers can be skipped");
}

#[test]
fn a_continuous_gate_vanishes_where_it_meets_the_threshold() {
    let dimensions = dimensions(8, 3);
    let config = independent(3);
    let mut seen = Recorder::of(&[Signal::Gates]);
    watched(&random(&config, &dimensions), tokens(8), &dimensions, &mut seen);
    let widest = values(at(&seen, FIRST_GATED, Signal::Gates).max_dim(2));
    // Just below the smallest gate: every token runs, and the token with that gate hardly moves.
    let smallest = widest.iter().copied().fold(f32::INFINITY, f32::min);
    let token = widest.iter().position(|gate| *gate == smallest).unwrap();
    let threshold = f64::from(smallest) * (1.0 - 1e-6);
    let config = MultiGateConfig { skip_shrink: 1.0, ..skipping(config, threshold) };
    let mut seen = Recorder::of(&[Signal::Streams, Signal::Skipped]);
    watched(&random(&config, &dimensions), tokens(8), &dimensions, &mut seen);
    let at_first = |signal| at(&seen, FIRST_GATED, signal);
    assert!(values(at_first(Signal::Skipped)).iter().all(|skips| *skips == 0.0));
    let before = at(&seen, FIRST_GATED - 1, Signal::Streams);
    let moved = by_stream(at_first(Signal::Streams) - before);
    assert!(moved[token].iter().all(|moved| *moved < 1e-4), "{:?}", moved[token]);
    assert!(moved.iter().flatten().any(|moved| *moved > 1e-2));
}

#[test]
fn the_forced_run_with_their_own_gates() {
    let dimensions = dimensions(8, 3);
    let config = MultiGateConfig { skip_shrink: 1.0, ..skipping(competitive(3), 9.0) };
    assert_eq!(config.gate, MultiGateKind::Competitive);
    let policy = random(&config, &dimensions);
    let forced = Forced { shares: vec![1.0; 6], seed: 3 };
    let mode = StepMode { forced, ..StepMode::default() };
    let run = |probe| {
        let mut traversal = Traversal { mode: &mode, probe, ..Traversal::default() };
        values(policy.traverse(tokens(8), &mut Stand::new(&dimensions), &mut traversal))
    };
    let dense = random(&competitive(3), &dimensions);
    assert_eq!(run(None), values(traverse(&dense, tokens(8), &dimensions)));
    let mut seen = Recorder::of(&[Signal::Skipped]);
    run(Some(&mut seen));
    let site = Place::Site(Site::new(FIRST_GATED));
    assert!(values(seen.get(site, Signal::Skipped).unwrap()).iter().all(|skips| *skips == 0.0));
}
