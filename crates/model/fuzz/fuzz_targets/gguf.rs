//! Any GGUF file is loaded as a model and as a tokenizer, or refused.

#![no_main]

use hadal_model::{Device, Tokenizer, load};
use libfuzzer_sys::fuzz_target;
use std::fs;

fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.gguf");
    fs::write(&path, bytes).expect("room for a file");
    if let Err(error) = load(&path, &Device::flex()) {
        assert!(!error.to_string().is_empty());
    }
    let _ = Tokenizer::of_model(&path).map_err(|error| error.to_string());
});
