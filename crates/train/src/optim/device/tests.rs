use super::*;
use crate::optim::{Coefficients, HiddenRule, MuonScale, clip_norm, global_norm, project};
use hadal_model::ModelConfig;

/// A policy of each group of parameters, and of each rule for tables.
const POLICIES: [&str; 5] = ["prenorm", "mgr:streams=2", "nag", "hc:streams=2", "mhc:streams=2"];

fn model(policy: &str) -> Decoder {
    let text = "d_model = 16\nn_layers = 2\nn_heads = 2\nd_ff = 24\n";
    let section: crate::ModelSection = toml::from_str(text).unwrap();
    let model: ModelConfig = section.resolve(&policy.parse().unwrap(), 21, 8);
    let mut decoder = Decoder::fresh(&model, 5, &Device::flex().autodiff()).unwrap();
    project(&mut decoder);
    decoder
}

/// Numbers that look like noise, other ones for each step.
fn gradients(decoder: &Decoder, step: usize) -> BTreeMap<String, Vec<f32>> {
    let mut place = step * 1000;
    let mut next = || {
        place += 1;
        ((place as f32 * 12.9898).sin() * 43_758.547).fract() - 0.3
    };
    let declared = decoder.declared().iter();
    let named = declared.map(|declared| {
        let count = declared.shape.iter().product();
        (declared.name.clone(), std::iter::repeat_with(&mut next).take(count).collect())
    });
    named.collect()
}

fn on_device(gradients: &BTreeMap<String, Vec<f32>>) -> TensorGradients {
    let tensor = |values: &Vec<f32>| {
        Tensor::from_data(TensorData::new(values.clone(), [values.len()]), &Device::flex())
    };
    gradients.iter().map(|(name, values)| (name.clone(), tensor(values))).collect()
}

/// The largest difference, and what it is of.
fn distance(one: &Decoder, other: &Decoder) -> (f32, String) {
    let pairs = one.parameters().into_iter().zip(other.parameters());
    let apart = pairs.map(|((name, one), (_, other))| {
        let apart = one.iter().zip(&other).map(|(one, other)| (one - other).abs());
        (
            apart
                .fold(0.0, |most, apart| if apart > most || apart.is_nan() { apart } else { most }),
            name,
        )
    });
    apart.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap()
}

/// The law: both forms, three steps from the same start.
fn hold_together(policy: &str, config: &OptimizerConfig) {
    let (mut host, mut device) = (model(policy), model(policy));
    let mut vectors = Optimizer::new(config, &host);
    let mut tensors = DeviceOptimizer::of(&vectors, &device.device());
    for step in 0..3 {
        let mut own = gradients(&host, step);
        let mut theirs = on_device(&own);
        let norm = global_norm(&own);
        let (found, more) =
            tensors.norm(&theirs, vec![Tensor::ones([1], &Device::flex())]).unwrap();
        assert!((found / norm - 1.0).abs() < 1e-5, "{policy}: {found} is not {norm}");
        assert_eq!(more, [1.0]);
        clip_norm(&mut own, norm, config.clip);
        let scale = (config.clip / norm) as f32;
        let rate = 0.5 + step as f64;
        vectors.step(&mut host, &own, step as u64, rate);
        tensors.step(&mut device, &mut theirs, Some(scale), step as u64, rate);
        let (apart, name) = distance(&host, &device);
        assert!(apart < 1e-5, "{policy}, step {step}: {name} is {apart} apart");
    }
    // The means too, so that a run may move.
    let own = vectors.clone();
    tensors.store(&mut vectors).unwrap();
    for ((name, one), other) in own.slots().iter().zip(vectors.slots().values()) {
        assert_eq!((one.first.len(), one.second.len()), (other.first.len(), other.second.len()));
        let pairs =
            one.first.iter().chain(&one.second).zip(other.first.iter().chain(&other.second));
        for (one, other) in pairs {
            assert!((one - other).abs() < 1e-6, "{policy}: the means of {name}: {one} {other}");
        }
    }
}

#[test]
fn tensors_move_as_vectors_do_under_every_rule() {
    for policy in POLICIES {
        for hidden in [HiddenRule::Muon, HiddenRule::Adamw] {
            hold_together(policy, &OptimizerConfig { hidden, ..OptimizerConfig::default() });
        }
    }
}

#[test]
fn tensors_move_as_vectors_do_with_other_polynomials_and_scales() {
    let mut config = OptimizerConfig::default();
    (config.muon.coefficients, config.muon.scale) = (Coefficients::Jordan, MuonScale::Moonlight);
    hold_together("prenorm", &config);
}

#[test]
fn what_is_remembered_goes_to_the_device_and_comes_back_to_the_bit() {
    let mut decoder = model("nag");
    let mut vectors = Optimizer::new(&OptimizerConfig::default(), &decoder);
    let gradient = gradients(&decoder, 0);
    vectors.step(&mut decoder, &gradient, 0, 1.0);
    let own = vectors.clone();
    let tensors = DeviceOptimizer::of(&own, &Device::flex().autodiff());
    for slot in vectors.slots_mut().values_mut() {
        slot.first.fill(7.0);
        slot.second.fill(7.0);
    }
    tensors.store(&mut vectors).unwrap();
    assert_eq!(vectors.slots(), own.slots());
}

#[test]
fn parts_of_a_batch_are_averaged() {
    let decoder = model("prenorm");
    let (one, two) = (gradients(&decoder, 0), gradients(&decoder, 1));
    let mut sum = TensorGradients::new();
    for part in [&one, &two] {
        accumulate_tensors(&mut sum, on_device(part), 2);
    }
    for (name, tensor) in sum {
        let values = read_back(tensor).unwrap();
        for ((value, one), two) in values.iter().zip(&one[&name]).zip(&two[&name]) {
            assert!((value - (one + two) / 2.0).abs() < 1e-6, "{name}");
        }
    }
}

#[test]
fn what_is_no_number_shows_in_the_norm() {
    let decoder = model("prenorm");
    let mut broken = gradients(&decoder, 0);
    broken.values_mut().next().unwrap()[3] = f32::NAN;
    let tensors = DeviceOptimizer::of(
        &Optimizer::new(&OptimizerConfig::default(), &decoder),
        &Device::flex(),
    );
    assert!(tensors.norm(&on_device(&broken), Vec::new()).unwrap().0.is_nan());
}
