//! GGUF files: as containers, as vocabularies, as models.

use super::model::try_model;
use super::tokenizer::try_tokenizer;
use crate::scratch;
use hadal_gguf::{Gguf, Writer};
use hadal_tokenizer::{Tokenizer, tokenizer_of_gguf};
use std::path::Path;

/// Any bytes are read or refused; what is read can be dequantised, and reads the same when it is written again.
pub(super) fn container(bytes: &[u8]) {
    let file = match Gguf::from_bytes(Path::new("fuzz.gguf"), bytes.to_vec()) {
        Ok(file) => file,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    for (key, _) in file.metadata().iter() {
        let _ = file.get::<Vec<Vec<u32>>>(key).map_err(|error| error.to_string());
    }
    for tensor in file.tensors() {
        let found = file.tensor(tensor.info().name()).expect("every tensor is found by its name");
        assert_eq!(found.bytes().as_ptr(), tensor.bytes().as_ptr());
        if let Ok(values) = tensor.to_f32() {
            assert_eq!(values.len(), tensor.info().elements());
        }
    }
    // Padding up to an alignment of gigabytes is right, but slow.
    if file.alignment() <= 4096 {
        rewrite(&file);
    }
}

fn rewrite(file: &Gguf) {
    let path = scratch::directory().join("again.gguf");
    let tensors = file.tensors().map(|tensor| tensor.info().clone()).collect();
    // Long names and strange alignments can be read, but not written.
    let Ok(mut writer) = Writer::create(&path, file.metadata(), tensors) else { return };
    for tensor in file.tensors() {
        writer.raw(tensor.info().name(), tensor.bytes()).expect("rows as declared");
    }
    writer.finish().expect("a whole file");
    let again = Gguf::open(&path).expect("what we write can be read");
    // Texts, because NaN does not equal itself.
    assert_eq!(format!("{:?}", file.metadata()), format!("{:?}", again.metadata()));
    assert_eq!(file.tensors().len(), again.tensors().len());
    for (tensor, other) in file.tensors().zip(again.tensors()) {
        assert_eq!(tensor.info(), other.info());
        assert_eq!(tensor.bytes(), other.bytes());
    }
}

/// Any file has a vocabulary that can be used, or is refused.
pub(super) fn vocabulary(bytes: &[u8]) {
    let path = scratch::file("vocabulary.gguf", bytes);
    let json = match tokenizer_of_gguf(&path) {
        Ok(Some(json)) => json,
        Ok(None) => return,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    match Tokenizer::from_bytes(&path, json.to_string().as_bytes()) {
        Ok(tokenizer) => try_tokenizer(&tokenizer),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Any file is loaded as a model, or refused.
pub(super) fn model(bytes: &[u8]) {
    try_model(&scratch::file("model.gguf", bytes));
}
