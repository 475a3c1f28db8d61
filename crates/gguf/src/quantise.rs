//! Blocks from numbers.

use crate::types::TensorType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A number that its type cannot hold, and its index.
#[derive(Debug, PartialEq)]
pub(crate) struct Unfit {
    pub(crate) index: usize,
    pub(crate) value: f32,
}

/// Encodes whole blocks. Values are finite.
pub(crate) type Encode = fn(&[f32], &mut Vec<u8>) -> Result<(), Unfit>;

/// How a type is encoded, if it can be.
pub(crate) fn encoder(kind: TensorType) -> Option<Encode> {
    Some(match kind {
        TensorType::F32 => |values, out| each(values, out, |value| Some(value.to_le_bytes())),
        TensorType::F16 => f16s,
        TensorType::BF16 => |values, out| each(values, out, brain_float),
        TensorType::Q8_0 => q8_0,
        _ => return None,
    })
}

/// The types that can be encoded.
pub(crate) fn writable() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|kind| encoder(*kind).is_some())
}

fn each<const N: usize>(
    values: &[f32],
    out: &mut Vec<u8>,
    convert: impl Fn(f32) -> Option<[u8; N]>,
) -> Result<(), Unfit> {
    for (index, &value) in values.iter().enumerate() {
        let bytes = convert(value).filter(|_| value.is_finite());
        out.extend(bytes.ok_or(Unfit { index, value })?);
    }
    Ok(())
}

/// Many at once: one by one, the processor's features would be checked each time.
fn f16s(values: &[f32], out: &mut Vec<u8>) -> Result<(), Unfit> {
    const GROUP: usize = 64;
    if let Some(index) = values.iter().position(|value| !fits_half(*value)) {
        return Err(Unfit { index, value: values[index] });
    }
    for values in values.chunks(GROUP) {
        let mut group = [f16::ZERO; GROUP];
        let group = &mut group[..values.len()];
        group.convert_from_f32_slice(values);
        out.extend(group.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(())
}

/// Rounding would still reach the largest f16 from a little above it, but such a model is at its limit.
fn fits_half(value: f32) -> bool {
    value.abs() <= f16::MAX.to_f32()
}

fn brain_float(value: f32) -> Option<[u8; 2]> {
    Some(bf16::from_f32(value)).filter(|value| value.is_finite()).map(bf16::to_le_bytes)
}

/// Blocks of 32: `d = max |x| / 127` as f16, then `round(x / d)` with halves away from zero, as ggml does.
fn q8_0(values: &[f32], out: &mut Vec<u8>) -> Result<(), Unfit> {
    let (blocks, _) = values.as_chunks::<32>();
    for (number, block) in blocks.iter().enumerate() {
        let unfit = |index: usize| Unfit { index: number * 32 + index, value: block[index] };
        if let Some(index) = block.iter().position(|value| !value.is_finite()) {
            return Err(unfit(index));
        }
        let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let d = largest / 127.0;
        if !fits_half(d) {
            return Err(unfit(block.iter().position(|value| value.abs() == largest).unwrap_or(0)));
        }
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        out.extend(f16::from_f32(d).to_le_bytes());
        // The cast saturates: where 1/d is not finite, d is 0 as f16 and quants do not matter.
        out.extend(block.iter().map(|value| ((value * inverse).round() as i8).cast_unsigned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(kind: TensorType, values: &[f32]) -> Result<Vec<u8>, Unfit> {
        let mut out = Vec::new();
        encoder(kind).unwrap()(values, &mut out).map(|()| out)
    }

    #[test]
    fn what_a_type_cannot_hold_is_refused_with_its_place() {
        let kinds = [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q8_0];
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for kind in kinds {
                let mut values = [1.0; 64];
                values[40] = value;
                assert_eq!(encode(kind, &values).unwrap_err().index, 40, "{kind} {value}");
            }
        }
        let at_zero = |value| Err(Unfit { index: 0, value });
        assert!(encode(TensorType::F16, &[65504.0, -65504.0]).is_ok());
        assert_eq!(encode(TensorType::F16, &[65505.0]), at_zero(65505.0));
        assert_eq!(encode(TensorType::F16, &[-1e9]), at_zero(-1e9));
        assert!(encode(TensorType::BF16, &[3.3e38]).is_ok());
        assert_eq!(encode(TensorType::BF16, &[f32::MAX]), at_zero(f32::MAX));
        assert!(encode(TensorType::Q8_0, &[65504.0 * 127.0; 32]).is_ok());
        assert_eq!(encode(TensorType::Q8_0, &[-1e7; 32]), at_zero(-1e7));
    }

    #[test]
    fn quants_of_eight_bits_span_a_block_symmetrically() {
        let values: [f32; 32] = std::array::from_fn(|index| index as f32 * 8.0 - 127.0);
        let bytes = encode(TensorType::Q8_0, &values).unwrap();
        assert_eq!(bytes[..2], f16::ONE.to_le_bytes());
        let quants: Vec<f32> = bytes[2..].iter().map(|q| q.cast_signed().into()).collect();
        assert_eq!(quants, values);
        assert_eq!(encode(TensorType::Q8_0, &[0.0; 32]).unwrap(), [0; 34]);
        assert_eq!(encode(TensorType::Q8_0, &[1e-40; 32]).unwrap()[..2], [0; 2]);
    }
}
