//! A file that is read and written again reads the same.

#![no_main]

use hadal_gguf::{Gguf, Writer};
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;

static DIRECTORY: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = Gguf::from_bytes(Path::new("fuzz.gguf"), bytes.to_vec()) else { return };
    // Padding up to an alignment of gigabytes is right, but slow.
    if file.alignment() > 4096 {
        return;
    }
    let path = DIRECTORY.path().join("again.gguf");
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
});
