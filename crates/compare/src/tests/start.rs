//! Variants differ in their residual stream alone: same tokens, same branches.

use super::*;
use hadal_data::Feed;
use hadal_model::{Decoder, Device};
use hadal_residual::{Matrix, ResidualConfig};
use hadal_train::{RunConfig, model_config};
use std::collections::BTreeMap;

fn branches(config: &RunConfig, feed: &Feed) -> BTreeMap<String, Vec<f32>> {
    let model = model_config(config, feed).unwrap();
    let decoder = Decoder::fresh(&model, config.seed, &Device::flex()).unwrap();
    let is_branch = |name: &str| name.starts_with("layers.") && !name.contains("norm");
    decoder.parameters().into_iter().filter(|(name, _)| is_branch(name)).collect()
}

/// Twenty steps of data as one hash, and the branches before the first of them.
fn start(run: &PlannedRun) -> (blake3::Hash, BTreeMap<String, Vec<f32>>) {
    let feed = run.config.open_feed().unwrap();
    let mut hasher = blake3::Hasher::new();
    for step in 0..20 {
        let batch =
            feed.train(step * run.config.train.batch as u64, run.config.train.batch).unwrap();
        for id in batch.input.ids().iter().chain(batch.target.ids()) {
            hasher.update(&id.to_le_bytes());
        }
    }
    (hasher.finalize(), branches(&run.config, &feed))
}

/// A policy may prescribe how large a matrix starts, but not with which draws.
#[test]
fn all_variants_see_the_same_tokens_and_start_from_the_same_branches() {
    let kinds = ResidualConfig::all();
    let variants: String = kinds
        .iter()
        .map(|kind| format!("[[variant]]\nresidual = \"{}\"\n", kind.about().kind))
        .collect();
    let plan = suite("seeds = [3, 4]", &variants).plan(&Pace::new()).unwrap();
    let (of_three, of_four) = plan.split_at(kinds.len());
    let (tokens, baseline) = start(&of_three[0]);
    assert!(baseline.len() >= 4 * 6, "{:?}", baseline.keys());
    let feed = of_three[0].config.open_feed().unwrap();
    let dimensions = model_config(&of_three[0].config, &feed).unwrap().dimensions();
    let sizes = |kind: &ResidualConfig| {
        use Matrix::{Down, Key, Output, Query, Up, Value};
        [Query, Key, Value, Output, Up, Down].map(|matrix| kind.branch_std(&dimensions, matrix))
    };
    let (mut same, mut prescribed) = (0, 0);
    for (run, kind) in of_three.iter().zip(&kinds) {
        let (same_tokens, branches) = start(run);
        assert_eq!(same_tokens, tokens, "{}", run.name);
        assert!(branches.keys().eq(baseline.keys()), "{}", run.name);
        if sizes(kind) == sizes(&kinds[0]) {
            assert_eq!(branches, baseline, "{}", run.name);
            same += 1;
            continue;
        }
        prescribed += 1;
        for (name, values) in &branches {
            let other = &baseline[name];
            let scale = f64::from(values[0]) / f64::from(other[0]);
            for (value, other) in values.iter().zip(other) {
                let off = (f64::from(*value) - scale * f64::from(*other)).abs();
                assert!(
                    off <= 1e-5 * scale,
                    "{}: {name}: {value} is not {scale} * {other}",
                    run.name
                );
            }
        }
    }
    assert!(same > 1 && prescribed > 1, "{same} start as the baseline, {prescribed} do not");
    let (other_tokens, other) = start(&of_four[0]);
    assert!(other_tokens != tokens && other != baseline, "another seed is another start");
}
