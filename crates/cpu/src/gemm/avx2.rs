//! The tile in twelve of the sixteen registers, and packing by registers.

use super::tile::{A, Order};
use super::{MR, NR, Store};
use crate::simd::prefetch_line;
use std::arch::x86_64::*;

/// # Safety
/// Needs AVX2 and FMA, `tiles` tiles of `MR` rows of `depth` elements behind `a`, `depth * NR` elements in
/// `b`, and `tiles * MR` rows of `NR` elements in `c`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn full_tiles(
    tiles: usize,
    depth: usize,
    a: A,
    b: &[f32],
    c: &mut [f32],
    ldc: usize,
    store: Store,
) {
    let (b, c) = (b.as_ptr(), c.as_mut_ptr());
    for index in 0..tiles {
        // SAFETY: passed on from the caller.
        unsafe {
            tile::<MR>(depth, a.of_tile(index), b, c.add(index * MR * ldc), ldc, store);
        }
    }
}

/// # Safety
/// The same for one tile of `rows` rows.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn some_rows(
    rows: usize,
    depth: usize,
    a: A,
    b: &[f32],
    c: &mut [f32],
    ldc: usize,
    store: Store,
) {
    let (b, c) = (b.as_ptr(), c.as_mut_ptr());
    // SAFETY: passed on from the caller.
    unsafe {
        match rows {
            MR => tile::<MR>(depth, a, b, c, ldc, store),
            5 => tile::<5>(depth, a, b, c, ldc, store),
            4 => tile::<4>(depth, a, b, c, ldc, store),
            3 => tile::<3>(depth, a, b, c, ldc, store),
            2 => tile::<2>(depth, a, b, c, ldc, store),
            _ => tile::<1>(depth, a, b, c, ldc, store),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const M: usize>(
    depth: usize,
    a: A,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    store: Store,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let data = a.as_ptr();
        let sums = match a.order {
            Order::Rows { row } => sums::<M, 1>(depth, data, row, b),
            Order::Packed => sums::<M, MR>(depth, data, 1, b),
            Order::Panels { stride } => sums_over_panels::<M>(depth, data, stride, b),
        };
        let scale = _mm256_set1_ps(store.scale);
        for (r, [low, high]) in sums.into_iter().enumerate() {
            let row = c.add(r * ldc);
            let (low, high) = match store.add {
                true => {
                    let (old, old_high) = (_mm256_loadu_ps(row), _mm256_loadu_ps(row.add(8)));
                    (_mm256_fmadd_ps(low, scale, old), _mm256_fmadd_ps(high, scale, old_high))
                }
                false => (_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale)),
            };
            _mm256_storeu_ps(row, low);
            _mm256_storeu_ps(row.add(8), high);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn sums<const M: usize, const STEP: usize>(
    depth: usize,
    a: *const f32,
    row: usize,
    b: *const f32,
) -> [[__m256; 2]; M] {
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    let whole = depth / 8 * 8;
    // SAFETY: passed on from the caller.
    unsafe {
        for p in (0..whole).step_by(8) {
            add_eight::<M, STEP>(&mut sums, a.add(p * STEP), row, b.add(p * NR));
        }
        for p in whole..depth {
            add_products(&mut sums, a.add(p * STEP), row, b.add(p * NR));
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn sums_over_panels<const M: usize>(
    depth: usize,
    a: *const f32,
    stride: usize,
    b: *const f32,
) -> [[__m256; 2]; M] {
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    let whole = depth / NR;
    // SAFETY: passed on from the caller.
    unsafe {
        for panel in 0..whole {
            let (a, b) = (a.add(panel * stride), b.add(panel * NR * NR));
            for p in (0..NR).step_by(8) {
                add_eight::<M, 1>(&mut sums, a.add(p), NR, b.add(p * NR));
            }
        }
        let (a, b) = (a.add(whole * stride), b.add(whole * NR * NR));
        for p in 0..depth % NR {
            add_products(&mut sums, a.add(p), NR, b.add(p * NR));
        }
    }
    sums
}

/// Eight steps without a loop: where a core is shared with a neighbour, its instructions compete with ours.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_eight<const M: usize, const STEP: usize>(
    sums: &mut [[__m256; 2]; M],
    a: *const f32,
    row: usize,
    b: *const f32,
) {
    for p in 0..8 {
        // SAFETY: passed on from the caller.
        unsafe { add_products(sums, a.add(p * STEP), row, b.add(p * NR)) };
    }
}

/// Adds one column of A times one row of B.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_products<const M: usize>(
    sums: &mut [[__m256; 2]; M],
    a: *const f32,
    row: usize,
    b: *const f32,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let (low, high) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = _mm256_broadcast_ss(&*a.add(r * row));
            sums[0] = _mm256_fmadd_ps(x, low, sums[0]);
            sums[1] = _mm256_fmadd_ps(x, high, sums[1]);
        }
    }
}

/// Rows side by side: element `(p, r)` of `out`, which has rows of [`MR`], is element p of row r. Returns how many
/// elements of each row were packed; up to two more elements of `out` are overwritten.
///
/// # Safety
/// Needs AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn pack_tile(out: &mut [f32], rows: [&[f32]; MR], ahead: usize) -> usize {
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
pub(super) unsafe fn pack_columns(out: &mut [f32], columns: &[f32], stride: usize) {
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
