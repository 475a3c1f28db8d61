//! Settings of runs and suites.

use hadal_compare::Suite;
use hadal_train::{ConfigLayers, RunConfig};

/// Any text is a suite, or is refused.
pub(super) fn suite(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Suite::parse(&text, "suite.toml") {
        Ok(suite) => {
            let _ = suite.with_setting("train.steps=7");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Any text is settings of a run, or is refused. What is read can be written and read again.
pub(super) fn run_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let layers = ConfigLayers::from_preset("nano").and_then(|nano| nano.with_toml(&text, "a"));
    let _ = layers.and_then(ConfigLayers::finish).map_err(|error| error.to_string());
    match RunConfig::parse(&text, "config.toml") {
        Ok(config) => {
            let written = toml::to_string(&config).expect("settings can be written");
            let again =
                RunConfig::parse(&written, "config.toml").expect("what we write can be read");
            assert_eq!(format!("{config:?}"), format!("{again:?}"));
            let _ = config.steps(64);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
