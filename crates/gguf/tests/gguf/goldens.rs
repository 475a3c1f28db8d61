//! Files of the reference implementation (`tests/make_goldens.py`), read and written by us.

use crate::support::golden;
use hadal_gguf::{Array, Gguf, TensorInfo, TensorType, Value, Writer};

const READ: [TensorType; 10] = [
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q4K,
    TensorType::Q5K,
    TensorType::Q6K,
];

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_type_has_the_reference_values_to_the_bit() {
    let file = Gguf::open(&golden("types.gguf")).unwrap();
    for kind in READ {
        let packed = file.tensor(&format!("packed.{kind}")).unwrap();
        let expected = file.tensor(&format!("values.{kind}")).unwrap();
        assert_eq!(packed.info().kind(), kind);
        assert_eq!(packed.info().dimensions(), expected.info().dimensions());
        let expected = expected.to_f32().unwrap();
        assert!(expected.iter().all(|value| value.is_finite()));
        assert_eq!(bits(&packed.to_f32().unwrap()), bits(&expected), "{kind}");
    }
    assert_eq!(file.tensors().len(), 2 * READ.len() + 1);
}

#[test]
fn rows_are_those_of_the_whole_tensor() {
    let file = Gguf::open(&golden("types.gguf")).unwrap();
    for tensor in file.tensors() {
        let (all, length) = (tensor.to_f32().unwrap(), tensor.info().row_length());
        for first in 0..=tensor.info().rows() {
            for end in first..=tensor.info().rows() {
                let mut rows = vec![f32::NAN; (end - first) * length];
                tensor.dequantise_rows(first..end, &mut rows).unwrap();
                assert_eq!(rows, all[first * length..end * length]);
            }
        }
    }
    let counted = file.tensor("counted").unwrap();
    assert_eq!(counted.info().dimensions(), [4, 3, 2]);
    assert_eq!(counted.to_f32().unwrap(), (0..24).map(|i| i as f32).collect::<Vec<_>>());
}

#[test]
fn numbers_are_packed_as_the_reference_packs_them() {
    let file = Gguf::open(&golden("written.gguf")).unwrap();
    let numbers = file.tensor("numbers").unwrap().to_f32().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ours.gguf");
    for kind in [TensorType::F16, TensorType::BF16, TensorType::Q8_0] {
        let tensors = vec![TensorInfo::new("ours", &[64, 4], kind).unwrap()];
        let mut writer = Writer::create(&path, file.metadata(), tensors).unwrap();
        writer.rows("ours", &numbers).unwrap();
        writer.finish().unwrap();
        let ours = Gguf::open(&path).unwrap();
        let theirs = file.tensor(&format!("written.{kind}")).unwrap();
        assert_eq!(ours.tensor("ours").unwrap().bytes(), theirs.bytes(), "{kind}");
    }
}

#[test]
fn metadata_of_every_type_is_read() {
    let file = Gguf::open(&golden("metadata.gguf")).unwrap();
    let words = ["a", "", "ü"].map(String::from).to_vec();
    let nested = vec![Array::from(vec![1i32, 2]), Array::from(vec![3i32])];
    let expected: Vec<(&str, Value)> = vec![
        ("general.architecture", "llama".into()),
        ("general.alignment", 64u32.into()),
        ("u8", 250u8.into()),
        ("i8", (-5i8).into()),
        ("u16", 65_000u16.into()),
        ("i16", (-30_000i16).into()),
        ("u32", 4_000_000_000u32.into()),
        ("i32", (-2_000_000_000i32).into()),
        ("u64", ((1u64 << 63) + 1).into()),
        ("i64", (-(1i64 << 62)).into()),
        ("f32", 0.1f32.into()),
        ("f64", 0.1f64.into()),
        ("bool", true.into()),
        ("string", "tiefe See, 深海, \n\"".into()),
        ("words", words.into()),
        ("integers", vec![1i32, -2, 3].into()),
        ("numbers", vec![0.5f32, -1.5].into()),
        ("bools", vec![true, false].into()),
        ("shorts", vec![1u16, 2, 65_535].into()),
        ("nested", nested.into()),
    ];
    let found: Vec<_> = file.metadata().iter().map(|(key, value)| (key, value.clone())).collect();
    assert_eq!(found, expected);
    assert_eq!((file.version(), file.alignment()), (3, 64));
    assert_eq!(file.tensor("one").unwrap().to_f32().unwrap(), [1.0; 5]);
    assert_eq!(file.tensor("two").unwrap().to_f32().unwrap(), [2.0; 6]);
}

#[test]
fn what_the_reference_wrote_is_written_again_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("again.gguf");
    for name in ["types.gguf", "written.gguf", "metadata.gguf"] {
        let file = Gguf::open(&golden(name)).unwrap();
        let tensors = file.tensors().map(|tensor| tensor.info().clone()).collect();
        let mut writer = Writer::create(&path, file.metadata(), tensors).unwrap();
        for tensor in file.tensors() {
            writer.raw(tensor.info().name(), tensor.bytes()).unwrap();
        }
        writer.finish().unwrap();
        let (ours, theirs) = (std::fs::read(&path).unwrap(), std::fs::read(golden(name)).unwrap());
        assert!(ours == theirs, "{name}: {} bytes instead of {}", ours.len(), theirs.len());
    }
}
