//! Rounding and turning by registers.

use super::super::STEP;
use super::super::pack::{Source, Target};
use std::arch::x86_64::*;

/// Neither a number nor finite, as `vfpclassps` has it: quiet and signalling NaN, both infinities.
const NOT_FINITE: i32 = 0x01 | 0x08 | 0x10 | 0x80;

/// Words of `N` parts of so many lanes and so many numbers of each.
///
/// # Safety
/// Needs AVX-512 with bf16, the elements of the source, and the words of the target.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
pub(in crate::gemm::words) unsafe fn put<const N: usize>(
    source: Source,
    [lanes, depth]: [usize; 2],
    target: Target,
) {
    // SAFETY: passed on from the caller; the masks leave out what is not there.
    unsafe {
        match source {
            Source::Along { halves: [low, high], apart } => {
                let masks = [mask(depth), mask(depth.saturating_sub(STEP))];
                let words = |lane: usize| {
                    let at = |half: &[f32]| half.as_ptr().wrapping_add(lane * apart);
                    split([
                        _mm512_maskz_loadu_ps(masks[0], at(low)),
                        _mm512_maskz_loadu_ps(masks[1], at(high)),
                    ])
                };
                match target.lanes {
                    true => straight::<N>(lanes, words, target),
                    false => turned::<N>(lanes, words, target),
                }
            }
            Source::Across { rows, apart } => {
                let columns = mask(lanes);
                let words = |pair: usize| {
                    let at = |row: usize| rows.as_ptr().wrapping_add(row * apart);
                    let second = if 2 * pair + 1 < depth { columns } else { 0 };
                    let mut parts = split([
                        _mm512_maskz_loadu_ps(columns, at(2 * pair)),
                        _mm512_maskz_loadu_ps(second, at(2 * pair + 1)),
                    ]);
                    for part in &mut parts {
                        *part = side_by_side(*part);
                    }
                    parts
                };
                let pairs = depth.div_ceil(2);
                match target.lanes {
                    true => turned::<N>(pairs, words, target),
                    false => straight::<N>(pairs, words, target),
                }
            }
        }
    }
}

/// The first so many elements.
#[inline]
fn mask(count: usize) -> __mmask16 {
    ((1u32 << count.min(STEP)) - 1) as u16
}

/// Rows as they come, of which there are so many; others are zero.
///
/// # Safety
/// As [`put`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
unsafe fn straight<const N: usize>(
    count: usize,
    words: impl Fn(usize) -> [__m512i; N],
    target: Target,
) {
    let to = target.words.as_mut_ptr();
    for row in 0..target.rows {
        let parts = if row < count { words(row) } else { [_mm512_setzero_si512(); N] };
        for (part, words) in parts.into_iter().enumerate() {
            // SAFETY: passed on from the caller.
            unsafe {
                let to = to.add(part * target.part + row * target.apart);
                _mm512_storeu_si512(to.cast(), words);
            }
        }
    }
}

/// The columns of those rows.
///
/// # Safety
/// As [`put`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
unsafe fn turned<const N: usize>(
    count: usize,
    words: impl Fn(usize) -> [__m512i; N],
    target: Target,
) {
    let mut all = [[_mm512_setzero_si512(); STEP]; N];
    for row in 0..count {
        let parts = words(row);
        for (all, words) in all.iter_mut().zip(parts) {
            all[row] = words;
        }
    }
    let to = target.words.as_mut_ptr();
    for (part, all) in all.into_iter().enumerate() {
        let columns = transposed(all);
        for (row, words) in columns.into_iter().enumerate().take(target.rows) {
            // SAFETY: passed on from the caller.
            unsafe {
                let to = to.add(part * target.part + row * target.apart);
                _mm512_storeu_si512(to.cast(), words);
            }
        }
    }
}

/// The parts of two rows of numbers, those of the first row before those of the second: [`split`](crate::precision::split).
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
fn split<const N: usize>([mut low, mut high]: [__m512; 2]) -> [__m512i; N] {
    let mut parts = [_mm512_setzero_si512(); N];
    for (index, part) in parts.iter_mut().enumerate() {
        // SAFETY: both are 64 bytes of any bits.
        *part = unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
        if index + 1 < N {
            low = rest(low, widened(_mm512_castsi512_si256(*part)));
            high = rest(high, widened(_mm512_extracti64x4_epi64::<1>(*part)));
        }
    }
    parts
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
fn widened(part: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(part)))
}

/// What a part leaves: nothing if it is not finite.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
fn rest(x: __m512, part: __m512) -> __m512 {
    _mm512_maskz_sub_ps(!_mm512_fpclass_ps_mask::<NOT_FINITE>(part), x, part)
}

/// Two rows of numbers as one of words.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
fn side_by_side(rows: __m512i) -> __m512i {
    const ORDER: [u16; 32] = {
        let (mut order, mut i) = ([0; 32], 0);
        while i < 32 {
            order[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: 64 bytes.
    _mm512_permutexvar_epi16(unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) }, rows)
}

/// The i-th row of the result holds the i-th words of all rows.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
fn transposed(mut rows: [__m512i; STEP]) -> [__m512i; STEP] {
    let mut next = rows;
    // Within lanes of four words: pairs of rows, then fours.
    for i in 0..STEP / 2 {
        let (a, b) = (rows[2 * i], rows[2 * i + 1]);
        (next[2 * i], next[2 * i + 1]) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
    for i in 0..STEP / 4 {
        let (a, b, c, d) = (next[4 * i], next[4 * i + 1], next[4 * i + 2], next[4 * i + 3]);
        rows[4 * i] = _mm512_unpacklo_epi64(a, c);
        rows[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
        rows[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
        rows[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    // Row 4 i + j now has, in its lane l, words 4 i to 4 i + 3 of column 4 l + j.
    for j in 0..4 {
        let (a, b, c, d) = (rows[j], rows[4 + j], rows[8 + j], rows[12 + j]);
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xDD>(a, b));
        let (even2, odd2) =
            (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xDD>(c, d));
        next[j] = _mm512_shuffle_i32x4::<0x88>(even, even2);
        next[8 + j] = _mm512_shuffle_i32x4::<0xDD>(even, even2);
        next[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd2);
        next[12 + j] = _mm512_shuffle_i32x4::<0xDD>(odd, odd2);
    }
    next
}
