//! Whether settings are those that a run was started with.

use super::config::RunConfig;
use super::error::TrainError;
use std::collections::BTreeMap;
use toml::{Table, Value};

const VERSION: &str = "v2:";

/// The fingerprint of written settings: of what they say, not of how it is written. It does not go through the
/// structures of this version, so a later one that knows more settings finds the same.
pub(crate) fn fingerprint(settings: &str) -> Result<String, TrainError> {
    let table: Table =
        toml::from_str(settings).map_err(|error| TrainError::Settings(error.to_string()))?;
    let mut lines = BTreeMap::new();
    flatten(&table, "", &mut lines);
    let text: String = lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    Ok(format!("{VERSION}{}", hash(&text)))
}

/// Whether a checkpoint recorded these settings. Older versions hashed the text, or the text that the structures of
/// their time made of it.
pub(crate) fn is_of(
    recorded: &str,
    config: &RunConfig,
    settings: &str,
) -> Result<bool, TrainError> {
    if recorded.starts_with(VERSION) {
        return Ok(recorded == fingerprint(settings)?);
    }
    let written = || toml::to_string(config).map_err(|e| TrainError::Settings(e.to_string()));
    Ok(recorded == hash(settings) || recorded == hash(&written()?))
}

fn flatten(table: &Table, above: &str, lines: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let path = format!("{above}{key:?}.");
        match value {
            Value::Table(table) => flatten(table, &path, lines),
            value => drop(lines.insert(path, value.to_string())),
        }
    }
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfigLayers;

    fn settings() -> (RunConfig, String) {
        let config = ConfigLayers::from_preset("nano").and_then(ConfigLayers::finish).unwrap();
        let text = toml::to_string(&config).unwrap();
        (config, text)
    }

    #[test]
    fn only_what_the_settings_say_counts() {
        let (config, text) = settings();
        let own = fingerprint(&text).unwrap();
        assert!(own.starts_with("v2:") && is_of(&own, &config, &text).unwrap());
        let commented = format!("# mine\n{}", text.replace(" = ", "   =  "));
        assert!(is_of(&own, &config, &commented).unwrap());
        for (from, to) in
            [("seed = 0", "seed = 1"), ("[memory]\n", "[memory]\nmore = 1\n"), ("[eval]", "[evil]")]
        {
            let edited = text.replacen(from, to, 1);
            assert_ne!(edited, text);
            assert!(!is_of(&own, &config, &edited).unwrap(), "{to}");
        }
        // The same key in another section.
        let one = fingerprint("[a]\nx = 1\n[b]\n").unwrap();
        assert_ne!(one, fingerprint("[a]\n[b]\nx = 1\n").unwrap());
    }

    /// An older version did not know `[memory]`: its file has no such section, and it recorded the hash of that file.
    #[test]
    fn the_fingerprint_of_a_version_that_knew_fewer_settings_is_its_own() {
        let (config, text) = settings();
        let (begin, rest) = text.split_once("[memory]").unwrap();
        let older = format!("{begin}{}", &rest[rest.find("\n[").unwrap()..]);
        assert_eq!(RunConfig::parse(&older, "older").unwrap(), config);
        let recorded = fingerprint(&older).unwrap();
        assert_ne!(recorded, fingerprint(&text).unwrap());
        assert!(is_of(&recorded, &config, &older).unwrap());
    }

    #[test]
    fn fingerprints_of_older_versions_are_still_known() {
        let (config, text) = settings();
        let respelled = format!("{text}\n# as an older version wrote it\n");
        for recorded in [hash(&respelled), hash(&text)] {
            assert!(is_of(&recorded, &config, &respelled).unwrap());
        }
        assert!(!is_of(&hash("another"), &config, &text).unwrap());
        assert!(!is_of("", &config, &text).unwrap());
    }
}
