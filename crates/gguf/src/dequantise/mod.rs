//! Numbers from blocks. Each type has a function over whole blocks that multiplies and adds in ggml's
//! order, so that values are the same to the bit.

mod k;
mod plain;
mod simple;

use crate::types::TensorType;
use half::f16;

/// Decodes as many blocks as there are.
pub(crate) type Decode = fn(&[u8], &mut [f32]);

/// How a type is decoded, if it can be.
pub(crate) fn decoder(kind: TensorType) -> Option<Decode> {
    Some(match kind {
        TensorType::F32 => plain::f32,
        TensorType::F16 => plain::f16,
        TensorType::BF16 => plain::bf16,
        TensorType::Q4_0 => simple::q4_0,
        TensorType::Q4_1 => simple::q4_1,
        TensorType::Q5_0 => simple::q5_0,
        TensorType::Q5_1 => simple::q5_1,
        TensorType::Q8_0 => simple::q8_0,
        TensorType::Q4K => k::q4,
        TensorType::Q5K => k::q5,
        TensorType::Q6K => k::q6,
        _ => return None,
    })
}

/// The types that can be decoded.
pub(crate) fn readable() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|kind| decoder(*kind).is_some())
}

/// Every block of bytes with the slice for its values.
fn each_block<const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; VALUES]),
) {
    let (blocks, _) = bytes.as_chunks();
    let (values, _) = out.as_chunks_mut();
    for (block, values) in blocks.iter().zip(values) {
        decode(block, values);
    }
}

/// The f16 at an offset of a block.
fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
