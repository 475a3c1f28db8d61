//! Any `config.json` and `model.safetensors` are loaded or refused. The first two bytes say how long the config is.

#![no_main]

use hadal_model::{Device, Tokenizer, load};
use libfuzzer_sys::fuzz_target;
use std::fs;

fuzz_target!(|bytes: &[u8]| {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (config, weights) = rest.split_at(length);
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::write(directory.path().join("config.json"), config).expect("room for a config");
    fs::write(directory.path().join("model.safetensors"), weights).expect("room for weights");
    if let Err(error) = load(directory.path(), &Device::flex()) {
        assert!(!error.to_string().is_empty());
    }
    let _ = Tokenizer::of_model(directory.path()).map_err(|error| error.to_string());
});
