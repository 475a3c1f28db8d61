//! K-quants: blocks of 256 whose groups have scales of their own, in turn scaled by the block's.

use super::{each_block, scale};

/// Q4_K and Q5_K: `d s q - dmin m` for eight groups of 32. Scales `s` and minima `m` of 6 bits are packed
/// into 12 bytes: four bytes with the first scales, four with the first minima, and four with the low bits of
/// the others, whose two high bits are above the first ones.
fn scale_and_minimum(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let low = packed[group + 4];
        let high = |byte: u8| (byte >> 6) << 4;
        ((low & 15) | high(packed[group - 4]), (low >> 4) | high(packed[group]))
    };
    (f32::from(scale), f32::from(minimum))
}

/// Two groups use the same 32 bytes, low and high bits; `fifth` is the fifth bit of an element of a group, in place.
fn groups(block: &[u8], quants: &[u8], out: &mut [f32; 256], fifth: impl Fn(usize, usize) -> u8) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let packed = &block[4..16];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_and_minimum(packed, group);
        let (step, offset) = (d * s, dmin * m);
        let shared = &quants[group / 2 * 32..][..32];
        for (index, (byte, out)) in shared.iter().zip(out).enumerate() {
            let low = if group % 2 == 0 { byte & 15 } else { byte >> 4 };
            *out = step * f32::from(low | fifth(group, index)) - offset;
        }
    }
}

pub(super) fn q4(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 144], out| groups(block, &block[16..], out, |_, _| 0));
}

pub(super) fn q5(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 176], out| {
        let high = &block[16..48];
        groups(block, &block[48..], out, |group, index| (high[index] >> group & 1) << 4);
    });
}

/// Q6_K: `d s (q - 32)` for sixteen groups of 16 with signed scales of 8 bits. A half of 128 elements has 64
/// bytes of low bits (two quarters in each nibble) and 32 bytes of high ones (two bits for each quarter).
pub(super) fn q6(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 210], out: &mut [f32; 256]| {
        let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = scale(block, 208);
        for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
            let (half, quarter) = (quarter / 4, quarter % 4);
            let low = &low[half * 64 + quarter % 2 * 32..][..32];
            let high = &high[half * 32..][..32];
            let scales = &scales[half * 8 + quarter * 2..][..2];
            let steps = [scales[0], scales[1]].map(|s| d * f32::from(s.cast_signed()));
            for (index, out) in out.iter_mut().enumerate() {
                let low = if quarter < 2 { low[index] & 15 } else { low[index] >> 4 };
                let quant = low | (high[index] >> (2 * quarter) & 3) << 4;
                *out = steps[index / 16] * f32::from(quant.cast_signed() - 32);
            }
        }
    });
}
