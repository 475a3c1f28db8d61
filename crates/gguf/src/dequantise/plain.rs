//! Types without blocks.

use super::each_block;
use half::bf16;

pub(super) fn f32(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |value, out| *out = [f32::from_le_bytes(*value)]);
}

pub(super) fn f16(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |value, out| *out = [half::f16::from_le_bytes(*value).to_f32()]);
}

pub(super) fn bf16(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |value, out| *out = [bf16::from_le_bytes(*value).to_f32()]);
}
