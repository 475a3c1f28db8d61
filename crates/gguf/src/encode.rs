//! Values to bytes.

use crate::array::Array;
use crate::value::Value;

/// Its length, then UTF-8.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A value, after its key: its type, then its contents.
pub(crate) fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(value) => scalar(out, 0, value.to_le_bytes()),
        Value::I8(value) => scalar(out, 1, value.to_le_bytes()),
        Value::U16(value) => scalar(out, 2, value.to_le_bytes()),
        Value::I16(value) => scalar(out, 3, value.to_le_bytes()),
        Value::U32(value) => scalar(out, 4, value.to_le_bytes()),
        Value::I32(value) => scalar(out, 5, value.to_le_bytes()),
        Value::F32(value) => scalar(out, 6, value.to_le_bytes()),
        Value::Bool(value) => scalar(out, 7, [(*value).into()]),
        Value::String(text) => {
            scalar(out, 8, []);
            string(out, text);
        }
        Value::Array(values) => {
            scalar(out, 9, []);
            array(out, values);
        }
        Value::U64(value) => scalar(out, 10, value.to_le_bytes()),
        Value::I64(value) => scalar(out, 11, value.to_le_bytes()),
        Value::F64(value) => scalar(out, 12, value.to_le_bytes()),
    }
}

fn scalar<const N: usize>(out: &mut Vec<u8>, kind: u32, bytes: [u8; N]) {
    out.extend(kind.to_le_bytes());
    out.extend(bytes);
}

fn array(out: &mut Vec<u8>, values: &Array) {
    match values {
        Array::U8(values) => numbers(out, 0, values, |value| value.to_le_bytes()),
        Array::I8(values) => numbers(out, 1, values, |value| value.to_le_bytes()),
        Array::U16(values) => numbers(out, 2, values, |value| value.to_le_bytes()),
        Array::I16(values) => numbers(out, 3, values, |value| value.to_le_bytes()),
        Array::U32(values) => numbers(out, 4, values, |value| value.to_le_bytes()),
        Array::I32(values) => numbers(out, 5, values, |value| value.to_le_bytes()),
        Array::F32(values) => numbers(out, 6, values, |value| value.to_le_bytes()),
        Array::Bool(values) => numbers(out, 7, values, |value| [value.into()]),
        Array::String(values) => {
            head(out, 8, values.len());
            values.iter().for_each(|text| string(out, text));
        }
        Array::Array(values) => {
            head(out, 9, values.len());
            values.iter().for_each(|inner| array(out, inner));
        }
        Array::U64(values) => numbers(out, 10, values, |value| value.to_le_bytes()),
        Array::I64(values) => numbers(out, 11, values, |value| value.to_le_bytes()),
        Array::F64(values) => numbers(out, 12, values, |value| value.to_le_bytes()),
    }
}

fn head(out: &mut Vec<u8>, kind: u32, count: usize) {
    out.extend(kind.to_le_bytes());
    out.extend((count as u64).to_le_bytes());
}

fn numbers<T: Copy, const N: usize>(
    out: &mut Vec<u8>,
    kind: u32,
    values: &[T],
    convert: fn(T) -> [u8; N],
) {
    head(out, kind, values.len());
    out.extend(values.iter().flat_map(|value| convert(*value)));
}
