//! What a policy says about going on from a prenorm model holds on every path.

use crate::fused::learn;
use crate::support::{
    assert_close, base, built, configs, forward, random, random_values, text, with_policy,
};
use hadal_kernels::plainly;
use hadal_model::{Decoder, Device, ModelConfig, Pass};
use hadal_residual::{PreNormModel, ResidualConfig};
use std::collections::{BTreeMap, BTreeSet};

/// A prenorm model and the same with this config's policy, or why there is none.
fn both(config: &ModelConfig) -> Result<[Decoder; 2], String> {
    let device = Device::flex().autodiff();
    let prenorm = ModelConfig {
        residual: ResidualConfig::default(),
        removed_blocks: Vec::new(),
        ..config.clone()
    };
    let source = random(&prenorm, &device);
    let old: BTreeMap<String, Vec<f32>> = source.parameters().into_iter().collect();
    let elements = |name: &str| old.get(name).cloned();
    let model = PreNormModel { dimensions: prenorm.dimensions(), elements: &elements };
    let chosen = config.residual.as_prenorm(&model).map_err(|error| error.to_string())?;
    let target =
        built(config, &device, |name, shape| chosen(name, shape).or_else(|| elements(name)));
    drop(chosen);
    Ok([source, target])
}

/// Epsilon is all that tells a stream from several of its copies, or their mean.
fn without_epsilon(config: ModelConfig) -> ModelConfig {
    ModelConfig { norm_eps: 1e-9, ..config }
}

#[test]
fn policies_that_can_go_on_from_prenorm_compute_what_it_does() {
    let (mut can, mut cannot) = (BTreeSet::new(), BTreeSet::new());
    for config in configs().into_iter().map(without_epsilon) {
        let kind = config.residual.about().kind;
        let [source, target] = match both(&config) {
            Ok(both) => both,
            Err(reason) => {
                assert!(reason.starts_with(&format!("residual policy {kind}: ")), "{reason}");
                assert!(reason.len() > 60, "{reason}");
                cannot.insert(kind);
                continue;
            }
        };
        can.insert(kind);
        let tokens = text(2, 7);
        let wanted = forward(&source, &tokens);
        assert_close(forward(&target, &tokens), wanted.clone(), 1e-5);
        assert_close(plainly(|| forward(&target, &tokens)), wanted, 1e-5);
    }
    let known = ["prenorm", "lns", "denseformer", "mudd", "hc", "mhc", "mhc_lite", "attnres", "gr"];
    for kind in known {
        assert!(can.contains(kind), "{kind} cannot");
    }
    for kind in ["postnorm", "deepnorm", "mixln", "sandwich", "highway", "siamese", "mgr", "nag"] {
        assert!(cannot.contains(kind), "{kind} can");
    }
}

/// Copies of a stream that were all treated alike would stay copies for ever, and zeros behind zeros would stay zeros.
#[test]
fn what_a_policy_adds_to_prenorm_can_learn() {
    for config in configs().into_iter().map(without_epsilon) {
        let Ok([_, target]) = both(&config) else { continue };
        let own = |name: &&String| name.starts_with("residual.");
        let gradients = learn(&target, Pass::default());
        let all: Vec<&String> = gradients.keys().filter(own).collect();
        let alive = all.iter().filter(|name| gradients[**name].iter().any(|g| g.abs() > 1e-9));
        let (alive, all) = (alive.count(), all.len());
        assert!(all == 0 || 6 * alive >= all, "{}: {alive} of {all} learn", config.residual);
    }
}

/// These forms are prenorm for any epsilon, as those of trained models are.
#[test]
fn forms_that_agree_whatever_epsilon_is_are_known() {
    for policy in [
        "hc",
        "hc:dynamic=false",
        "hc:streams=3,identity=true,stream_scale=true",
        "deepseek_v4",
        "deepseek_v4_1_flash",
        "glm5_flash",
        "hy4",
        "mhc:readout=mean",
        "mhc:identity=true,readout=mean",
        "mhc_lite:readout=gated",
        "gr",
        "gr:streams=1",
        "denseformer",
        "attnres:delta=true,gated=true",
        "attnres:block_size=4,heads=2,delta=true,gated=true",
    ] {
        let config = ModelConfig { norm_eps: 0.01, ..with_policy(policy) };
        let [source, target] = both(&config).unwrap();
        let tokens = text(2, 7);
        assert_close(forward(&target, &tokens), forward(&source, &tokens), 5e-6);
    }
}

/// After some steps along the gradient, whatever its size, streams that began as copies differ.
#[test]
fn copies_of_a_stream_become_different() {
    for policy in ["hc", "mhc:readout=mean", "hy4", "mhc_lite", "gr", "mhc:stream_scale=true"] {
        let [_, mut target] = both(&ModelConfig { norm_eps: 1e-6, ..with_policy(policy) }).unwrap();
        for _ in 0..3 {
            let gradients = learn(&target, Pass::default());
            // As Adam's first steps: the size of a gradient does not matter.
            target.change_parameters(|name, values| {
                for (value, g) in values.iter_mut().zip(gradients.get(name).into_iter().flatten()) {
                    if g.abs() > 1e-9 {
                        *value -= 0.01 * g.signum();
                    }
                }
            });
        }
        assert!(spread(&target) > 1e-4, "{policy}: {}", spread(&target));
    }
}

/// How far the last streams of a token are apart, relative to the largest value.
fn spread(decoder: &Decoder) -> f32 {
    use hadal_residual::{Recorder, Signal};
    let mut seen = Recorder::of(&[Signal::Streams]);
    let pass = Pass { probe: Some(&mut seen), ..Pass::default() };
    decoder.logits(&text(1, 5), pass).unwrap();
    let (_, _, streams) = seen.seen.pop().unwrap();
    let first = streams.clone().narrow(2, 0, 1);
    let apart = (streams.clone() - first).abs().max().into_scalar::<f32>();
    apart / streams.abs().max().into_scalar::<f32>()
}

#[test]
fn a_gain_is_read_from_the_prenorm_model() {
    let [source, target] = both(&with_policy("gr:streams=2")).unwrap();
    let old: BTreeMap<String, Vec<f32>> = source.parameters().into_iter().collect();
    let new: BTreeMap<String, Vec<f32>> = target.parameters().into_iter().collect();
    let gain = random_values("norm.weight", &[base().d_model]);
    assert_eq!(old["norm.weight"], gain);
    let gamma = &new["residual.out.gamma"];
    for (channel, gain) in gain.iter().enumerate() {
        let mean = (gamma[channel] + gamma[channel + base().d_model]) / 2.0;
        assert!((mean - (2.0 * gain - 1.0)).abs() < 1e-5);
    }
}
