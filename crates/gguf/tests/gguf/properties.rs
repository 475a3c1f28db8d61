//! Any metadata survives being written and read.

use hadal_gguf::{Array, Gguf, Metadata, TensorInfo, TensorType, Value, Writer};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn array() -> impl Strategy<Value = Array> {
    let plain = prop_oneof![
        any::<Vec<u8>>().prop_map(Array::from),
        any::<Vec<i8>>().prop_map(Array::from),
        any::<Vec<u16>>().prop_map(Array::from),
        any::<Vec<i16>>().prop_map(Array::from),
        any::<Vec<u32>>().prop_map(Array::from),
        any::<Vec<i32>>().prop_map(Array::from),
        any::<Vec<u64>>().prop_map(Array::from),
        any::<Vec<i64>>().prop_map(Array::from),
        any::<Vec<f32>>().prop_map(Array::from),
        any::<Vec<f64>>().prop_map(Array::from),
        any::<Vec<bool>>().prop_map(Array::from),
        any::<Vec<String>>().prop_map(Array::from),
    ];
    plain.prop_recursive(4, 32, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Array::from))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        array().prop_map(Value::from),
    ]
}

#[test]
fn any_metadata_and_alignment_are_read_as_they_were_written() {
    let config = ProptestConfig { failure_persistence: None, cases: 128, ..Default::default() };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("any.gguf");
    let entries = prop::collection::vec((any::<String>(), value()), 0..8);
    let sizes = prop::collection::vec(1..50usize, 0..4);
    TestRunner::new(config)
        .run(&(entries, 0..9u32, sizes), |(entries, exponent, sizes)| {
            let mut metadata = Metadata::default();
            for (key, value) in entries {
                metadata.set(&key, value);
            }
            metadata.set("general.alignment", 1u32 << exponent);
            let info = |(index, size): (usize, &usize)| {
                TensorInfo::new(format!("t{index}"), &[*size], TensorType::F32).unwrap()
            };
            let tensors: Vec<_> = sizes.iter().enumerate().map(info).collect();
            let mut writer = Writer::create(&path, &metadata, tensors.clone()).unwrap();
            for info in &tensors {
                writer.rows(info.name(), &vec![info.elements() as f32; info.elements()]).unwrap();
            }
            writer.finish().unwrap();

            let file = Gguf::open(&path).unwrap();
            // Texts, because NaN does not equal itself.
            prop_assert_eq!(format!("{:?}", file.metadata()), format!("{metadata:?}"));
            prop_assert_eq!(file.alignment(), 1 << exponent);
            for (tensor, info) in file.tensors().zip(&tensors) {
                prop_assert_eq!(tensor.info(), info);
                let values = tensor.to_f32().unwrap();
                prop_assert_eq!(values, vec![info.elements() as f32; info.elements()]);
            }
            Ok(())
        })
        .unwrap();
}
