//! Models of other makers, and our own.

use crate::{folder, scratch};
use hadal_model::{Device, ModelCost, Pass, TensorFile, Tokens, load, read_config};
use std::path::Path;

/// Any `config.json` describes a model whose cost can be counted, or is refused.
pub(super) fn config(bytes: &[u8]) {
    match read_config(&scratch::file("config.json", bytes)) {
        Ok(config) => {
            let _ = ModelCost::of(&config);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Any directory is loaded, or refused.
pub(super) fn directory(bytes: &[u8]) {
    let directory = scratch::empty("model");
    folder::write(&folder::split(bytes), &directory);
    try_model(&directory);
}

/// Loads a model. What is loaded can be asked.
pub(super) fn try_model(path: &Path) {
    match load(path, &Device::flex()) {
        Ok(model) => {
            let _ = model.decoder.logits(&Tokens::row(&[0, 1]), Pass::default());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Any bytes are a file of tensors, or are refused.
pub(super) fn tensors(bytes: &[u8]) {
    let file = match TensorFile::open(&scratch::file("a.safetensors", bytes)) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for name in file.names() {
        let elements: usize = file.shape(&name).expect("a name has a shape").iter().product();
        if let Ok(floats) = file.floats(&name) {
            assert_eq!(floats.len(), elements);
        }
        if let Ok(integers) = file.integers(&name) {
            assert_eq!(integers.len(), elements);
        }
    }
}
