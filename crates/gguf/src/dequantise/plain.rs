//! Types without blocks.

use super::each_block;
use half::bf16;
use half::slice::HalfFloatSliceExt;

pub(super) fn f32(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |value, out| *out = [f32::from_le_bytes(*value)]);
}

/// Many at once: one by one, the processor's features would be checked each time.
pub(super) fn f16(bytes: &[u8], out: &mut [f32]) {
    const GROUP: usize = 64;
    let (halves, _) = bytes.as_chunks();
    for (halves, out) in halves.chunks(GROUP).zip(out.chunks_mut(GROUP)) {
        let mut group = [half::f16::ZERO; GROUP];
        for (value, bytes) in group.iter_mut().zip(halves) {
            *value = half::f16::from_le_bytes(*bytes);
        }
        group[..out.len()].convert_to_f32_slice(out);
    }
}

pub(super) fn bf16(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |value, out| *out = [bf16::from_le_bytes(*value).to_f32()]);
}
