//! Values of the first attention in later ones (value residual).

use crate::support::{
    ROUTED, assert_close, base, built, forward, random, random_values, text, valued, values,
    with_policy,
};
use hadal_kernels::plainly;
use hadal_model::{Decoder, Device, ModelConfig, Pass, Recording, ValueResidual};
use hadal_residual::Site;

const LEARNED: ValueResidual = ValueResidual::Learned;

/// A model with random parameters but for the weights of values.
fn weighted(config: &ModelConfig, weights: [f32; 2]) -> Decoder {
    built(config, &Device::flex(), |name, shape| {
        let mix = name.ends_with("value_mix");
        Some(if mix { weights.to_vec() } else { random_values(name, shape) })
    })
}

/// All forms of a policy without and with values of the first attention.
fn pairs(value_residual: ValueResidual) -> Vec<(ModelConfig, ModelConfig)> {
    let with = |config| ModelConfig { value_residual, ..config };
    let without = |config| ModelConfig { value_residual: ValueResidual::None, ..config };
    valued().into_iter().map(|config| (without(config.clone()), with(config))).collect()
}

#[test]
fn weights_of_zero_and_one_are_no_value_residual() {
    for (none, learned) in pairs(LEARNED) {
        let (plain, mixed) = (random(&none, &Device::flex()), weighted(&learned, [0.0, 1.0]));
        assert_close(forward(&mixed, &text(2, 7)), forward(&plain, &text(2, 7)), 1e-5);
    }
}

#[test]
fn weights_that_have_not_learned_are_the_fixed_ones() {
    for ((_, learned), (_, fixed)) in pairs(LEARNED).into_iter().zip(pairs(ValueResidual::Fixed)) {
        let start = |name: &str, shape: &[usize]| {
            (!name.ends_with("value_mix")).then(|| random_values(name, shape))
        };
        let learned = built(&learned, &Device::flex(), start);
        let logits = forward(&random(&fixed, &Device::flex()), &text(2, 7));
        assert_close(forward(&learned, &text(2, 7)), logits, 1e-5);
    }
}

#[test]
fn every_later_attention_takes_something() {
    let config = ModelConfig { value_residual: LEARNED, ..base() };
    let whole = values(forward(&weighted(&config, [0.4, 0.8]), &text(2, 7)));
    for block in 1..config.n_layers {
        let own = format!("layers.{block}.attn.value_mix");
        let decoder = built(&config, &Device::flex(), |name, shape| {
            Some(match name.ends_with("value_mix") {
                true if name == own => vec![0.0, 0.8],
                true => vec![0.4, 0.8],
                false => random_values(name, shape),
            })
        });
        assert_ne!(values(forward(&decoder, &text(2, 7))), whole, "block {block}");
    }
}

/// Values that all attention takes from the first one: its own matrix then decides alone.
#[test]
fn without_the_first_attention_the_next_one_takes_its_place() {
    for plain in [false, true] {
        for residual in ["prenorm", "gr:streams=2", "nag:directions=3,skip_threshold=0.25"] {
            let config = ModelConfig { value_residual: LEARNED, ..with_policy(residual) };
            let logits = |changed: &str| {
                let decoder = built(&config, &Device::flex(), |name, shape| {
                    let mut values = random_values(name, shape);
                    if name.ends_with("value_mix") {
                        values = vec![1.0, 0.0];
                    }
                    if name == changed {
                        values.iter_mut().for_each(|value| *value *= -1.5);
                    }
                    Some(values)
                });
                let absent = [Site::new(0)];
                let pass = || Pass { absent: &absent, ..Pass::default() };
                let logits = || values(decoder.logits(&text(2, 7), pass()).unwrap());
                if plain { plainly(logits) } else { logits() }
            };
            let whole = logits("");
            // The absent one, what the new first one would take of it, and what the last one has of its own.
            for name in
                ["layers.0.attn.v.weight", "layers.1.attn.value_mix", "layers.2.attn.v.weight"]
            {
                assert_eq!(logits(name), whole, "{residual}: {name}");
            }
            for name in ["layers.1.attn.v.weight", "layers.2.attn.value_mix"] {
                assert_ne!(logits(name), whole, "{residual}: {name}");
            }
        }
    }
}

#[test]
fn the_first_attention_stays_where_the_next_one_lacks_values() {
    let config = ModelConfig { value_residual: LEARNED, ..with_policy(ROUTED) };
    let decoder = random(&config, &Device::flex());
    let without = |sites: &[usize]| {
        let absent: Vec<Site> = sites.iter().map(|&site| Site::new(site)).collect();
        decoder.check_absent(&absent).map_err(|error| error.to_string())
    };
    let said = without(&[0]).unwrap_err();
    assert!(said.starts_with("the attention of block 0 cannot be absent"), "{said}");
    assert!(said.contains("value_residual"), "{said}");
    // The one after the routed one is there for all tokens.
    assert_eq!(without(&[0, 2]), Ok(()));
    assert_eq!(without(&[0, 2, 4]), Ok(()));
    assert_eq!(without(&[2]), Ok(()));
}

#[test]
fn tokens_that_skip_the_first_attention_leave_it_their_values() {
    // All tokens skip the first attention, none skips the second.
    let skipping = "nag:directions=3,skip_threshold=[9.0,0.0,0.0,0.0,0.0,0.0]";
    for plain in [false, true] {
        let config = ModelConfig { value_residual: LEARNED, ..with_policy(skipping) };
        let logits = |changed: &str| {
            let decoder = built(&config, &Device::flex(), |name, shape| {
                let mut values = random_values(name, shape);
                if name == changed {
                    values.iter_mut().for_each(|value| *value *= -1.5);
                }
                Some(values)
            });
            let logits = || values(forward(&decoder, &text(2, 7)));
            if plain { plainly(logits) } else { logits() }
        };
        assert_eq!(logits("layers.0.attn.o.weight"), logits(""), "somebody ran it");
        assert_ne!(logits("layers.0.attn.v.weight"), logits(""));
    }
}

/// What was recorded brings its first values along, even where the first attention is replayed.
#[test]
fn a_replayed_attention_still_leaves_its_values() {
    let config = ModelConfig { value_residual: LEARNED, ..base() };
    let (decoder, tokens, late) = (random(&config, &Device::flex()), text(2, 6), [Site::new(5)]);
    let mut recording = Recording::default();
    let pass = Pass { record: Some(&mut recording), ..Pass::default() };
    decoder.logits(&tokens, pass).unwrap();
    // A recording that was itself made from one.
    let mut second = Recording::default();
    let pass = Pass { record: Some(&mut second), replay: Some(&recording), ..Pass::default() };
    decoder.logits(&tokens, pass).unwrap();
    let without = |absent, replay| {
        values(decoder.logits(&tokens, Pass { absent, replay, ..Pass::default() }).unwrap())
    };
    let middle = [Site::new(1)];
    for absent in [&late[..], &middle[..]] {
        let computed = without(absent, None);
        assert_eq!(without(absent, Some(&recording)), computed);
        assert_eq!(without(absent, Some(&second)), computed);
    }
}
