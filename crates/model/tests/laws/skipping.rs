//! Skipping concerns one token and one sub-layer: oracles M1 to M3, M5, M6 and M8 of Mixture-of-Depths.

use crate::support::{assert_close, base, columns, decoded, every, forward, random, text, values};
use hadal_cpu::work::counted;
use hadal_kernels::fuses;
use hadal_model::{
    Cache, Decoder, DepthKv, Device, ModelConfig, Pass, SiteTally, Tally, Tokens, ValueResidual,
};
use hadal_residual::{Place, Recorder, ResidualConfig, Signal, Site, Skipping, Thresholds};

const NAG: &str = "nag:directions=3,skip_threshold=0.25";
const MGR: &str = "mgr:streams=2,skip_threshold=0.4";
const GR: &str = "gr:streams=2,rank=2,skip_threshold=1.1";
const DDL: &str = "ddl:skip_threshold=1.0";

/// Policies that skip some tokens, with grouped heads and every depth memory that they go with.
fn skippers() -> Vec<ModelConfig> {
    let policies = [
        NAG,
        "nag:directions=3,skip_threshold=0.25,skip_shrink=1.0",
        "nag:directions=3,skip_threshold=0.25,skip_kv=drop",
        MGR,
        "mgr:streams=2,gate=independent,skip_threshold=0.55,skip_kv=drop",
        "mgr:streams=3,skip_threshold=0.3,skip_shrink=0.5",
        GR,
        "gr:streams=3,rank=1,skip_threshold=1.1,skip_shrink=1.0",
        "gr:streams=2,rank=2,skip_threshold=1.1,skip_kv=drop",
        DDL,
        "ddl:channels=2,target=linear,skip_threshold=0.9,skip_shrink=0.5",
        "ddl:target=linear,skip_threshold=1.0,skip_kv=drop",
    ];
    let memories = [DepthKv::None, DepthKv::Attention, DepthKv::AttentionMlp];
    let all = policies.iter().flat_map(|text| {
        memories.map(|depth_kv| ModelConfig { residual: text.parse().unwrap(), depth_kv, ..base() })
    });
    // Tokens that skip the first attention leave it their values all the same.
    let valued = [NAG, MGR].into_iter().flat_map(|text| {
        memories.map(|depth_kv| ModelConfig {
            residual: text.parse().unwrap(),
            depth_kv,
            value_residual: ValueResidual::Learned,
            ..base()
        })
    });
    all.chain(valued).filter(|config| config.check().is_ok()).collect()
}

fn with_policy(policy: &str) -> Decoder {
    let residual: ResidualConfig = policy.parse().unwrap();
    random(&ModelConfig { residual, ..base() }, &Device::flex())
}

/// Which tokens skip each sub-layer that can be skipped, `[site][token]`.
fn skips(decoder: &Decoder, tokens: &Tokens) -> Vec<(Site, Vec<bool>)> {
    let mut probe = Recorder::of(&[Signal::Skipped]);
    let pass = Pass { probe: Some(&mut probe), ..Pass::default() };
    decoder.logits(tokens, pass).unwrap();
    let seen = probe.seen.into_iter().filter_map(|(place, _, skipped)| match place {
        Place::Site(site) => Some((site, values(skipped).iter().map(|&s| s > 0.5).collect())),
        Place::Out => None,
    });
    seen.collect()
}

fn tally(decoder: &Decoder, tokens: &Tokens) -> Tally {
    let mut tally = Tally::default();
    let pass = Pass { tally: Some(&mut tally), ..Pass::default() };
    decoder.logits(tokens, pass).unwrap();
    tally
}

#[test]
fn a_threshold_of_zero_is_nobody_to_the_bit() {
    for (dense, zero) in [
        ("nag:directions=3", "nag:directions=3,skip_threshold=0.0"),
        ("mgr:streams=2", "mgr:streams=2,skip_threshold=0.0"),
        ("gr:streams=2,rank=2", "gr:streams=2,rank=2,skip_threshold=0.0"),
        ("ddl:channels=3", "ddl:channels=3,skip_threshold=0.0"),
    ] {
        let (dense, zero, tokens) = (with_policy(dense), with_policy(zero), text(2, 7));
        assert_eq!(values(forward(&dense, &tokens)), values(forward(&zero, &tokens)));
        assert_eq!(tally(&zero, &tokens).skipped_share(zero.config()), 0.0);
    }
}

#[test]
fn where_everybody_skips_everything_nag_reads_out_the_embedding() {
    let mut decoder = with_policy("nag:directions=3");
    decoder.set_skipping(Some(Skipping::below(9.0))).unwrap();
    let tokens = text(2, 7);
    let parameters = decoder.parameters();
    let get = |name: &str| &parameters.iter().find(|(known, _)| known == name).unwrap().1;
    let (table, gain) = (get("embed.weight"), get("residual.log_gain")[0].exp());
    let width = decoder.config().d_model;
    let row = |id: usize| &table[id * width..(id + 1) * width];
    let expected: Vec<f32> = (tokens.ids().iter())
        .flat_map(|&id| {
            // exp(s) r / d is the embedding with its gain.
            let dot = move |v: usize| {
                row(id as usize).iter().zip(row(v)).map(|(a, b)| a * b).sum::<f32>()
            };
            (0..decoder.config().vocab_size).map(move |v| gain * dot(v) / width as f32)
        })
        .collect();
    let found = values(forward(&decoder, &tokens));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
    }
    let tally = tally(&decoder, &tokens);
    assert_eq!(tally.skipped_share(decoder.config()), 1.0);
    assert!(tally.sites.iter().all(|site| site.ran == 0));
}

#[test]
fn a_higher_threshold_lets_more_tokens_skip_the_first_sub_layer() {
    for policy in [NAG, MGR, GR, DDL] {
        let (mut decoder, tokens) = (with_policy(policy), text(3, 9));
        let mut before = vec![false; tokens.ids().len()];
        let mut sizes = Vec::new();
        for threshold in [0.0, 0.2, 0.25, 0.3, 0.4, 0.5, 0.9, 1.0, 1.1, 2.0] {
            decoder.set_skipping(Some(Skipping::below(threshold))).unwrap();
            let (_, now) = skips(&decoder, &tokens).remove(0);
            let lost = before.iter().zip(&now).any(|(&before, &now)| before && !now);
            assert!(!lost, "{policy}: somebody runs again at {threshold}");
            sizes.push(now.iter().filter(|&&skipped| skipped).count());
            before = now;
        }
        assert_eq!((sizes[0], sizes[9]), (0, before.len()), "{policy}: {sizes:?}");
        assert!(sizes.iter().any(|&size| size > 0 && size < before.len()), "{policy}: {sizes:?}");
    }
}

#[test]
fn tokens_decide_alike_alone_and_among_others() {
    every(&skippers(), |config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(3, 7));
        let whole = skips(&decoder, &tokens);
        let skipped: usize =
            whole.iter().flat_map(|(_, skips)| skips).map(|&s| usize::from(s)).sum();
        let all = whole.len() * tokens.ids().len();
        assert!(skipped > all / 20 && skipped < all, "{skipped} of {all} skip");
        // Later tokens do not matter to earlier ones.
        let part = skips(&decoder, &columns(&tokens, 0, 4));
        for ((_, whole), (_, part)) in whole.iter().zip(&part) {
            let beginning = whole.chunks(7).flat_map(|row| &row[..4]);
            assert!(beginning.eq(part));
        }
        // Nor does the order of rows.
        let rows: Vec<&[u32]> = tokens.ids().chunks(7).collect();
        let turned = Tokens::rows([rows[2], rows[0], rows[1]].concat(), 3).unwrap();
        for ((_, whole), (_, turned)) in whole.iter().zip(skips(&decoder, &turned)) {
            let rows: Vec<&[bool]> = whole.chunks(7).collect();
            assert_eq!([rows[2], rows[0], rows[1]].concat(), turned);
        }
    });
}

#[test]
fn decoding_skips_what_one_pass_skips() {
    every(&skippers(), |config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 7));
        let whole = tally(&decoder, &tokens);
        assert!(whole.skipped_share(config) > 0.01, "nobody skips");
        for chunks in [&[1; 7][..], &[3, 1, 2, 1]] {
            let parts = decoded(&decoder, &tokens, chunks, &[]);
            assert_close(parts, forward(&decoder, &tokens), 1e-4);
            let mut cache = Cache::new(config);
            let mut sum = Tally::default();
            for &count in chunks {
                let part = columns(&tokens, cache.len(), count);
                let mut tally = Tally::default();
                let (cache, tally_of) = (Some(&mut cache), Some(&mut tally));
                let pass = Pass { cache, tally: tally_of, ..Pass::default() };
                let (_, done) = counted(|| decoder.logits(&part, pass).unwrap());
                // With depth slots, plain operations read a cache, and those are not counted.
                if fuses(&Device::flex()) && config.depth_kv == DepthKv::None {
                    assert_eq!(done, tally.flops(config), "what kernels did");
                }
                sum.add(&tally);
            }
            assert_eq!(sum.tokens, whole.tokens);
            for (site, (parts, whole)) in sum.sites.iter().zip(&whole.sites).enumerate() {
                let numbers = |tally: &SiteTally| (tally.ran, tally.seen, tally.context);
                assert_eq!(numbers(parts), numbers(whole), "sub-layer {site}");
            }
        }
    });
}

#[test]
fn kernels_do_what_the_formula_counts() {
    if !fuses(&Device::flex()) {
        // Plain operations are not counted.
        return;
    }
    let dense = ["nag:directions=3", "mgr:streams=2", "gr:streams=2,rank=2", "ddl", "prenorm"]
        .map(|text| ModelConfig { residual: text.parse().unwrap(), ..base() });
    every(&[skippers(), dense.to_vec()].concat(), |config| {
        let (mut decoder, tokens) = (random(config, &Device::flex()), text(2, 9));
        let own = config.residual.skipping();
        for round in 0..4 {
            if let Some(own) = &own {
                // Anything from no token to every token, differently at each sub-layer.
                let thresholds = (0..6).map(|site| f64::from((7 * site + 5 * round) % 11) / 15.0);
                let thresholds = Thresholds::PerSite(thresholds.collect());
                decoder.set_skipping(Some(Skipping { thresholds, ..own.clone() })).unwrap();
            }
            let (tally, done) = counted(|| tally(&decoder, &tokens));
            assert_eq!(done, tally.flops(decoder.config()), "round {round}");
        }
    });
}

#[test]
fn a_full_mask_costs_what_the_model_is_said_to_cost() {
    for policy in ["nag:directions=3", "mgr:streams=2", "prenorm"] {
        let decoder = with_policy(policy);
        let config = ModelConfig { max_seq_len: 9, ..decoder.config().clone() };
        let tally = tally(&decoder, &text(2, 9));
        let cost = hadal_model::ModelCost::of(&config).unwrap();
        let branches = cost.forward_flops_per_token - cost.residual_flops_per_token;
        let gates = match policy.starts_with("nag") {
            true => 6 * 2 * 3 * config.d_model as u64,
            false => 0,
        };
        assert_eq!(tally.flops(&config), tally.tokens * (branches + gates), "{policy}");
    }
}
