//! Files with one thing wrong, many times over: loading answers, and never panics or allocates memory for what does not
//! exist.

use crate::gguf::{byte_level, draft};
use crate::support::{copy_of, golden};
use hadal_gguf::Value as GgufValue;
use hadal_model::{Device, Pass, Tokenizer, Tokens, load};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Loads and, if that succeeds, runs the model: it must be whole.
fn answers(model: &Path, what: &str) {
    match load(model, &Device::flex()) {
        Err(error) => assert!(!error.to_string().is_empty(), "{what}"),
        Ok(checkpoint) => {
            let logits = checkpoint.decoder.logits(&Tokens::row(&[1]), Pass::default());
            assert!(logits.is_ok(), "{what}");
        }
    }
    if let Err(error) = Tokenizer::of_model(model) {
        assert!(!error.to_string().is_empty(), "{what}");
    }
}

/// The location of every value in a document.
fn pointers(value: &Value, place: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                pointers(value, format!("{place}/{key}"), found);
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                pointers(value, format!("{place}/{i}"), found);
            }
        }
        _ => {}
    }
    found.push(place);
}

#[test]
fn any_field_of_a_config_may_be_anything() {
    let strange = [
        Value::Null,
        json!(-1),
        json!(0),
        json!(1.5),
        json!(1e308),
        json!(1u64 << 31),
        json!(u64::MAX),
        json!(""),
        json!("yarn"),
        json!([]),
        json!([0, 0, 1 << 20]),
        json!({}),
        json!(true),
    ];
    let names = ["llama-sharded", "qwen2-window", "qwen3-biases", "llama-yarn-all-settings"];
    for name in names.into_iter().chain(["llama-older-keys", "llama-dynamic", "llama-llama3"]) {
        let directory = copy_of(name);
        for file in ["config.json", "generation_config.json", "model.safetensors.index.json"] {
            let path = directory.path().join(file);
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let whole: Value = serde_json::from_str(&text).unwrap();
            let mut places = Vec::new();
            pointers(&whole, String::new(), &mut places);
            for place in places {
                for value in &strange {
                    let mut damaged = whole.clone();
                    *damaged.pointer_mut(&place).unwrap() = value.clone();
                    fs::write(&path, damaged.to_string()).unwrap();
                    answers(directory.path(), &format!("{name}/{file}: {place} = {value}"));
                }
            }
            fs::write(&path, text).unwrap();
        }
        assert!(load(directory.path(), &Device::flex()).is_ok(), "{name} is as it was");
    }
}

#[test]
fn any_byte_of_a_header_may_be_another() {
    let weights = golden("llama").join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let directory = copy_of("llama");
    for at in (0..header).step_by(5).chain(0..8) {
        for value in [bytes[at] ^ 1, bytes[at] ^ 0x80, b'9', b'"', 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            fs::write(directory.path().join("model.safetensors"), damaged).unwrap();
            answers(directory.path(), &format!("byte {at} is {value}"));
        }
    }
}

#[test]
fn any_field_of_a_gguf_file_may_be_anything() {
    let strange = || {
        [
            GgufValue::from(0u32),
            GgufValue::from(u32::MAX),
            GgufValue::from(u64::MAX),
            GgufValue::from(-1i32),
            GgufValue::from(f32::NAN),
            GgufValue::from(f32::MAX),
            GgufValue::from(""),
            GgufValue::from("llama"),
            GgufValue::from(vec![0u32; 3]),
            GgufValue::from(vec![String::from("a b"); 2]),
            GgufValue::from(Vec::<String>::new()),
            GgufValue::from(true),
        ]
    };
    for (name, architecture) in [("llama", "llama"), ("qwen2", "qwen2"), ("llama-yarn", "llama")] {
        let mut file = match name {
            "llama" => byte_level("llama-bpe"),
            _ => draft(name, architecture),
        };
        let whole = file.metadata.clone();
        for (key, _) in whole.iter() {
            for value in strange() {
                let what = format!("{name}: {key} = {value:?}");
                file.metadata.set(key, value);
                answers(&file.write(), &what);
                file.metadata = whole.clone();
            }
        }
    }
}
