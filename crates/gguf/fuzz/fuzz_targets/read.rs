//! Any bytes are read or refused; what is read can be dequantised.

#![no_main]

use hadal_gguf::Gguf;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
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
});
