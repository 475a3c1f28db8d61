//! Blocks of 32 with one scale, and perhaps one offset: `d q` or `d q + m`.
//!
//! Two quants are in one byte: those of the first half of a block in the low bits, those of the second in the high
//! ones. A fifth bit is in a word of 32, in order.

use super::{each_block, scale};

/// The two quants of a byte.
fn nibbles(byte: u8) -> (i32, i32) {
    (i32::from(byte & 15), i32::from(byte >> 4))
}

/// Decodes quants of four bits and, from `high`, a fifth one.
fn halves(quants: &[u8], high: u32, out: &mut [f32; 32], value: impl Fn(i32) -> f32) {
    for (index, byte) in quants.iter().enumerate() {
        let (low, other) = nibbles(*byte);
        let fifth = |index: usize| ((high >> index & 1) << 4) as i32;
        out[index] = value(low | fifth(index));
        out[index + 16] = value(other | fifth(index + 16));
    }
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

pub(super) fn q4_0(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 18], out| {
        let d = scale(block, 0);
        halves(&block[2..], 0, out, |quant| d * (quant - 8) as f32);
    });
}

pub(super) fn q4_1(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 20], out| {
        let (d, m) = (scale(block, 0), scale(block, 2));
        halves(&block[4..], 0, out, |quant| d * quant as f32 + m);
    });
}

pub(super) fn q5_0(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 22], out| {
        let d = scale(block, 0);
        halves(&block[6..], word(block, 2), out, |quant| d * (quant - 16) as f32);
    });
}

pub(super) fn q5_1(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 24], out| {
        let (d, m) = (scale(block, 0), scale(block, 2));
        halves(&block[8..], word(block, 4), out, |quant| d * quant as f32 + m);
    });
}

pub(super) fn q8_0(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 34], out: &mut [f32; 32]| {
        let d = scale(block, 0);
        for (quant, out) in block[2..].iter().zip(out) {
            *out = f32::from(quant.cast_signed()) * d;
        }
    });
}
