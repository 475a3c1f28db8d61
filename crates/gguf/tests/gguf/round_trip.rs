//! What the writer does besides writing: it refuses, it replaces whole files, it leaves nothing unfinished.

use hadal_gguf::{Array, Gguf, Metadata, TensorInfo, TensorType, Value, WriteError, Writer};
use std::fs;
use std::path::Path;

fn info(name: &str, dimensions: &[usize], kind: TensorType) -> TensorInfo {
    TensorInfo::new(name, dimensions, kind).unwrap()
}

fn create(path: &Path, tensors: Vec<TensorInfo>) -> Result<Writer, WriteError> {
    Writer::create(path, &Metadata::default(), tensors)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn large_tensors_are_written_and_read_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.gguf");
    // Above what is encoded or decoded at once, and no multiple of it.
    let (length, rows) = (320, 1001);
    let kinds = [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q8_0];
    let tensors = kinds.map(|kind| info(kind.name(), &[length, rows], kind)).to_vec();
    // Whole numbers up to 127 with a 127 in each block: exact in all of these types.
    let values: Vec<f32> = (0..length * rows)
        .map(|i| if i % 32 == 0 { 127.0 } else { (i * 31 % 255) as f32 - 127.0 })
        .collect();
    let mut writer = create(&path, tensors).unwrap();
    for kind in kinds {
        let (head, tail) = values.split_at(700 * length);
        writer.rows(kind.name(), head).unwrap();
        writer.rows(kind.name(), &[]).unwrap();
        writer.rows(kind.name(), tail).unwrap();
    }
    writer.finish().unwrap();
    let file = Gguf::open(&path).unwrap();
    for tensor in file.tensors() {
        assert!(tensor.to_f32().unwrap() == values, "{}", tensor.info().kind());
        let mut some = vec![0.0; 500 * length];
        tensor.dequantise_rows(301..801, &mut some).unwrap();
        assert!(some == values[301 * length..801 * length], "{}", tensor.info().kind());
    }
}

#[test]
fn a_number_that_does_not_fit_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("overflow.gguf");
    let (length, rows) = (64, 2000);
    let mut values = vec![1.0; length * rows];
    values[100_003] = 70_000.0;
    let mut writer = create(&path, vec![info("deep", &[length, rows], TensorType::F16)]).unwrap();
    let message = writer.rows("deep", &values).unwrap_err().to_string();
    assert!(
        message.ends_with(
            "overflow.gguf: tensor `deep` holds 70000 at element 100003, which F16 cannot; choose F32 for it"
        ),
        "{message}"
    );
    assert!(matches!(writer.finish(), Err(WriteError::Incomplete { .. })));
    let mut writer = create(&path, vec![info("deep", &[2], TensorType::F32)]).unwrap();
    let message = writer.rows("deep", &[1.0, f32::NAN]).unwrap_err().to_string();
    assert!(message.contains("tensor `deep` holds NaN at element 1; the run"), "{message}");
    drop(writer);
    assert_eq!(names(directory.path()), [""; 0]);
}

#[test]
fn tensors_that_are_not_as_declared_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.gguf");
    let declared = vec![info("a", &[32, 2], TensorType::Q8_0), info("b", &[256], TensorType::Q4K)];
    let mut writer = create(&path, declared).unwrap();
    let message = writer.rows("b", &[0.0; 256]).unwrap_err().to_string();
    assert!(message.contains("tensor `b` was given where `a` was expected"), "{message}");
    for values in [&[0.0; 31][..], &[0.0; 96]] {
        let error = writer.rows("a", values).unwrap_err();
        assert!(matches!(error, WriteError::Rows { row: 32, left: 64, .. }), "{error}");
    }
    writer.raw("a", &[0; 34]).unwrap();
    assert!(matches!(writer.raw("a", &[0; 68]), Err(WriteError::Rows { row: 34, left: 34, .. })));
    writer.rows("a", &[0.0; 32]).unwrap();
    let message = writer.rows("b", &[0.0; 256]).unwrap_err().to_string();
    assert!(message.contains("numbers are written as F32, F16, Q8_0, BF16"), "{message}");
    writer.raw("b", &[0; 144]).unwrap();
    let message = writer.raw("b", &[]).unwrap_err().to_string();
    assert!(message.contains("where nothing more was expected"), "{message}");
    writer.finish().unwrap();
    Gguf::open(&path).unwrap();
}

#[test]
fn headers_that_nobody_could_read_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.gguf");
    let f32 = |name: &str| info(name, &[1], TensorType::F32);
    let refused = |metadata: &Metadata, tensors| {
        Writer::create(&path, metadata, tensors).unwrap_err().to_string()
    };
    let none = Metadata::default();
    assert!(refused(&none, vec![f32("a"), f32("a")]).ends_with("tensor `a` occurs twice"));
    assert!(refused(&none, vec![f32(&"n".repeat(64))]).contains("has a name of 64 bytes"));
    let halves = || info("half", &[usize::MAX / 8, 1], TensorType::I8);
    let many =
        (0..9).map(|i| info(&i.to_string(), halves().dimensions(), TensorType::I8)).collect();
    assert!(refused(&none, many).contains("is larger than memory"));
    let with = |key: &str, value: Value| {
        let mut metadata = Metadata::default();
        metadata.set(key, value);
        metadata
    };
    let deep = (0..8).fold(Array::U8(vec![]), |inner, _| Array::Array(vec![inner]));
    assert!(refused(&with("deep", deep.into()), vec![]).contains("key deep nests arrays deeper"));
    for value in [Value::U32(48), Value::U64(32), Value::U32(0), Value::Bool(true)] {
        let message = refused(&with("general.alignment", value), vec![]);
        assert!(message.contains("must be a power of two as a u32"), "{message}");
    }
    assert_eq!(names(directory.path()), [""; 0]);
}

#[test]
fn a_file_is_replaced_only_when_it_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let write = |value: f32| {
        let mut writer = create(&path, vec![info("x", &[1], TensorType::F32)]).unwrap();
        writer.rows("x", &[value]).unwrap();
        writer
    };
    write(1.0).finish().unwrap();
    let open = Gguf::open(&path).unwrap();
    let read = |file: &Gguf| file.tensor("x").unwrap().to_f32().unwrap();
    drop(write(2.0));
    assert_eq!(read(&Gguf::open(&path).unwrap()), [1.0]);
    write(3.0).finish().unwrap();
    assert_eq!(read(&Gguf::open(&path).unwrap()), [3.0]);
    // A reader that has the old file open still sees all of it.
    assert_eq!(read(&open), [1.0]);
    assert_eq!(names(directory.path()), ["model.gguf"]);
    assert!(matches!(create(directory.path(), vec![]), Err(WriteError::File(_))));
    let absent = directory.path().join("absent/model.gguf");
    assert!(matches!(create(&absent, vec![]), Err(WriteError::File(_))));
}
