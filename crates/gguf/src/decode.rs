//! Values from bytes.

use crate::MAX_DEPTH;
use crate::array::Array;
use crate::bytes::Bytes;
use crate::error::Fault;
use crate::value::Value;

/// A string is at least its length; this bounds what an array of them can claim.
const LEAST_STRING: usize = size_of::<u64>();
/// An array is at least its type and its length.
const LEAST_ARRAY: usize = size_of::<u32>() + size_of::<u64>();

/// A value, after its key: its type, then its contents.
pub(crate) fn value(bytes: &mut Bytes<'_>) -> Result<Value, Fault> {
    Ok(match bytes.u32()? {
        0 => Value::U8(bytes.number(u8::from_le_bytes)?),
        1 => Value::I8(bytes.number(i8::from_le_bytes)?),
        2 => Value::U16(bytes.number(u16::from_le_bytes)?),
        3 => Value::I16(bytes.number(i16::from_le_bytes)?),
        4 => Value::U32(bytes.number(u32::from_le_bytes)?),
        5 => Value::I32(bytes.number(i32::from_le_bytes)?),
        6 => Value::F32(bytes.number(f32::from_le_bytes)?),
        7 => Value::Bool(boolean(bytes.number(u8::from_le_bytes)?)?),
        8 => Value::String(bytes.string()?),
        9 => Value::Array(array(bytes, 1)?),
        10 => Value::U64(bytes.number(u64::from_le_bytes)?),
        11 => Value::I64(bytes.number(i64::from_le_bytes)?),
        12 => Value::F64(bytes.number(f64::from_le_bytes)?),
        unknown => return Err(Fault::ValueType(unknown)),
    })
}

fn array(bytes: &mut Bytes<'_>, depth: usize) -> Result<Array, Fault> {
    if depth > MAX_DEPTH {
        return Err(Fault::Nesting);
    }
    let kind = bytes.u32()?;
    let count = bytes.u64()?;
    Ok(match kind {
        0 => Array::U8(numbers(bytes, count, u8::from_le_bytes)?),
        1 => Array::I8(numbers(bytes, count, i8::from_le_bytes)?),
        2 => Array::U16(numbers(bytes, count, u16::from_le_bytes)?),
        3 => Array::I16(numbers(bytes, count, i16::from_le_bytes)?),
        4 => Array::U32(numbers(bytes, count, u32::from_le_bytes)?),
        5 => Array::I32(numbers(bytes, count, i32::from_le_bytes)?),
        6 => Array::F32(numbers(bytes, count, f32::from_le_bytes)?),
        7 => Array::Bool(
            bytes.take(count, 1)?.iter().map(|&byte| boolean(byte)).collect::<Result<_, _>>()?,
        ),
        8 => {
            bytes.expect(count, LEAST_STRING)?;
            Array::String(several(count, || bytes.string())?)
        }
        9 => {
            bytes.expect(count, LEAST_ARRAY)?;
            Array::Array(several(count, || array(bytes, depth + 1))?)
        }
        10 => Array::U64(numbers(bytes, count, u64::from_le_bytes)?),
        11 => Array::I64(numbers(bytes, count, i64::from_le_bytes)?),
        12 => Array::F64(numbers(bytes, count, f64::from_le_bytes)?),
        unknown => return Err(Fault::ValueType(unknown)),
    })
}

fn boolean(byte: u8) -> Result<bool, Fault> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fault::Bool(other)),
    }
}

fn numbers<const N: usize, T>(
    bytes: &mut Bytes<'_>,
    count: u64,
    convert: fn([u8; N]) -> T,
) -> Result<Vec<T>, Fault> {
    let (chunks, _) = bytes.take(count, N)?.as_chunks();
    Ok(chunks.iter().map(|chunk| convert(*chunk)).collect())
}

/// Grows with what was really read: if memory were allocated for the announced count, a damaged one in a large file
/// could ask for several times its size.
fn several<T>(count: u64, mut next: impl FnMut() -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
    (0..count).map(|_| next()).collect()
}
