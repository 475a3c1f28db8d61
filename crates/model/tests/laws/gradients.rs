//! Gradients reach every parameter and are the slopes of the loss.

use crate::support::{built, every_config, random, random_values, text, values};
use hadal_model::{Decoder, Device, ModelConfig, Pass, Tokens, cross_entropy};
use hadal_residual::{Recorder, ResidualConfig, Signal, StreamReadOut};
use std::collections::BTreeMap;

/// A share of the largest gradient; what has no effect stays below: rounding, the epsilon of the norms, and what twenty
/// rounds of Sinkhorn leave.
const NOTHING: f64 = 1e-4;
/// What has an effect stays above.
const SOMETHING: f64 = 1e-6;

type Named = BTreeMap<String, Vec<f32>>;

fn input() -> Tokens {
    text(2, 7)
}

fn targets() -> Tokens {
    let ids = input().ids().iter().map(|id| (3 * id + 1) % 19).collect();
    Tokens::rows(ids, 2).unwrap()
}

fn gradients(decoder: &Decoder) -> Named {
    let logits = decoder.logits(&input(), Pass::default()).unwrap();
    let loss = cross_entropy(logits, &targets());
    decoder.gradients(loss.backward()).into_iter().collect()
}

fn length(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Whether the loss cannot depend on a parameter, whatever the weights are.
fn is_without_effect(config: &ModelConfig, name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let ["residual", site, part, ..] = parts.as_slice() else { return false };
    let last = (2 * config.n_layers - 1).to_string();
    match &config.residual {
        // The first site reads copies of one embedding: `pre` only scales it, which the norm of the
        // branch undoes. Without mixing, `mix_scale` is of `pre` alone.
        ResidualConfig::HyperConnections(hc) => {
            let of_pre = part.starts_with("pre") || (hc.identity && *part == "mix_scale");
            *site == "0" && of_pre && !hc.stream_scale
        }
        ResidualConfig::ManifoldHyperConnections(mhc) => {
            let own_weights = mhc.single_pass || mhc.readout == StreamReadOut::Gated;
            let copies = *site == "0" && !mhc.stream_scale;
            let summed = *site == last && !own_weights;
            without_effect_on_manifold(part, copies, summed, mhc.single_pass)
        }
        ResidualConfig::ManifoldLite(lite) => {
            let own_weights = lite.single_pass || lite.readout == StreamReadOut::Gated;
            let copies = *site == "0" && !lite.stream_scale;
            let summed = *site == last && !own_weights;
            without_effect_on_manifold(part, copies, summed, lite.single_pass)
        }
        // A number behind everything only scales what the final norm normalises.
        ResidualConfig::Sandwich(sandwich) => {
            sandwich.block_scale && name == format!("residual.block.{}.scale", config.n_layers)
        }
        // One stream has nothing to choose from.
        ResidualConfig::MultiGate(mgr) => mgr.streams == 1 && *part == "pool",
        _ => false,
    }
}

/// Where streams are copies, `pre` only scales what is read (unless it is handed on), and rows that sum to one mix copies
/// into the same copies; where streams are summed, columns that sum to one leave the sum as it is.
fn without_effect_on_manifold(part: &str, copies: bool, summed: bool, handed_on: bool) -> bool {
    (copies && !handed_on && part.starts_with("pre"))
        || ((copies || summed) && part.starts_with("res"))
}

/// Whether a parameter only decides which tokens run: it learns from its decisions, elsewhere.
fn only_decides(name: &str) -> bool {
    name.contains(".predictor.")
}

/// Where each parameter's elements are in memory.
fn addresses(decoder: &mut Decoder) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    decoder.change_parameters(|name, elements| {
        found.insert(name.to_owned(), elements.as_ptr().addr());
    });
    found
}

/// The memory of a training step depends on this: nothing holds on to the parameters once the gradients exist.
#[test]
fn parameters_change_where_they_are_after_a_backward_pass() {
    every_config(|config| {
        let mut decoder = random(config, &Device::flex().autodiff());
        let before = addresses(&mut decoder);
        gradients(&decoder);
        assert_eq!(addresses(&mut decoder), before);
    });
}

#[test]
fn gradients_reach_every_parameter_that_has_an_effect() {
    every_config(|config| {
        let decoder = random(config, &Device::flex().autodiff());
        let gradients = gradients(&decoder);
        let lengths: Vec<(&String, f64)> = decoder
            .declared()
            .iter()
            .filter(|declared| !only_decides(&declared.name))
            .map(|declared| {
                let gradient = gradients.get(&declared.name);
                let gradient = gradient.unwrap_or_else(|| panic!("{} has none", declared.name));
                let count: usize = declared.shape.iter().product();
                assert_eq!(gradient.len(), count, "{}", declared.name);
                (&declared.name, length(gradient))
            })
            .collect();
        assert_eq!(gradients.len(), lengths.len(), "a gradient without a declaration");

        let largest = lengths.iter().fold(0.0, |most: f64, (_, length)| most.max(*length));
        let wrong: Vec<String> = lengths
            .iter()
            .filter(|(name, length)| match is_without_effect(config, name) {
                true => *length > NOTHING * largest,
                false => *length < SOMETHING * largest,
            })
            .map(|(name, length)| format!("{name} {:e}", length / largest))
            .collect();
        assert!(wrong.is_empty(), "unexpected sizes, as shares of the largest: {wrong:?}");
    });
}

/// The loss, and which tokens skipped: where that changes, the loss has a step and no slope.
fn loss(config: &ModelConfig, parameters: &Named) -> (f64, Vec<f32>) {
    let decoder = built(config, &Device::flex(), |name, _| parameters.get(name).cloned());
    let mut probe = Recorder::of(&[Signal::Skipped]);
    let pass = Pass { probe: Some(&mut probe), ..Pass::default() };
    let logits = values(decoder.logits(&input(), pass).unwrap());
    // In f64, so that differences of losses keep their digits.
    let surprise = |(row, &target): (&[f32], &u32)| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        sum.ln() - f64::from(row[target as usize])
    };
    let targets = targets();
    let rows = logits.chunks(config.vocab_size).zip(targets.ids());
    let loss = rows.map(surprise).sum::<f64>() / targets.ids().len() as f64;
    (loss, probe.seen.into_iter().flat_map(|(_, _, skipped)| values(skipped)).collect())
}

/// The slope of the loss along a direction of one parameter, and how far rounding can move it.
fn slope(config: &ModelConfig, parameters: &Named, name: &str, direction: &[f32]) -> (f64, f64) {
    let moved = |by: f64| {
        let mut parameters = parameters.clone();
        let values = parameters.get_mut(name).unwrap();
        values.iter_mut().zip(direction).for_each(|(v, d)| *v += (by * f64::from(*d)) as f32);
        loss(config, &parameters)
    };
    let mut step = 4e-3 * length(&parameters[name]).max(0.5);
    while moved(step).1 != moved(-step).1 {
        step *= 0.5;
        assert!(step > 1e-5, "{name} stands on a threshold");
    }
    let central = |step: f64| (moved(step).0 - moved(-step).0) / (2.0 * step);
    // Two steps cancel the curvature that remains with one.
    ((4.0 * central(0.5 * step) - central(step)) / 3.0, 2e-6 / step)
}

/// Half along the gradient, where the slope is large, half in any direction, where a wrong gradient shows.
fn direction(name: &str, gradient: &[f32]) -> Vec<f32> {
    let anywhere = random_values(&format!("direction.{name}"), &[gradient.len()]);
    let along = length(gradient).max(f64::MIN_POSITIVE);
    // Never against the gradient: a parameter of one element would have no direction left.
    let across = length(&anywhere).copysign(dot(gradient, &anywhere));
    let mix = |(&g, &a): (&f32, &f32)| (f64::from(g) / along + f64::from(a) / across) as f32;
    let mixed: Vec<f32> = gradient.iter().zip(&anywhere).map(mix).collect();
    let unit = length(&mixed) as f32;
    mixed.iter().map(|v| v / unit).collect()
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    every_config(|config| {
        let decoder = random(config, &Device::flex().autodiff());
        let gradients = gradients(&decoder);
        let parameters: Named = decoder.parameters().into_iter().collect();
        // A policy comes with three depth memories: each takes another third of the parameters.
        for name in gradients.keys().skip(config.depth_kv as usize).step_by(3) {
            let gradient = &gradients[name];
            let direction = direction(name, gradient);
            let expected = dot(gradient, &direction);
            let (measured, rounding) = slope(config, &parameters, name, &direction);
            let allowed = 3e-2 * length(gradient) + rounding;
            assert!(
                (measured - expected).abs() <= allowed,
                "{name}: the gradient says {expected}, the loss {measured} (within {allowed})"
            );
        }
    });
}
