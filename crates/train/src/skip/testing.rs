//! Common starting points for tests of skipping.

use super::config::SkipConfig;
use crate::{ConfigLayers, RunConfig};
use hadal_model::ModelConfig;

/// Settings of a small run with skipping.
pub(super) fn run(residual: &str, settings: &[&str]) -> RunConfig {
    let residual = residual.parse().unwrap();
    let layers =
        ConfigLayers::from_preset("nano").and_then(|layers| layers.with_residual(&residual));
    let layers = layers.and_then(|layers| layers.with_setting("skip.rate=0.25"));
    let settings = settings.iter();
    let layers = settings.fold(layers, |layers, setting| layers?.with_setting(setting));
    layers.and_then(ConfigLayers::finish).unwrap()
}

/// The section with this rate.
pub(super) fn config(rate: f64) -> SkipConfig {
    SkipConfig { rate, ..run("nag", &[]).skip.unwrap() }
}

/// A model of four blocks.
pub(super) fn model(residual: &str) -> ModelConfig {
    run("nag", &[]).model.resolve(&residual.parse().unwrap(), 11, 16)
}
