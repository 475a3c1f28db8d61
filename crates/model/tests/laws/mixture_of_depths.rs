//! Routed blocks of a model that learns: there the top k decide, which the other laws, about models in use, do not
//! cover.

use crate::support::{ROUTED, base, built, random, random_values, text, values, with_policy};
use burn::tensor::Tensor;
use hadal_kernels::plainly;
use hadal_model::{Decoder, Device, ModelConfig, ModelCost, Pass, Tally, Tokens, cross_entropy};
use hadal_residual::{Memory, Place, Recorder, Signal, Site, StepMode};
use std::collections::BTreeMap;

type Named = BTreeMap<String, Vec<f32>>;

const TIME: usize = 7;
/// The number of seven tokens that run: half of them.
const RUNNING: u64 = 4;

fn input() -> Tokens {
    text(2, TIME)
}

fn targets() -> Tokens {
    Tokens::rows(input().ids().iter().map(|id| (3 * id + 1) % 19).collect(), 2).unwrap()
}

/// The mode of a model that learns.
fn learning() -> StepMode {
    StepMode { learning: true, ..StepMode::default() }
}

/// A model with some of its parameters changed.
fn changed(device: &Device, change: impl Fn(&str, &mut Vec<f32>)) -> Decoder {
    built(&with_policy(ROUTED), device, |name, shape| {
        let mut values = random_values(name, shape);
        change(name, &mut values);
        Some(values)
    })
}

fn learned(decoder: &Decoder) -> (f32, Named) {
    learned_with(decoder, Memory::default())
}

fn learned_with(decoder: &Decoder, memory: Memory) -> (f32, Named) {
    let pass = Pass { mode: &learning(), memory, ..Pass::default() };
    let loss = decoder.loss(&input(), &targets(), &[], pass).unwrap();
    let value = loss.try_to_vec_as::<f32>().unwrap()[0];
    (value, decoder.gradients(loss.backward()).into_iter().collect())
}

fn is_predictors(name: &str) -> bool {
    name.contains(".predictor.")
}

/// The logits of a model that learns.
fn forward(decoder: &Decoder) -> Tensor<3> {
    decoder.logits(&input(), Pass { mode: &learning(), ..Pass::default() }).unwrap()
}

/// The tokens that skip each site that shows skips.
fn skips(mode: &StepMode, decoder: &Decoder, tokens: &Tokens) -> Vec<(Site, Vec<f32>)> {
    let mut probe = Recorder::of(&[Signal::Skipped]);
    decoder.logits(tokens, Pass { mode, probe: Some(&mut probe), ..Pass::default() }).unwrap();
    let of = |place| match place {
        Place::Site(site) => site,
        Place::Out => panic!("the head skips nobody"),
    };
    probe.seen.into_iter().map(|(place, _, skipped)| (of(place), values(skipped))).collect()
}

fn counted(mode: &StepMode, decoder: &Decoder, tokens: &Tokens) -> Tally {
    let mut tally = Tally::default();
    decoder.logits(tokens, Pass { mode, tally: Some(&mut tally), ..Pass::default() }).unwrap();
    tally
}

#[test]
fn both_sub_layers_of_the_routed_block_skip_the_same_tokens() {
    let decoder = random(&with_policy(ROUTED), &Device::flex());
    for mode in [StepMode::default(), learning()] {
        let skips = skips(&mode, &decoder, &input());
        let sites: Vec<usize> = skips.iter().map(|(site, _)| site.index).collect();
        assert_eq!(sites, [2, 3]);
        assert_eq!(skips[0].1, skips[1].1);
        assert!(skips[0].1.contains(&0.0) && skips[0].1.contains(&1.0), "{:?}", skips[0].1);
    }
}

#[test]
fn the_loss_and_the_gradients_of_all_others_do_not_know_the_predictor() {
    let device = Device::flex().autodiff();
    let (loss, gradients) = learned(&changed(&device, |_, _| {}));
    let (other_loss, other_gradients) = learned(&changed(&device, |name, values| {
        if is_predictors(name) {
            values.iter_mut().for_each(|value| *value = 0.3 - *value);
        }
    }));
    assert_eq!(loss, other_loss);
    assert_eq!(gradients.len(), other_gradients.len());
    for (name, gradient) in &gradients {
        assert_eq!(*gradient == other_gradients[name], !is_predictors(name), "{name}");
    }
    let decoder = changed(&Device::flex(), |_, _| {});
    let own = cross_entropy(forward(&decoder), &targets());
    assert!((values(own)[0] - loss).abs() < 1e-5, "{loss}");
}

#[test]
fn every_parameter_learns() {
    let decoder = changed(&Device::flex().autodiff(), |_, _| {});
    let (_, gradients) = learned(&decoder);
    for declared in decoder.declared() {
        let gradient = gradients.get(&declared.name).unwrap_or_else(|| panic!("{}", declared.name));
        assert!(gradient.iter().any(|g| g.abs() > 1e-6), "{} has none", declared.name);
    }
}

#[test]
fn learning_is_the_same_with_plain_operations_and_with_what_is_computed_again() {
    let device = Device::flex().autodiff();
    let (loss, gradients) = learned(&changed(&device, |_, _| {}));
    let (plain_loss, plain) = plainly(|| learned(&changed(&device, |_, _| {})));
    assert!((loss - plain_loss).abs() < 1e-5, "{loss} is not {plain_loss}");
    let most = plain.values().flatten().fold(0f32, |most, value| most.max(value.abs()));
    assert_eq!(gradients.len(), plain.len());
    for (name, want) in &plain {
        for (got, want) in gradients[name].iter().zip(want) {
            assert!((got - want).abs() <= 1e-4 * most, "{name}: {got} is not {want}");
        }
    }
    let again = Memory { recompute: true, ..Memory::default() };
    assert_eq!(learned_with(&changed(&device, |_, _| {}), again), (loss, gradients));
}

#[test]
fn parameters_change_where_they_are_after_learning() {
    let mut decoder = changed(&Device::flex().autodiff(), |_, _| {});
    let addresses = |decoder: &mut Decoder| {
        let mut found = Vec::new();
        decoder.change_parameters(|name, elements| {
            found.push((name.to_owned(), elements.as_ptr().addr()));
        });
        found
    };
    let before = addresses(&mut decoder);
    learned(&decoder);
    assert_eq!(addresses(&mut decoder), before);
}

/// In f64, so that differences of losses keep their digits.
fn loss_of(decoder: &Decoder) -> f64 {
    let logits = values(forward(decoder));
    let targets = targets();
    let rows = logits.chunks(19).zip(targets.ids());
    let surprise = |(row, &target): (&[f32], &u32)| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        sum.ln() - f64::from(row[target as usize])
    };
    rows.map(surprise).sum::<f64>() / targets.ids().len() as f64
}

#[test]
fn gradients_of_the_router_and_its_block_are_the_slopes_of_the_loss() {
    let (_, gradients) = learned(&changed(&Device::flex().autodiff(), |_, _| {}));
    let chosen = skips(&learning(), &changed(&Device::flex(), |_, _| {}), &input());
    for name in [
        "residual.1.router.weight",
        "layers.1.attn_norm.weight",
        "layers.1.attn.k.weight",
        "layers.1.mlp_norm.weight",
        "layers.1.mlp.down.weight",
        "layers.0.mlp.up.weight",
    ] {
        let most = gradients[name].iter().fold(0f32, |most, g| most.max(g.abs()));
        for element in (0..gradients[name].len()).step_by(gradients[name].len().div_ceil(16)) {
            let step = 4e-3;
            let at = |by: f32| {
                let decoder = changed(&Device::flex(), |other, values| {
                    if other == name {
                        values[element] += by;
                    }
                });
                // Where the choice changes, the loss has a step and no slope.
                let choice = skips(&learning(), &decoder, &input());
                assert_eq!(choice, chosen, "{name}[{element}] is near a tie");
                loss_of(&decoder)
            };
            let slope = (at(step) - at(-step)) / (2.0 * f64::from(step));
            let got = f64::from(gradients[name][element]);
            let allowed = 1e-3 + 2e-2 * f64::from(most);
            assert!((got - slope).abs() < allowed, "{name}[{element}]: {got} is not {slope}");
        }
    }
}

#[test]
fn each_sequence_has_its_own_top_k() {
    let decoder = changed(&Device::flex(), |_, _| {});
    let whole = skips(&learning(), &decoder, &input());
    for (row, ids) in input().ids().chunks(TIME).enumerate() {
        let alone = skips(&learning(), &decoder, &Tokens::row(ids));
        let of_row = &whole[0].1[row * TIME..(row + 1) * TIME];
        assert_eq!(alone[0].1, of_row);
        assert_eq!(TIME as f32 - of_row.iter().sum::<f32>(), RUNNING as f32);
    }
}

#[test]
fn those_who_do_not_run_cost_nothing_and_have_no_keys() {
    let decoder = changed(&Device::flex(), |_, _| {});
    let tally = counted(&learning(), &decoder, &input());
    let [attention, mlp] = [2, 3].map(|site| tally.sites[site]);
    assert_eq!([attention.ran, attention.keyed, mlp.ran], [2 * RUNNING; 3]);
    assert_eq!(attention.seen, 2 * RUNNING * (RUNNING + 1) / 2);
    for (site, dense) in [0, 4].map(|site| (site, tally.dense().sites[site])) {
        assert_eq!(tally.sites[site], dense, "block {} is not routed", site / 2);
    }
    // A predictor lets other tokens run, and the count follows.
    let decoder = random(decoder.config(), &Device::flex());
    let in_use = StepMode::default();
    let tally = counted(&in_use, &decoder, &input());
    let runs = 14.0 - skips(&in_use, &decoder, &input())[0].1.iter().sum::<f32>();
    assert_eq!([tally.sites[2].ran, tally.sites[2].keyed], [runs as u64; 2]);
    assert!(tally.skipped_share(decoder.config()) > 0.0);
}

#[test]
fn the_cost_of_a_model_is_what_a_full_sequence_takes_while_it_learns() {
    let config = ModelConfig { max_seq_len: 8, ..with_policy(ROUTED) };
    let decoder = random(&config, &Device::flex());
    let tally = counted(&learning(), &decoder, &text(2, 8));
    let cost = ModelCost::of(&config).unwrap();
    let branches = cost.forward_flops_per_token - cost.residual_flops_per_token;
    let deciding = config.residual.deciding(Site::new(2), &config.dimensions());
    assert_eq!(tally.flops(&config), tally.tokens * (branches + deciding));
    let dense = ModelCost::of(&ModelConfig { max_seq_len: 8, ..base() }).unwrap();
    assert!(cost.forward_flops_per_token < dense.forward_flops_per_token);
}
