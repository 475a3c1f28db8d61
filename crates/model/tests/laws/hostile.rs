//! Damaged and hostile checkpoints: loading answers, it never panics.

use crate::support::{base, random, with_policy};
use hadal_model::{Device, ModelConfig, Pass, Tokens, load, save};
use hadal_residual::ResidualConfig;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig { failure_persistence: None, cases, ..Default::default() })
}

fn small(residual: ResidualConfig) -> ModelConfig {
    ModelConfig { n_layers: 2, residual, ..base() }
}

/// A way to damage a file; positions are shares of its length.
#[derive(Clone, Debug)]
enum Damage {
    Flip { at: f64, bit: u8 },
    Truncate { at: f64 },
    Insert { at: f64, bytes: Vec<u8> },
}

impl Damage {
    fn any() -> impl Strategy<Value = Self> {
        // Half of all damage hits the header, which is the first few percent of the weights.
        let at = || prop_oneof![0.0..1.0f64, 0.0..0.05f64];
        prop_oneof![
            4 => (at(), 0..8u8).prop_map(|(at, bit)| Self::Flip { at, bit }),
            1 => at().prop_map(|at| Self::Truncate { at }),
            2 => (at(), prop::collection::vec(any::<u8>(), 1..9))
                .prop_map(|(at, bytes)| Self::Insert { at, bytes }),
        ]
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |at: f64, bytes: &Vec<u8>| (at * bytes.len() as f64) as usize;
        match self {
            Self::Flip { at, bit } => {
                let index = place(*at, bytes);
                if let Some(byte) = bytes.get_mut(index) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Truncate { at } => bytes.truncate(place(*at, bytes)),
            Self::Insert { at, bytes: new } => {
                let index = place(*at, bytes);
                bytes.splice(index..index, new.iter().copied());
            }
        }
    }
}

/// Loads and, if that succeeds, also runs the model: it must be whole.
fn answers(directory: &Path) -> Result<bool, TestCaseError> {
    match load(directory, &Device::flex()) {
        Err(error) => {
            prop_assert!(!error.to_string().is_empty());
            Ok(false)
        }
        Ok(checkpoint) => {
            let time = checkpoint.decoder.config().max_seq_len.min(2);
            let logits = checkpoint.decoder.logits(&Tokens::row(&[1, 0][..time]), Pass::default());
            prop_assert_eq!(logits.unwrap().dims(), [1, time, base().vocab_size]);
            Ok(true)
        }
    }
}

fn damaged_files_are_answered(file: &str) {
    let directory = tempfile::tempdir().unwrap();
    save(&random(&small(with_policy("mgr:streams=2").residual), &Device::flex()), directory.path())
        .unwrap();
    // With its hashes all damage would be refused alike.
    fs::remove_file(directory.path().join("manifest.json")).unwrap();
    let path = directory.path().join(file);
    let whole = fs::read(&path).unwrap();
    assert!(answers(directory.path()).unwrap());
    runner(300)
        .run(&prop::collection::vec(Damage::any(), 1..4), |damages| {
            let mut bytes = whole.clone();
            damages.iter().for_each(|damage| damage.apply(&mut bytes));
            fs::write(&path, bytes).unwrap();
            answers(directory.path()).map(|_| ())
        })
        .unwrap();
}

#[test]
fn damaged_weights_are_answered() {
    damaged_files_are_answered("model.safetensors");
}

#[test]
fn damaged_configs_are_answered() {
    damaged_files_are_answered("config.json");
}

#[test]
fn files_that_are_something_else_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = || load(directory.path(), &Device::flex()).unwrap_err().to_string();
    assert!(refused().contains("config.json"));
    let config = directory.path().join("config.json");
    let contents: [&[u8]; 7] =
        [b"", b"null", b"[]", b"3", b"\"hadal\"", b"{}", b"{\"model_type\": \"hadal\"}"];
    for content in contents {
        fs::write(&config, content).unwrap();
        assert!(refused().contains("config.json"), "{}", refused());
    }
    for content in ["[".repeat(100_000), " ".repeat(2 << 20)] {
        fs::write(&config, content).unwrap();
        assert!(refused().contains("config.json"), "{}", refused());
    }

    fs::write(&config, serde_json::to_string(&base()).unwrap()).unwrap();
    let weights = directory.path().join("model.safetensors");
    assert!(refused().contains("model.safetensors"));
    let endless = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    for content in [&b""[..], b"short", &[0; 64], &endless, b"\x02\0\0\0\0\0\0\0{}"] {
        fs::write(&weights, content).unwrap();
        assert!(refused().contains("model.safetensors"), "{}", refused());
    }
    fs::remove_file(&weights).unwrap();
    fs::create_dir(&weights).unwrap();
    assert!(refused().contains("model.safetensors"));
}

/// Values that no field expects, and some that it does.
fn odd_values() -> Vec<Value> {
    let numbers = [0, 1, 2, 3, 17, 4096, 1 << 20, 1 << 31, 1 << 53, u64::MAX];
    let mut values: Vec<Value> = numbers.into_iter().map(Value::from).collect();
    values.extend([json!(null), json!(true), json!(false), json!(-1), json!(i64::MIN)]);
    values.extend([json!(0.5), json!(-0.5), json!(1e-300), json!(1e308), json!(-1e308)]);
    values.extend([json!(""), json!("none"), json!("hadal"), json!("swiglu"), json!("mgr")]);
    values.extend([json!([]), json!([1, 2]), json!({}), json!({"kind": "nag"})]);
    values
}

/// Every place in a config that holds a value.
fn places(config: &Value) -> Vec<String> {
    let object = config.as_object().unwrap();
    let top = object.keys().map(|key| format!("/{key}"));
    let inner = object["residual"].as_object().unwrap().keys();
    top.chain(inner.map(|key| format!("/residual/{key}"))).collect()
}

#[test]
fn odd_values_in_configs_are_answered() {
    let policies = ResidualConfig::all();
    let odd = odd_values();
    let change = (any::<prop::sample::Index>(), prop::sample::select(odd));
    let strategy = (0..policies.len(), prop::collection::vec(change, 1..4));
    let directories: Vec<_> = policies.iter().map(|_| tempfile::tempdir().unwrap()).collect();
    for (policy, directory) in policies.iter().zip(&directories) {
        let config = small(policy.clone());
        save(&random(&config, &Device::flex()), directory.path()).unwrap();
        fs::remove_file(directory.path().join("manifest.json")).unwrap();
    }
    runner(400)
        .run(&strategy, |(policy, changes)| {
            let mut config = serde_json::to_value(small(policies[policy].clone())).unwrap();
            let places = places(&config);
            for (place, value) in changes {
                // An earlier change may have removed this field.
                if let Some(field) = config.pointer_mut(place.get(&places).as_str()) {
                    *field = value;
                }
            }
            let directory = directories[policy].path();
            fs::write(directory.join("config.json"), config.to_string()).unwrap();
            answers(directory).map(|_| ())
        })
        .unwrap();
}
