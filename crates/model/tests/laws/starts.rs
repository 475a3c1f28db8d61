//! What fresh models have in common, and what policies become where their settings meet.

use crate::support::{
    assert_close, base, built, configs, every, forward, random, random_values, text, values,
    with_policy,
};
use hadal_model::{Decoder, DepthKv, Device, ModelConfig};
use hadal_residual::{Matrix, ResidualConfig};

/// Random branches under the policy's own start.
fn with_fresh_residual(config: &ModelConfig) -> Decoder {
    built(config, &Device::flex(), |name, shape| {
        (!name.starts_with("residual.")).then(|| random_values(name, shape))
    })
}

/// Asserts that the logits of two models agree.
#[track_caller]
fn assert_same(one: &Decoder, other: &Decoder, tolerance: f32) {
    let tokens = text(2, 7);
    assert_close(forward(one, &tokens), forward(other, &tokens), tolerance);
}

fn fresh(config: &ModelConfig, seed: u64) -> Vec<(String, Vec<f32>)> {
    Decoder::fresh(config, seed, &Device::flex()).unwrap().parameters()
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64
}

fn mean_square(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / values.len() as f64
}

#[test]
fn hyper_connections_start_as_prenorm() {
    let prenorm = with_fresh_residual(&base());
    for policy in ["hc", "hc:dynamic=false", "hc:streams=1", "hc:streams=2", "hc:identity=true"] {
        assert_same(&with_fresh_residual(&with_policy(policy)), &prenorm, 1e-5);
    }
}

#[test]
fn forms_of_released_hyper_connections_start_as_prenorm() {
    let prenorm = with_fresh_residual(&base());
    for policy in
        ["deepseek_v4", "deepseek_v4_1_flash", "glm5_flash", "hy4", "mhc:identity=true,streams=1"]
    {
        // Hy4's weights start small, but not at zero.
        let start = built(&with_policy(policy), &Device::flex(), |name, shape| {
            let own = name.starts_with("residual.");
            match name.ends_with("_weight") {
                true if own => Some(vec![0.0; shape.iter().product()]),
                _ => (!own).then(|| random_values(name, shape)),
            }
        });
        assert_same(&start, &prenorm, 2e-5);
    }
    // As it starts, it is close.
    assert_same(&with_fresh_residual(&with_policy("hy4")), &prenorm, 2e-3);
}

#[test]
fn attention_residuals_with_zero_queries_are_prenorm() {
    let prenorm = with_fresh_residual(&base());
    for blocks in 0..=6 {
        let policy = with_policy(&format!("attnres:blocks={blocks}"));
        assert_same(&with_fresh_residual(&policy), &prenorm, 1e-4);
    }
}

#[test]
fn forms_of_attention_residuals_with_zero_queries_are_prenorm() {
    let prenorm = with_fresh_residual(&base());
    for form in ["heads=2", "block_size=4", "delta=true", "delta=true,heads=2"] {
        let policy = with_policy(&format!("attnres:{form}"));
        assert_same(&with_fresh_residual(&policy), &prenorm, 1e-4);
    }
}

#[test]
fn closed_gates_leave_prenorm_exactly() {
    let prenorm = with_fresh_residual(&base());
    for form in ["", "blocks=2,", "block_size=4,heads=2,"] {
        let policy = with_policy(&format!("attnres:{form}delta=true,gated=true"));
        assert_same(&with_fresh_residual(&policy), &prenorm, 1e-6);
    }
}

#[test]
fn denseformer_starts_as_prenorm() {
    assert_same(
        &with_fresh_residual(&with_policy("denseformer")),
        &with_fresh_residual(&base()),
        1e-6,
    );
}

/// Norms of keys and values start alike; a random query norm is given to all three.
#[test]
fn averages_with_weights_of_tokens_start_as_prenorm() {
    let prenorm = with_fresh_residual(&base());
    for (form, tolerance) in
        [("ways=1", 1e-6), ("ways=4", 1e-5), ("ways=1,norms=true", 1e-6), ("norms=true", 1e-5)]
    {
        let start =
            built(&with_policy(&format!("mudd:{form}")), &Device::flex(), |name, shape| match name
                .split('.')
                .collect::<Vec<_>>()
                .as_slice()
            {
                ["residual", site, "k_norm" | "v_norm"] => {
                    let block = site.parse::<usize>().unwrap() / 2;
                    Some(random_values(&format!("layers.{block}.attn_norm.weight"), shape))
                }
                ["residual", ..] => None,
                _ => Some(random_values(name, shape)),
            });
        assert_same(&start, &prenorm, tolerance);
    }
}

#[test]
fn one_way_whose_weights_are_the_same_for_all_tokens_is_denseformer() {
    let dense = random(&with_policy("denseformer"), &Device::flex());
    let mudd = built(&with_policy("mudd:ways=1"), &Device::flex(), |name, shape| {
        match name.strip_suffix(".up") {
            Some(_) => Some(vec![0.0; shape.iter().product()]),
            // The same numbers, drawn for a vector.
            None if name.ends_with(".weights") => Some(random_values(name, &shape[1..])),
            None => Some(random_values(name, shape)),
        }
    });
    assert_same(&mudd, &dense, 1e-5);
}

#[test]
fn three_equal_ways_are_one() {
    for form in ["block_size=2,normed=true", "blocks=2,heads=2", "blocks=0"] {
        let one = random(&with_policy(&format!("attnres:{form}")), &Device::flex());
        let policy = with_policy(&format!("attnres:{form},ways=3"));
        let three = built(&policy, &Device::flex(), |name, shape| {
            match name.split('.').collect::<Vec<_>>().as_slice() {
                ["residual", site, "k_norm" | "v_norm"] => {
                    let block = site.parse::<usize>().unwrap() / 2;
                    Some(random_values(&format!("layers.{block}.attn_norm.weight"), shape))
                }
                ["residual", .., "query"] if shape.len() == 2 => {
                    Some(random_values(name, &shape[1..]).repeat(3))
                }
                _ => Some(random_values(name, shape)),
            }
        });
        assert_same(&three, &one, 1e-5);
    }
}

#[test]
fn layer_norm_scaling_folds_into_the_gains() {
    let folded = built(&base(), &Device::flex(), |name, shape| {
        let mut values = random_values(name, shape);
        if let ["layers", block, "attn_norm" | "mlp_norm", _] =
            name.split('.').collect::<Vec<_>>().as_slice()
        {
            let scale = (block.parse::<f32>().unwrap() + 1.0).sqrt().recip();
            values.iter_mut().for_each(|gain| *gain *= scale);
        }
        Some(values)
    });
    assert_same(&random(&with_policy("lns"), &Device::flex()), &folded, 1e-5);
}

#[test]
fn a_multiplier_folds_into_what_ends_the_sub_layers() {
    let folded = built(&base(), &Device::flex(), |name, shape| {
        let mut values = random_values(name, shape);
        if name.contains(".attn.o.") || name.contains(".mlp.down.") {
            values.iter_mut().for_each(|value| *value *= 0.22);
        }
        Some(values)
    });
    assert_same(&random(&with_policy("prenorm:multiplier=0.22"), &Device::flex()), &folded, 1e-5);
}

#[test]
fn forms_of_sandwich_start_as_sandwich() {
    let sandwich = with_fresh_residual(&with_policy("sandwich"));
    for form in ["scaled=true", "block_scale=true", "scaled=true,block_scale=true"] {
        let policy = with_policy(&format!("sandwich:{form}"));
        assert_same(&with_fresh_residual(&policy), &sandwich, 2e-5);
    }
}

#[test]
fn neutral_lambdas_are_prenorm_of_the_normalised_embedding() {
    let config = ModelConfig { tie_embeddings: false, ..base() };
    let prenorm = built(&config, &Device::flex(), |name, shape| {
        let mut values = random_values(name, shape);
        if name.starts_with("embed") {
            for row in values.chunks_mut(config.d_model) {
                let root = (mean_square(row) + config.norm_eps).sqrt() as f32;
                row.iter_mut().for_each(|value| *value /= root);
            }
        }
        Some(values)
    });
    let residual = with_policy("lambdas:backout=true").residual;
    let config = ModelConfig { residual, ..config.clone() };
    let neutral = built(&config, &Device::flex(), |name, shape| {
        Some(match name.rsplit('.').next() {
            Some("resid") => vec![1.0],
            Some("x0" | "backout") => vec![0.0],
            _ => random_values(name, shape),
        })
    });
    assert_same(&neutral, &prenorm, 1e-5);
}

/// With unit gains the stream has unit size behind the first block, and a norm before the sub-layer changes nothing.
#[test]
fn keel_is_deepnorm_with_another_carry() {
    // Its carry is (2 * 8)^(1/4).
    let deepnorm = ModelConfig { n_layers: 8, ..with_policy("deepnorm") };
    let keel = ModelConfig { residual: with_policy("keel:alpha=2").residual, ..deepnorm.clone() };
    let with_unit_gains = |config: &ModelConfig| {
        built(config, &Device::flex(), |name, shape| {
            let mut values = random_values(name, shape);
            let gain = ["post_norm", "attn_norm.weight", "mlp_norm.weight"];
            if gain.iter().any(|gain| name.ends_with(gain)) {
                values.fill(1.0);
            }
            // The first block is another one.
            if name.starts_with("layers.0.attn.o.") || name.starts_with("layers.0.mlp.down.") {
                values.fill(0.0);
            }
            Some(values)
        })
    };
    assert_same(&with_unit_gains(&keel), &with_unit_gains(&deepnorm), 1e-3);
}

#[test]
fn one_independent_stream_is_a_scalar_highway() {
    let highway = random(&with_policy("highway:gate=scalar"), &Device::flex());
    let mgr = random(&with_policy("mgr:streams=1,gate=independent"), &Device::flex());
    assert_same(&mgr, &highway, 1e-5);
}

#[test]
fn a_stream_for_every_sub_layer_is_full_attention_residuals() {
    let width = base().d_model as f32;
    let attnres = built(&with_policy("attnres"), &Device::flex(), |name, shape| {
        if name.ends_with("key_norm") {
            return Some(vec![1.0; shape[0]]);
        }
        let Some(reader) = name.strip_suffix("query") else {
            return Some(random_values(name, shape));
        };
        let mut query = random_values(&format!("{reader}pool.weight"), shape);
        query.iter_mut().for_each(|v| *v /= width.sqrt());
        Some(query)
    });
    for streams in [7, 9] {
        let mgr = with_policy(&format!("mgr:streams={streams}"));
        assert_same(&random(&mgr, &Device::flex()), &attnres, 1e-5);
    }
}

#[test]
fn one_block_has_no_depth_to_remember() {
    let one = |depth_kv| ModelConfig { n_layers: 1, depth_kv, ..base() };
    let none = random(&one(DepthKv::None), &Device::flex());
    let tokens = text(2, 7);
    for depth_kv in [DepthKv::Attention, DepthKv::AttentionMlp] {
        let other = random(&one(depth_kv), &Device::flex());
        assert_close(forward(&other, &tokens), forward(&none, &tokens), 1e-6);
    }
}

#[test]
fn depth_memory_changes_deeper_models() {
    let tokens = text(2, 7);
    let logits = |depth_kv| {
        let config = ModelConfig { depth_kv, ..base() };
        values(forward(&random(&config, &Device::flex()), &tokens))
    };
    let (none, attention, both) =
        (logits(DepthKv::None), logits(DepthKv::Attention), logits(DepthKv::AttentionMlp));
    assert_ne!(none, attention);
    assert_ne!(attention, both);
}

fn matrix(name: &str) -> Option<Matrix> {
    let parts: Vec<&str> = name.split('.').collect();
    match parts.as_slice() {
        ["layers", _, _, "q", _] => Some(Matrix::Query),
        ["layers", _, _, "k" | "depth_k", _] => Some(Matrix::Key),
        ["layers", _, _, "v" | "depth_v", _] => Some(Matrix::Value),
        ["layers", _, _, "o", _] => Some(Matrix::Output),
        ["layers", _, _, "up" | "gate", _] => Some(Matrix::Up),
        ["layers", _, _, "down", _] => Some(Matrix::Down),
        _ => None,
    }
}

#[test]
fn one_seed_gives_all_policies_the_same_branches_but_for_their_scale() {
    let startable: Vec<ModelConfig> =
        configs().into_iter().filter(|config| config.check_fresh().is_ok()).collect();
    assert!(startable.len() > 3 * ResidualConfig::all().len());
    every(&startable, |config| {
        let plain = ModelConfig { residual: ResidualConfig::default(), ..config.clone() };
        let std = |config: &ModelConfig, matrix| {
            config.residual.branch_std(&config.dimensions(), matrix) as f32
        };
        let ours = fresh(config, 5);
        let mut compared = 0;
        for (name, expected) in fresh(&plain, 5) {
            let Some(matrix) = matrix(&name) else { continue };
            let (_, found) = ours.iter().find(|(other, _)| *other == name).expect(&name);
            let ratio = std(config, matrix) / std(&plain, matrix);
            for (a, e) in found.iter().zip(&expected) {
                assert!((a - e * ratio).abs() <= 1e-5 * e.abs(), "{name}: {a} is not {ratio} {e}");
            }
            compared += 1;
        }
        assert!(compared >= 6 * config.n_layers, "only {compared} matrices were compared");
        assert_ne!(fresh(config, 6), ours, "the seed has no effect");
    });
}

#[test]
fn deepnorm_starts_with_smaller_branches_but_not_queries_and_keys() {
    let sizes =
        ModelConfig { d_model: 96, d_ff: 128, n_heads: 8, head_dim: 12, n_layers: 6, ..base() };
    let deepnorm = ModelConfig { residual: with_policy("deepnorm").residual, ..sizes };
    let shrink = (8.0f64 * 6.0).powf(-0.25);
    for (name, values) in fresh(&deepnorm, 1) {
        let Some(matrix) = matrix(&name) else { continue };
        let factor = if matches!(matrix, Matrix::Query | Matrix::Key) { 1.0 } else { shrink };
        let ratio = mean_square(&values).sqrt() / (0.02 * factor);
        assert!((ratio - 1.0).abs() < 0.08, "{name} is {ratio} times as large as expected");
    }
}

#[test]
fn nag_starts_with_centred_tables_and_unit_outputs() {
    let config = ModelConfig { tie_embeddings: false, ..with_policy("nag") };
    let parameters = fresh(&config, 3);
    let rows = |table: &str| {
        let (_, values) = parameters.iter().find(|(name, _)| name == table).expect(table);
        values.chunks(config.d_model)
    };
    for row in rows("embed.weight") {
        assert!(mean(row).abs() < 1e-6);
        // Logits are bounded by the size of the embedding, so it starts around one.
        assert!((0.3..2.0).contains(&mean_square(row).sqrt()));
    }
    for row in rows("head.weight") {
        assert!(mean(row).abs() < 1e-6);
        assert!((mean_square(row) - 1.0).abs() < 1e-5);
    }
}
