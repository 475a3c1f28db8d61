//! The fused path computes what the plain one does, and it is really taken.

use crate::support::{DESERTED, configs, has_fused_form, random, skips, text, with_policy};
use hadal_kernels::{fused_calls, plainly};
use hadal_model::{Decoder, DepthKv, Device, MlpKind, ModelConfig, Pass, Tokens, ValueResidual};
use hadal_residual::{Memory, Site};
use std::collections::BTreeMap;

pub(crate) type Named = BTreeMap<String, Vec<f32>>;

/// Relative to the largest gradient; policies amplify rounding differently.
pub(crate) const TOLERANCE: f32 = 1e-4;

pub(crate) fn decoder(config: &ModelConfig) -> Decoder {
    random(config, &Device::flex().autodiff())
}

fn targets(input: &Tokens) -> Tokens {
    Tokens::rows(input.ids().iter().map(|id| (3 * id + 1) % 19).collect(), input.batch()).unwrap()
}

/// The loss under the empty name, and every gradient.
pub(crate) fn learn(decoder: &Decoder, pass: Pass) -> Named {
    let input = text(2, 7);
    let loss = decoder.loss(&input, &targets(&input), &[], pass).unwrap();
    let value = loss.try_to_vec_as::<f32>().unwrap();
    let mut named: Named = decoder.gradients(loss.backward()).into_iter().collect();
    named.insert(String::new(), value);
    named
}

pub(crate) fn assert_same(got: &Named, want: &Named, tolerance: f32, what: &str) {
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{what}");
    let most = want.values().flatten().fold(0f32, |most, value| most.max(value.abs()));
    for (name, want) in want {
        for (i, (got, want)) in got[name].iter().zip(want).enumerate() {
            let error = (got - want).abs();
            assert!(error <= tolerance * most, "{what}: {name}[{i}] is {got}, not {want}");
        }
    }
}

pub(crate) fn name(config: &ModelConfig) -> String {
    let ModelConfig { residual, depth_kv, value_residual, mlp, .. } = config;
    format!("{residual} {depth_kv:?} {value_residual:?} {mlp:?}")
}

#[test]
fn losses_and_gradients_are_those_of_plain_operations() {
    // Nobody runs an attention that takes values of the first one.
    let value_residual = ValueResidual::Learned;
    let valued = [ModelConfig { value_residual, ..with_policy(DESERTED[0]) }];
    for config in configs().into_iter().chain(DESERTED.map(with_policy)).chain(valued) {
        let decoder = decoder(&config);
        let fused = learn(&decoder, Pass::default());
        let plain = plainly(|| learn(&decoder, Pass::default()));
        assert_same(&fused, &plain, TOLERANCE, &name(&config));
    }
}

#[test]
fn absent_sub_layers_are_absent_on_both_paths() {
    for config in configs().into_iter().filter(|config| config.depth_kv == DepthKv::None) {
        let decoder = decoder(&config);
        for absent in [[3, 5], [0, 1], [4, 5], [2, 3]].map(|sites| sites.map(Site::new)) {
            let without = || Pass { absent: &absent, ..Pass::default() };
            if decoder.logits(&text(1, 2), without()).is_err() {
                continue;
            }
            let fused = learn(&decoder, without());
            let plain = plainly(|| learn(&decoder, without()));
            // Parameters of absent sub-layers have no gradient; which of the rest have one may differ
            // where it is zero, such as that of a query over a single source.
            let zero = |named: &Named, name: &String| {
                named.get(name).is_none_or(|g| g.iter().all(|g| *g == 0.0))
            };
            let (mut fused, mut plain) = (fused, plain);
            let names: Vec<String> = fused.keys().chain(plain.keys()).cloned().collect();
            for name in names {
                if zero(&fused, &name) && zero(&plain, &name) {
                    fused.remove(&name);
                    plain.remove(&name);
                }
            }
            assert_same(
                &fused,
                &plain,
                TOLERANCE,
                &format!("{} without {absent:?}", name(&config)),
            );
        }
    }
}

#[test]
fn what_is_computed_again_is_the_same() {
    for config in configs() {
        let decoder = decoder(&config);
        let kept = learn(&decoder, Pass::default());
        let memory = Memory { recompute: true, ..Memory::default() };
        let again = learn(&decoder, Pass { memory, ..Pass::default() });
        assert_same(&again, &kept, 0.0, &name(&config));
    }
}

#[test]
fn streams_computed_backwards_give_the_gradients_of_kept_ones() {
    for policy in [
        "mgr",
        "mgr:streams=1",
        "mgr:streams=2,gate=independent",
        "mgr:streams=3",
        "gr:streams=3,rank=4",
        "ddl",
        "ddl:channels=3,target=linear",
    ] {
        let config = with_policy(policy);
        let decoder = decoder(&config);
        let keeping = |kept_share| {
            let memory = Memory { kept_share, recompute: false };
            learn(&decoder, Pass { memory, ..Pass::default() })
        };
        let exact = keeping(None);
        for share in [0.0, 0.01, 1.0] {
            let inverted = keeping(Some(share));
            assert_same(&inverted, &exact, 1e-5, &format!("{policy}, keeping {share}"));
        }
    }
}

/// A policy that is not listed may be plain; a listed one never becomes so unnoticed.
#[test]
fn policies_that_have_a_fused_form_keep_it() {
    for policy in [
        "prenorm",
        "postnorm",
        "lns",
        "deepnorm",
        "mixln",
        "siamese",
        "hc",
        "mhc",
        "mhc_lite",
        "attnres",
        "mgr",
        "nag",
        "hc:identity=true",
        "deepseek_v4",
        "deepseek_v4_1_flash",
        "glm5_flash",
        "hy4",
        "mhc:stream_scale=true",
        "mhc_lite:readout=gated",
        "attnres:heads=2",
        "attnres:normed=true",
        "attnres:delta=true",
        "attnres:block_size=4,delta=true,gated=true,heads=2",
        "attnres:block_size=2,normed=true,ways=3",
        "denseformer",
        "mudd",
        "mudd:ways=1",
        "mudd:norms=true",
        "prenorm:multiplier=0.22",
        "olmo2",
        "gemma3",
        "gemma4",
        "beam",
        "muse_spark",
        "sandwich:embed_norm=true",
        "lambdas",
        "nanochat",
        "keel",
        "kimi_k3",
        "qwen3_8_next",
        "gr:skip_threshold=1.0",
        "ddl",
        "ddl:channels=3,target=linear,skip_threshold=1.0",
    ] {
        assert!(has_fused_form(&with_policy(policy)), "{policy}");
    }
}

#[test]
fn every_operation_of_a_pass_is_fused() {
    let plain_in_time = |config: &ModelConfig| config.depth_kv == DepthKv::None;
    for config in configs().into_iter().filter(plain_in_time).filter(has_fused_form) {
        let decoder = decoder(&config);
        let before = fused_calls();
        learn(&decoder, Pass::default());
        let sites = 2 * config.n_layers as u64;
        // A network with biases is computed product by product.
        let products = if config.mlp == MlpKind::Swiglu { 3 } else { 2 };
        let more = if config.mlp_bias { (products - 1) * config.n_layers as u64 } else { 0 };
        // The first attention is projections, mixing and output, where its values are left to others; with a route, keys and
        // values are apart.
        let (parts, routed) = match config.value_residual {
            ValueResidual::None => (0, 0),
            _ => (2, 2),
        };
        // The embedding, a junction before each sub-layer and after the last, the sub-layers, the loss.
        let (calls, least) = (fused_calls() - before, 1 + (sites + 1) + sites + 1 + more + parts);
        match skips(&config) {
            // Rows are also taken out and put back.
            true => assert!(
                (least..=least + sites + routed).contains(&calls),
                "{}: {calls}",
                name(&config)
            ),
            false => assert_eq!(calls, least, "{}", name(&config)),
        }
        let before = fused_calls();
        plainly(|| learn(&decoder, Pass::default()));
        assert_eq!(fused_calls(), before, "{}", name(&config));
    }
}
