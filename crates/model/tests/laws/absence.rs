//! Sub-layers that are absent from a pass.

use crate::support::{
    assert_close, built, configs, decoded, every, every_config, forward, random, random_values,
    required_because, text, values, with_policy,
};
use burn::tensor::Tensor;
use hadal_model::{
    Decoder, DepthKv, Device, ModelConfig, Pass, PassError, Recording, Tally, Tokens, ValueResidual,
};
use hadal_residual::{Site, StepMode, SubLayerKind};

fn without(decoder: &Decoder, tokens: &Tokens, absent: &[Site]) -> Result<Tensor<3>, PassError> {
    decoder.logits(tokens, Pass { absent, ..Pass::default() })
}

/// The sites that may be absent.
fn removable(config: &ModelConfig) -> Vec<Site> {
    config
        .dimensions()
        .each_site()
        .filter(|&site| required_because(config, site).is_none())
        .collect()
}

/// The model whose sub-layer at `site` returns zero.
fn silenced(config: &ModelConfig, site: Site) -> Decoder {
    let last = match site.kind() {
        SubLayerKind::Attention => format!("layers.{}.attn.o.", site.block()),
        SubLayerKind::Mlp => format!("layers.{}.mlp.down.", site.block()),
    };
    built(config, &Device::flex(), |name, shape| {
        let values = random_values(name, shape);
        Some(if name.starts_with(&last) { vec![0.0; values.len()] } else { values })
    })
}

#[test]
fn what_another_pass_returned_is_not_computed_again() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 6));
        let sites = removable(config);
        let [early, late] = [sites[0], sites[sites.len() - 1]];
        for (recorded, absent) in [
            (vec![], vec![late]),
            (vec![], vec![early]),
            (vec![late], vec![]),
            (vec![early], vec![early, late]),
        ] {
            // In some configs only one sub-layer may be absent.
            if recorded.len() + absent.len() > 1 && early == late {
                continue;
            }
            let mut recording = Recording::default();
            let pass = Pass { absent: &recorded, record: Some(&mut recording), ..Pass::default() };
            decoder.logits(&tokens, pass).unwrap();
            let mut tally = Tally::default();
            let pass = Pass {
                absent: &absent,
                replay: Some(&recording),
                tally: Some(&mut tally),
                ..Pass::default()
            };
            let replayed = decoder.logits(&tokens, pass).unwrap();
            let computed = without(&decoder, &tokens, &absent).unwrap();
            assert_eq!(values(replayed), values(computed), "{recorded:?} and {absent:?}");
            let first = [&recorded, &absent]
                .into_iter()
                .flatten()
                .filter(|site| recorded.contains(site) != absent.contains(site));
            let first = first.map(|site| site.index).min().unwrap();
            let ran: u64 = tally.sites[..first].iter().map(|site| site.ran).sum();
            assert!(config.depth_kv != DepthKv::None || ran == 0, "{ran} ran before {first}");
            // A recording is not used for other tokens.
            let others = text(1, 5);
            let pass = Pass { replay: Some(&recording), ..Pass::default() };
            let replayed = decoder.logits(&others, pass).unwrap();
            assert_eq!(values(replayed), values(forward(&decoder, &others)));
        }
    });
}

#[test]
fn what_was_recorded_in_another_mode_is_not_replayed() {
    let (decoder, tokens) = (random(&with_policy("nag"), &Device::flex()), text(2, 5));
    let mut recording = Recording::default();
    let pass = Pass { record: Some(&mut recording), ..Pass::default() };
    decoder.logits(&tokens, pass).unwrap();
    let mode = StepMode { warmth: 0.5, ..StepMode::default() };
    let logits = |replay| {
        let pass = Pass { mode: &mode, replay, ..Pass::default() };
        values(decoder.logits(&tokens, pass).unwrap())
    };
    assert_eq!(logits(Some(&recording)), logits(None));
    assert_ne!(logits(None), values(forward(&decoder, &tokens)));
}

#[test]
fn an_absent_branch_of_an_additive_policy_is_a_silent_one() {
    let kinds = ["prenorm", "lns", "denseformer", "outnorm", "lambdas"];
    let kind = |config: &ModelConfig| config.residual.about().kind;
    let additive: Vec<ModelConfig> =
        configs().into_iter().filter(|config| kinds.contains(&kind(config))).collect();
    assert!(kinds.iter().all(|&known| additive.iter().any(|config| kind(config) == known)));
    every(&additive, |config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 6));
        for site in config.dimensions().each_site() {
            // A silent attention still leaves its depth slot and its values, an absent one does not.
            if config.value_residual != ValueResidual::None && site.index == 0 {
                continue;
            }
            if config.depth_kv != DepthKv::None && site.block() + 1 < config.n_layers {
                continue;
            }
            let absent = without(&decoder, &tokens, &[site]).unwrap();
            assert_close(absent, forward(&silenced(config, site), &tokens), 1e-5);
        }
    });
}

#[test]
fn a_multi_gate_residual_needs_the_sub_layers_that_fill_its_streams() {
    for streams in 1..=7 {
        let config = with_policy(&format!("mgr:streams={streams}"));
        for site in config.dimensions().each_site() {
            // Without a gate, no gate expects a stream.
            let fills = site.index + 1 < streams && streams <= 2 * config.n_layers;
            let reason = required_because(&config, site).unwrap_or_default();
            assert_eq!(reason.contains("fills one of the streams"), fills, "{streams} at {site}");
        }
    }
}

#[test]
fn every_sub_layer_can_be_absent_unless_its_policy_needs_it() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 6));
        let whole = values(forward(&decoder, &tokens));
        for site in config.dimensions().each_site() {
            match without(&decoder, &tokens, &[site]) {
                Ok(logits) => {
                    let logits = values(logits);
                    assert_eq!(required_because(config, site), None, "{site} should be refused");
                    assert!(logits.iter().all(|logit| logit.is_finite()), "without {site}");
                    assert_ne!(logits, whole, "{site} was there all the same");
                }
                Err(error) => {
                    let (text, reason) = (error.to_string(), required_because(config, site));
                    assert!(text.contains(&format!("the {site} cannot be absent")), "{text}");
                    assert!(reason.is_some_and(|reason| text.contains(reason)), "{text}");
                }
            }
        }
    });
}

#[test]
fn any_number_of_sub_layers_can_be_absent() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 6));
        let all = removable(config);
        let odd: Vec<Site> = all.iter().copied().filter(|site| site.index % 2 == 1).collect();
        for absent in [&all[..], &all[1..], &odd[..]] {
            let logits = values(without(&decoder, &tokens, absent).unwrap());
            assert!(logits.iter().all(|logit| logit.is_finite()), "without {absent:?}");
        }
    });
}

#[test]
fn a_model_without_sub_layers_reads_each_token_alone() {
    every_config(|config| {
        let all = removable(config);
        if all.len() < 2 * config.n_layers {
            return;
        }
        let (decoder, tokens) = (random(config, &Device::flex()), Tokens::row(&[3, 8, 3, 1, 3]));
        let logits = without(&decoder, &tokens, &all).unwrap();
        let at = |token| logits.clone().narrow(1, token, 1);
        assert_close(at(2), at(0), 1e-6);
        assert_close(at(4), at(0), 1e-6);
        assert_ne!(values(at(1)), values(at(0)));
    });
}

#[test]
fn decoding_without_sub_layers_equals_one_pass_without_them() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 6));
        let all = removable(config);
        // The first attention, an MLP, and a whole block in the middle.
        let some: Vec<Site> =
            all.iter().copied().filter(|site| [0, 2, 3, 5].contains(&site.index)).collect();
        for absent in [&some[..], &all[..1], &all[all.len() - 1..]] {
            let whole = without(&decoder, &tokens, absent).unwrap();
            assert_close(decoded(&decoder, &tokens, &[2, 1, 1, 2], absent), whole, 1e-4);
        }
    });
}

#[test]
fn the_refusal_names_the_site_and_the_reason() {
    let decoder = random(&with_policy("mgr:streams=4"), &Device::flex());
    let error = without(&decoder, &text(1, 3), &[Site::new(5), Site::new(1)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the mlp of block 0 cannot be absent: it fills one of the streams that all later gates expect"
    );
}
