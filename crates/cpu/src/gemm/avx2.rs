//! The tile in twelve of the sixteen registers.

use super::tile::A;
use super::{MR, NR, Store};
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
        let sums = match a.step {
            1 => sums::<M, 1>(depth, a.data.as_ptr(), a.row, b),
            _ => sums::<M, MR>(depth, a.data.as_ptr(), 1, b),
        };
        let scale = _mm256_set1_ps(store.scale);
        for (r, [low, high]) in sums.into_iter().enumerate() {
            let row = c.add(r * ldc);
            let (mut low, mut high) = (_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale));
            if store.add {
                low = _mm256_add_ps(low, _mm256_loadu_ps(row));
                high = _mm256_add_ps(high, _mm256_loadu_ps(row.add(8)));
            }
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
    // SAFETY: passed on from the caller.
    unsafe {
        for p in 0..depth {
            let low = _mm256_loadu_ps(b.add(p * NR));
            let high = _mm256_loadu_ps(b.add(p * NR + 8));
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = _mm256_broadcast_ss(&*a.add(r * row + p * STEP));
                sums[0] = _mm256_fmadd_ps(x, low, sums[0]);
                sums[1] = _mm256_fmadd_ps(x, high, sums[1]);
            }
        }
    }
    sums
}
