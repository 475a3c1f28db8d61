//! Packing by registers.

use super::super::{MR, NR};
use crate::simd::prefetch_line;
use std::arch::x86_64::*;

/// Rows side by side: element `(p, r)` of `out`, which has rows of [`MR`], is element p of row r. Returns how many
/// elements of each row were packed; up to two more elements of `out` are overwritten.
///
/// # Safety
/// Needs AVX2.
#[target_feature(enable = "avx2,fma")]
pub(in crate::gemm) unsafe fn pack_tile(
    out: &mut [f32],
    rows: [&[f32]; MR],
    ahead: usize,
) -> usize {
    let depth = rows.map(<[f32]>::len).into_iter().min().unwrap_or(0);
    // The last of eight writes of eight elements reaches two elements behind its six.
    let whole = depth.min(out.len().saturating_sub(2) / MR) / 8 * 8;
    for p in (0..whole).step_by(8) {
        if p % 16 == 0 {
            for row in rows {
                prefetch_line(row.as_ptr().wrapping_add(p + ahead));
            }
        }
        // SAFETY: there are eight elements of each row; the last row stands in for the two that are missing. Writes
        // end before `whole * MR + 2`.
        unsafe {
            let row = |i: usize| _mm256_loadu_ps(rows[i.min(MR - 1)].as_ptr().add(p));
            let columns = transposed(eight(row));
            for (i, column) in columns.into_iter().enumerate() {
                _mm256_storeu_ps(out.as_mut_ptr().add((p + i) * MR), column);
            }
        }
    }
    whole
}

/// Columns that lie `stride` apart, side by side: element `(p, j)` of `out` is element p of column j.
///
/// # Safety
/// Needs AVX2, and for each of the [`NR`] columns as many elements as `out` has rows of [`NR`].
#[target_feature(enable = "avx2,fma")]
pub(in crate::gemm) unsafe fn pack_columns(out: &mut [f32], columns: &[f32], stride: usize) {
    let depth = out.len() / NR;
    let whole = depth / 8 * 8;
    for p in (0..whole).step_by(8) {
        for j in (0..NR).step_by(8) {
            // SAFETY: eight elements of eight columns, and eight rows of `out`.
            unsafe {
                let column = |i: usize| _mm256_loadu_ps(columns.as_ptr().add((j + i) * stride + p));
                let rows = transposed(eight(column));
                for (i, row) in rows.into_iter().enumerate() {
                    _mm256_storeu_ps(out.as_mut_ptr().add((p + i) * NR + j), row);
                }
            }
        }
    }
    for (p, out) in out.chunks_exact_mut(NR).enumerate().skip(whole) {
        for (j, out) in out.iter_mut().enumerate() {
            *out = columns[j * stride + p];
        }
    }
}

/// Eight rows of eight: the i-th of the result holds the i-th elements of all rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transposed(rows: [__m256; 8]) -> [__m256; 8] {
    let four = |i: usize| {
        let (a, b, c, d) = (rows[i], rows[i + 1], rows[i + 2], rows[i + 3]);
        let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (more_low, more_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0x44>(low, more_low),
            _mm256_shuffle_ps::<0xEE>(low, more_low),
            _mm256_shuffle_ps::<0x44>(high, more_high),
            _mm256_shuffle_ps::<0xEE>(high, more_high),
        ]
    };
    let (upper, lower) = (four(0), four(4));
    eight(|i| match i {
        0..4 => _mm256_permute2f128_ps::<0x20>(upper[i], lower[i]),
        _ => _mm256_permute2f128_ps::<0x31>(upper[i - 4], lower[i - 4]),
    })
}

/// `array::from_fn`, which would be a call here: it was not compiled for AVX2.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn eight(element: impl Fn(usize) -> __m256) -> [__m256; 8] {
    let e = element;
    [e(0), e(1), e(2), e(3), e(4), e(5), e(6), e(7)]
}
