//! The forms of released models: what they become in limits, how they start, what they refuse and show.

use super::*;
use crate::ResidualConfig;
use crate::policies::hc::HyperConnectionsConfig;
use crate::policies::mhc_lite::ManifoldLiteConfig;
use crate::policies::prenorm::PreNormConfig;
use crate::testing::{Stand, assert_gradients, drawn, random_norms, traverse};

type Config = ManifoldHyperConnectionsConfig;

fn three() -> Config {
    Config { streams: 3, sinkhorn_iters: 4, ..Default::default() }
}

fn identity() -> Config {
    Config { sinkhorn_iters: 0, identity: true, ..three() }
}

/// Every part of a form alone, and those that released models combine.
fn forms() -> Vec<Config> {
    let readout = StreamReadOut::Gated;
    vec![
        Config { epsilon: 0.02, ..three() },
        Config { readout, epsilon: 0.02, ..three() },
        Config { readout: StreamReadOut::Mean, ..three() },
        Config { single_pass: true, ..three() },
        Config { single_pass: true, epsilon: 0.02, stream_scale: true, ..three() },
        Config { single_pass: true, post_multiplier: 1.5, ..identity() },
        identity(),
        Config { readout, epsilon: 0.02, post_epsilon: 0.03, post_multiplier: 1.5, ..identity() },
        Config { stream_scale: true, ..three() },
    ]
}

fn embedding() -> Tensor<3> {
    normal("embedding", [2, 3, 8])
}

#[test]
fn identity_is_the_limit_of_a_large_diagonal() {
    let dimensions = dimensions(8, 3);
    for readout in [StreamReadOut::Sum, StreamReadOut::Gated] {
        let mixed = chosen(&Config { readout, ..three() }, &dimensions, |name, shape| {
            let diagonal = || (0..9).map(|k| if k % 4 == 0 { 200.0 } else { 0.0 }).collect();
            Some(if name.ends_with("res_bias") { diagonal() } else { drawn(name, shape) })
        });
        let alone = random(&Config { readout, ..identity() }, &dimensions);
        let expected = traverse(&alone, embedding(), &dimensions);
        assert_close(traverse(&mixed, embedding(), &dimensions), expected, 1e-5);
    }
}

/// The gated form whose reader l has the bias of l - 1; the first reads stream 0 alone.
#[test]
fn a_single_pass_with_constant_gates_is_the_gated_form_moved_by_one() {
    let dimensions = dimensions(8, 3);
    for (mixed, scaled) in [(true, false), (true, true), (false, true)] {
        let base = if mixed { three() } else { identity() };
        let base = Config { stream_scale: scaled, ..base };
        let constant = |name: &str, shape: &[usize]| match name.ends_with("pre_weight") {
            true => vec![0.0; shape.iter().product()],
            false => drawn(name, shape),
        };
        let single = chosen(&Config { single_pass: true, ..base.clone() }, &dimensions, |n, s| {
            Some(constant(n, s))
        });
        let moved = Config { readout: StreamReadOut::Gated, ..base };
        let gated = chosen(&moved, &dimensions, |name, shape| {
            let before = match name {
                "residual.0.pre_bias" => return Some(vec![200.0, -200.0, -200.0]),
                "residual.out.pre_bias" => Some(5),
                _ => name
                    .strip_prefix("residual.")
                    .and_then(|rest| rest.strip_suffix(".pre_bias"))
                    .and_then(|site| site.parse::<usize>().ok())
                    .map(|site| site - 1),
            };
            Some(match before {
                Some(site) => drawn(&format!("residual.{site}.pre_bias"), shape),
                None => constant(name, shape),
            })
        });
        let expected = traverse(&gated, embedding(), &dimensions);
        assert_close(traverse(&single, embedding(), &dimensions), expected, 1e-5);
    }
}

#[test]
fn an_absent_sub_layer_leaves_a_single_pass_the_weights_that_it_would_have_read_with() {
    let dimensions = dimensions(8, 3);
    let config = Config { single_pass: true, ..three() };
    let policy = random(&config, &dimensions);
    let absent = [2, 3];
    let mut seen = Recorder::of(&[Signal::PoolWeights]);
    let mut layers = Stand::without(&dimensions, &absent);
    policy.traverse(embedding(), &mut layers, &mut watching(&mut seen));
    let mut whole = Recorder::of(&[Signal::PoolWeights]);
    policy.traverse(embedding(), &mut Stand::new(&dimensions), &mut watching(&mut whole));
    let at = |seen: &Recorder, site| {
        values(seen.get(Place::Site(Site::new(site)), Signal::PoolWeights).unwrap())
    };
    // What sub-layer 1 found: sub-layer 2 reads with it, or 4 if that one and the next are absent.
    assert_eq!(at(&seen, 4), at(&whole, 2));
    assert_eq!(at(&seen, 0), [1.0, 0.0, 0.0].repeat(6));
}

#[test]
fn scales_of_one_are_copies() {
    fn check<C: PolicyConfig>(scaled: &C, copied: &C) {
        let dimensions = dimensions(8, 3);
        let policy = chosen(scaled, &dimensions, |name, shape| {
            let one = name == "residual.stream_scale";
            Some(if one { vec![1.0; shape.iter().product()] } else { drawn(name, shape) })
        });
        let expected = traverse(&random(copied, &dimensions), embedding(), &dimensions);
        assert_eq!(values(traverse(&policy, embedding(), &dimensions)), values(expected));
        let other = traverse(&random(scaled, &dimensions), embedding(), &dimensions);
        assert_ne!(values(other), values(traverse(&policy, embedding(), &dimensions)));
    }
    check(&Config { stream_scale: true, ..three() }, &three());
    let lite = ManifoldLiteConfig { streams: 3, ..Default::default() };
    check(&ManifoldLiteConfig { stream_scale: true, ..lite.clone() }, &lite);
    let hc = HyperConnectionsConfig::default();
    check(&HyperConnectionsConfig { stream_scale: true, ..hc.clone() }, &hc);
}

#[test]
fn scales_start_around_six_tenths_within_the_bound_of_xavier() {
    let dimensions = dimensions(32, 1);
    let config = Config { stream_scale: true, ..Default::default() };
    let mut seen = Recorder::of(&[Signal::Reading]);
    let ones = Tensor::ones([1, 1, 32], &Device::flex());
    let policy = fresh(&Config { single_pass: true, ..config }, &dimensions);
    watched(&policy, ones, &dimensions, &mut seen);
    // The first reader of a single pass is given stream 0.
    let scale = values(seen.get(Place::Site(Site::new(0)), Signal::Reading).unwrap());
    let bound = (6.0f32 / 36.0).sqrt();
    assert!(scale.iter().all(|x| (x - 0.6).abs() <= bound), "{scale:?}");
    assert!(scale.iter().any(|x| (x - 0.6).abs() > 0.5 * bound), "{scale:?}");
}

#[test]
fn new_forms_start_as_prenorm() {
    let dimensions = dimensions(8, 3);
    let prenorm = random(&PreNormConfig::default(), &dimensions);
    let expected = traverse(&prenorm, embedding(), &dimensions);
    let zero = |name: &str, shape: &[usize]| match name.ends_with("_weight") {
        true => Some(vec![0.0; shape.iter().product()]),
        false => random_norms(name, shape),
    };
    let readout = StreamReadOut::Gated;
    for config in [
        Config { epsilon: 1e-6, ..three() },
        Config { epsilon: 1e-6, readout, ..three() },
        Config { epsilon: 1e-6, readout: StreamReadOut::Mean, ..three() },
        Config { epsilon: 1e-6, single_pass: true, ..three() },
        identity(),
        Config { epsilon: 1e-6, post_epsilon: 1e-6, readout, ..identity() },
        Config { streams: 1, readout, ..identity() },
        Config { single_pass: true, streams: 4, ..identity() },
    ] {
        let policy = chosen(&config, &dimensions, zero);
        assert_close(traverse(&policy, embedding(), &dimensions), expected.clone(), 2e-5);
    }
    let lite = ManifoldLiteConfig { streams: 3, readout, epsilon: 1e-6, ..Default::default() };
    let policy = chosen(&lite, &dimensions, zero);
    assert_close(traverse(&policy, embedding(), &dimensions), expected, 2e-5);
}

#[test]
fn documented_gates_are_those_of_the_first_pass() {
    let dimensions = dimensions(8, 3);
    for config in forms().into_iter().chain([three(), Config::default()]) {
        let policy = chosen(&config, &dimensions, |name, shape| {
            name.ends_with("_weight").then(|| vec![0.0; shape.iter().product()])
        });
        let wanted = [Signal::PoolWeights, Signal::Gates, Signal::Mixing];
        let mut seen = Recorder::of(&wanted);
        watched(&policy, normal("embedding", [1, 1, 8]), &dimensions, &mut seen);
        let gates = config.initial_gates(&dimensions);
        let gate = |name: &str| gates.iter().find(|gate| gate.name == name).map(|g| g.values[0]);
        let found = |place, signal| values(seen.get(place, signal).unwrap());
        let (site, n) = (Site::new(4), config.streams);
        let expected = |what: &str, chosen: usize| -> Vec<f32> {
            let by = |part: &str| gate(&format!("{what} ({part})")).or(gate(what)).unwrap() as f32;
            (0..n).map(|i| by(if i == chosen { "chosen stream" } else { "others" })).collect()
        };
        // In a single pass the reading is that of the site before.
        let reader = if config.single_pass { 3 } else { 4 };
        let pre = found(Place::Site(site), Signal::PoolWeights);
        assert_near(&pre, &expected("pre", reader % n), 1e-6);
        let post = found(Place::Site(site), Signal::Gates);
        assert_near(&post, &expected("post", 4 % n), 1e-6);
        let diagonal = found(Place::Site(site), Signal::Mixing)[0];
        let said = gate("res diagonal").unwrap_or(1.0) as f32;
        assert!((diagonal - said).abs() < 1e-6, "{config:?}: {diagonal} is not {said}");
        if config.readout == StreamReadOut::Gated {
            let said = gate("read-out (each stream)").unwrap() as f32;
            assert_near(&found(Place::Out, Signal::PoolWeights), &vec![said; n], 1e-6);
        }
    }
}

#[test]
fn starts_of_released_models_are_those_of_their_code() {
    let gates = |name: &str| {
        let config: ResidualConfig = name.parse().unwrap();
        let gates = config.initial_gates(&dimensions(8, 3)).into_iter();
        gates.map(|gate| (gate.name, gate.values[0])).collect::<Vec<_>>()
    };
    let near = |found: Vec<(&str, f64)>, expected: &[(&str, f64)]| {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((name, value), (wanted, number)) in found.iter().zip(expected) {
            assert_eq!(name, wanted);
            assert!((value - number).abs() < 1e-8, "{name} is {value}, not {number}");
        }
    };
    let hy4 = [("pre", 0.250_001), ("post", 1.000_001), ("read-out (each stream)", 0.250_001)];
    near(gates("hy4"), &hy4);
    let one = [("pre (chosen stream)", 0.999_665_65), ("pre (others)", 0.000_336_35)];
    let diagonal = 0.998_992_62;
    let rest = [("post", 1.0), ("read-out (each stream)", 0.250_001), ("res diagonal", diagonal)];
    let found = gates("deepseek_v4");
    let last = found.last().unwrap().1;
    // Twenty rounds leave a little less than one in a row.
    assert!((last - diagonal).abs() < 2e-6, "{last}");
    near(found[..4].to_vec(), &[&one[..], &rest[..2]].concat());
}

#[test]
fn gradients_are_slopes() {
    let dimensions = Dimensions::new(3, 1, 1e-2);
    for config in forms() {
        assert_gradients(&Config { streams: 2, ..config }, &dimensions);
    }
}

#[test]
fn the_probe_sees_what_readers_and_the_head_use() {
    let dimensions = dimensions(8, 2);
    let wanted = [Signal::PoolWeights, Signal::Mixing, Signal::Streams, Signal::Reading];
    for config in forms() {
        let policy = random(&config, &dimensions);
        let mut seen = Recorder::of(&wanted);
        watched(&policy, embedding(), &dimensions, &mut seen);
        let streams = seen.get(Place::Site(Site::new(3)), Signal::Streams).unwrap();
        let read = values(seen.get(Place::Out, Signal::Reading).unwrap());
        let weights = match seen.get(Place::Out, Signal::PoolWeights) {
            Some(weights) => weights,
            None => Tensor::ones([2, 3, 3, 1], &Device::flex()),
        };
        let shown = seen.get(Place::Out, Signal::PoolWeights).is_some();
        assert_eq!(shown, config.single_pass || config.readout != StreamReadOut::Sum);
        assert_near(&read, &values((streams * weights).sum_dim(2)), 1e-5);
        let mixing = seen.get(Place::Site(Site::new(1)), Signal::Mixing).unwrap();
        assert_eq!(mixing.dims(), [2, 3, 3, 3]);
        if config.identity {
            let one = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
            assert_eq!(values(mixing), one.repeat(6));
        }
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused_by_name() {
    let refused = |config: Config, words: &str| {
        let refusal = config.check(&dimensions(8, 1)).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
    };
    let readout = StreamReadOut::Mean;
    refused(Config { single_pass: true, readout, ..three() }, "leave one of the two out");
    refused(Config { identity: true, ..three() }, "leave sinkhorn_iters out");
    refused(Config { epsilon: -1e-6, ..three() }, "epsilon is -0.000001");
    refused(Config { epsilon: f64::NAN, ..three() }, "epsilon is NaN");
    refused(Config { post_epsilon: 2.0, ..three() }, "post_epsilon is 2");
    refused(Config { post_multiplier: 0.0, ..three() }, "post_multiplier is 0");
    refused(Config { post_multiplier: f64::INFINITY, ..three() }, "post_multiplier is inf");
    let lite = ManifoldLiteConfig { single_pass: true, readout, ..Default::default() };
    assert!(lite.check(&dimensions(8, 1)).is_err());
    for config in forms() {
        config.check(&dimensions(8, 1)).unwrap();
    }
}

#[test]
fn names_of_released_models_are_echoed_in_full() {
    let echo = |text: &str| text.parse::<ResidualConfig>().unwrap().to_string();
    let deepseek = "mhc:streams=4,sinkhorn_iters=20,epsilon=1e-6";
    assert_eq!(echo("deepseek_v4"), format!("{deepseek},readout=gated"));
    assert_eq!(echo("deepseek_v4_1_flash"), format!("{deepseek},single_pass=true"));
    assert_eq!(echo("glm5_flash"), format!("{deepseek},readout=mean"));
    let hy4 = "mhc:streams=4,identity=true,epsilon=1e-6,post_epsilon=1e-6,readout=gated";
    assert_eq!(echo("hy4"), hy4);
    assert_eq!(echo("hy4:streams=2,post_multiplier=2.0"), hy4.replace('4', "2"));
}

#[test]
fn settings_of_older_files_are_written_as_they_were() {
    let echo = |text: &str| text.parse::<ResidualConfig>().unwrap().to_string();
    assert_eq!(echo("mhc"), "mhc:streams=4,sinkhorn_iters=20");
    assert_eq!(echo("mhc_lite"), "mhc_lite:streams=4");
    assert_eq!(echo("hc"), "hc:streams=4,dynamic=true");
    assert_eq!(echo("hc:identity=true"), "hc:streams=4,dynamic=true,identity=true");
    // Where nothing is mixed, there are no rounds; and a number of rounds is not taken for unsaid.
    assert_eq!(echo("mhc:identity=true"), "mhc:streams=4,identity=true");
    let zero: ResidualConfig = "mhc:sinkhorn_iters=0".parse().unwrap();
    assert!(zero.check(&dimensions(8, 1)).unwrap_err().to_string().contains("between 1 and"));
    let both: ResidualConfig = "mhc:identity=true,sinkhorn_iters=20".parse().unwrap();
    assert!(both.check(&dimensions(8, 1)).is_err());
}

#[test]
fn streams_that_are_not_mixed_cost_less() {
    let dimensions = dimensions(64, 4);
    let cost = |config: &Config| config.cost(&dimensions);
    assert!(cost(&identity()).flops < cost(&three()).flops / 2);
    let gated = Config { readout: StreamReadOut::Gated, ..three() };
    let more = cost(&gated);
    assert!(more.flops > cost(&three()).flops);
}
