use super::*;
use crate::policies::prenorm::PreNormConfig;
use crate::probe::{Place, Recorder, Signal};
use crate::residual::Residual;
use crate::testing::{
    assert_close, assert_gradients, assert_near, chosen, dimensions, drawn, fresh, normal, random,
    traverse, values, watched,
};
use crate::traversal::Traversal;
use burn::tensor::Tensor;

fn plain() -> SandwichConfig {
    SandwichConfig::default()
}

fn scaled() -> SandwichConfig {
    SandwichConfig { scaled: true, ..plain() }
}

fn block_scaled() -> SandwichConfig {
    SandwichConfig { block_scale: true, ..plain() }
}

fn gated(temperature: f64) -> SandwichConfig {
    SandwichConfig { gate_temperature: Some(temperature), ..plain() }
}

/// What the stream becomes of `x` when the sub-layer returns `y`.
fn written(policy: &Additive, site: usize, x: &Tensor<3>, y: &Tensor<3>) -> Tensor<3> {
    let (state, traversal) = (policy.open(x.clone()), &mut Traversal::default());
    policy.write(Site::new(site), state, x.clone(), y.clone(), traversal).x
}

fn out(policy: &Additive) -> Tensor<3> {
    traverse(policy, normal("embedding", [2, 3, 8]), &dimensions(8, 3))
}

#[test]
fn every_write_has_the_size_of_its_gain_whatever_the_sub_layer_returns() {
    let policy = fresh(&plain(), &dimensions(8, 2));
    let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
    for size in [0.1, 1.0, 100.0] {
        let write = written(&policy, 3, &x, &(y.clone() * size)) - x.clone();
        assert_near(&values(write.square().mean_dim(2)), &[1.0; 6], 1e-3);
    }
}

#[test]
fn without_gains_the_head_reads_the_embedding_alone() {
    let policy = chosen(&plain(), &dimensions(8, 3), |name, shape| {
        name.ends_with("post_norm").then(|| vec![0.0; shape[0]])
    });
    assert_close(out(&policy), hadal_kernels::rms(normal("embedding", [2, 3, 8]), 1e-6), 1e-6);
}

#[test]
fn sub_layers_read_through_prenorms_norms() {
    let dimensions = dimensions(8, 2);
    let (sandwich, prenorm) =
        (random(&plain(), &dimensions), random(&PreNormConfig::default(), &dimensions));
    let x = normal("x", [1, 2, 8]);
    for site in dimensions.each_site() {
        let read = |policy: &Additive| {
            let state = policy.open(x.clone());
            values(policy.read(site, &state, &mut Traversal::default()).input)
        };
        assert_eq!(read(&sandwich), read(&prenorm));
    }
}

#[test]
fn a_scaled_stream_is_a_mean_that_keeps_the_root_of_its_number() {
    let dimensions = dimensions(8, 3);
    let policy = random(&scaled(), &dimensions);
    let mut seen = Recorder::of(&[Signal::Reading, Signal::Write]);
    let embedding = normal("embedding", [2, 3, 8]);
    watched(&policy, embedding.clone(), &dimensions, &mut seen);
    let mut sum = embedding;
    for site in dimensions.each_site() {
        let at = |signal| seen.get(Place::Site(site), signal).unwrap().squeeze_dim::<3>(2);
        let expected = sum.clone() / ((site.index + 1) as f64).sqrt();
        assert_close(at(Signal::Reading), expected, 1e-5);
        let gain = drawn(&format!("residual.{}.post_norm", site.index), &[8]);
        let gain = Tensor::<1>::from_floats(gain.as_slice(), &sum.device());
        sum = sum + hadal_kernels::rms(at(Signal::Write), 1e-6) * gain.unsqueeze();
    }
}

#[test]
fn scaled_is_the_same_function() {
    let dimensions = dimensions(8, 3);
    assert_close(out(&random(&scaled(), &dimensions)), out(&random(&plain(), &dimensions)), 1e-5);
}

#[test]
fn the_weights_of_scaled_streams_survive_a_cut() {
    let dimensions = Dimensions { removed: vec![1], ..dimensions(8, 2) };
    let [carry, factor] = scaled().weights(Site::new(3), &dimensions);
    assert_near(&[carry as f32, factor as f32], &[(6f32 / 7.0).sqrt(), 7f32.sqrt().recip()], 1e-6);
}

#[test]
fn block_scales_of_one_change_nothing() {
    let dimensions = dimensions(8, 3);
    let start = chosen(&block_scaled(), &dimensions, |name, shape| {
        (!name.ends_with("scale")).then(|| drawn(name, shape))
    });
    assert_close(out(&start), out(&random(&plain(), &dimensions)), 1e-6);
}

#[test]
fn a_stream_is_scaled_after_the_mlp_of_its_block() {
    let policy = chosen(&block_scaled(), &dimensions(8, 2), |name, _| {
        (name == "residual.block.2.scale").then(|| vec![0.25])
    });
    let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
    let sum = x.clone() + hadal_kernels::rms(y.clone(), 1e-6);
    for (site, scale) in [(0, 1.0), (1, 1.0), (2, 1.0), (3, 0.25)] {
        assert_close(written(&policy, site, &x, &y), sum.clone() * scale, 1e-6);
    }
}

#[test]
fn a_block_without_one_sub_layer_is_scaled_and_one_without_both_is_not() {
    let policy = chosen(&block_scaled(), &dimensions(8, 2), |name, _| {
        (name == "residual.block.1.scale").then(|| vec![0.25])
    });
    let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
    let without = |site, state| policy.without(Site::new(site), state);
    let none = without(1, without(0, policy.open(x.clone())));
    assert_eq!(values(none.x), values(x.clone()));
    let traversal = &mut Traversal::default();
    let sum = (x.clone() + hadal_kernels::rms(y.clone(), 1e-6)) * 0.25;
    let attention =
        policy.write(Site::new(0), policy.open(x.clone()), x.clone(), y.clone(), traversal);
    assert_close(without(1, attention).x, sum.clone(), 1e-6);
    let mlp = policy.write(Site::new(1), without(0, policy.open(x.clone())), x, y, traversal);
    assert_close(mlp.x, sum, 1e-6);
}

#[test]
fn gates_are_those_of_the_worked_numbers() {
    for (gate, open, carried) in [
        (0.3, 0.731_058_6, 0.682_314_7),
        // From here on the carried weight is constant.
        (3.0, 0.999_954_6, 0.031_622_78),
        (0.0, 0.5, 0.866_025_4),
    ] {
        let policy = chosen(&gated(0.3), &dimensions(8, 1), |name, shape| {
            name.ends_with("gate").then(|| vec![gate; shape[0]])
        });
        let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
        let expected = x.clone() * carried + hadal_kernels::rms(y.clone(), 1e-6) * open;
        assert_close(written(&policy, 1, &x, &y), expected, 1e-6);
    }
}

#[test]
fn closed_gates_leave_the_embedding() {
    let policy = chosen(&gated(0.3), &dimensions(8, 3), |name, shape| {
        name.ends_with("gate").then(|| vec![-9.0; shape[0]])
    });
    assert_close(out(&policy), hadal_kernels::rms(normal("embedding", [2, 3, 8]), 1e-6), 1e-5);
}

#[test]
fn gates_start_half_open_and_are_shown_for_each_channel() {
    let dimensions = dimensions(64, 2);
    let policy = fresh(&gated(0.3), &dimensions);
    let mut seen = Recorder::of(&[Signal::Gates]);
    watched(&policy, normal("embedding", [2, 3, 64]), &dimensions, &mut seen);
    assert_eq!(seen.seen.len(), 4);
    for (_, _, gates) in seen.seen {
        assert_eq!(gates.dims(), [2, 3, 1, 64]);
        let gates = values(gates);
        // Four standard deviations and more of the logits, a quarter of the slope of a sigmoid each.
        assert!(gates.iter().all(|gate| (gate - 0.5).abs() < 0.08));
        assert!(gates.iter().any(|gate| (gate - 0.5).abs() > 0.01));
    }
}

#[test]
fn an_embedding_that_is_normalised_has_the_size_of_its_gain() {
    let config = SandwichConfig { embed_norm: true, ..plain() };
    let policy = random(&config, &dimensions(8, 1));
    let x = normal("x", [2, 3, 8]);
    let gain = drawn("residual.embed_norm", &[8]);
    let gain = Tensor::<1>::from_floats(gain.as_slice(), &x.device());
    let expected = hadal_kernels::rms(x.clone(), 1e-6) * gain.unsqueeze();
    for size in [1.0, 50.0] {
        assert_close(policy.open(x.clone() * size).x, expected.clone(), 1e-5);
    }
}

#[test]
fn settings_that_contradict_each_other_or_are_no_temperature_are_refused() {
    let refusal = |config: SandwichConfig| config.check(&dimensions(8, 2)).unwrap_err().to_string();
    let both = refusal(SandwichConfig { scaled: true, ..gated(0.3) });
    assert!(both.contains("gate_temperature and scaled"), "{both}");
    for bad in [0.0, -1.0, f64::NAN] {
        assert!(refusal(gated(bad)).contains("gate_temperature is"));
    }
}

#[test]
fn gradients_agree_with_central_differences() {
    let small = dimensions(4, 2);
    let all = SandwichConfig { block_scale: true, embed_norm: true, ..gated(0.7) };
    for config in [plain(), scaled(), block_scaled(), gated(0.7), all] {
        assert_gradients(&config, &small);
    }
}

#[test]
fn where_the_carried_weight_is_constant_it_has_no_gradient() {
    let open = |logit: f32| {
        let logits: Tensor<1> = Tensor::<1>::from_floats([logit], &burn::tensor::Device::flex());
        let logits = logits.autodiff().require_grad();
        let carried = ChannelGate {
            logits: burn::module::Param::from_tensor(logits.clone()),
            temperature: 0.3,
        };
        let (_, carried) = carried.weights();
        let gradients = carried.sum().backward();
        logits.grad(&gradients).map(values).unwrap_or_default()
    };
    assert!(open(3.0).iter().all(|gradient| *gradient == 0.0));
    // b = 0.7310585786: -b / sqrt(1 - b^2) b (1 - b) / T
    assert_near(&open(0.3), &[-0.702_192_3], 1e-4);
}
