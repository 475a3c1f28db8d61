//! The tile in twelve of the sixteen registers.

mod pack;
mod tile;

pub(super) use pack::{pack_columns, pack_tile};

use super::tile::{A, Order};
use super::{MR, NR, Store};
use crate::simd::prefetch_line;
use std::arch::x86_64::*;
use tile::{Pieces, Target, column_tile, row_tile};

/// Lines to ask for with every tile: a panel's with those of a block of rows.
const LINES: usize = 7;

/// # Safety
/// Needs AVX2 and FMA, `tiles` tiles of `MR` rows of `depth` elements behind `a`, `depth * NR` elements in
/// `b`, and `tiles * MR` rows of `NR` elements in `c`.
#[target_feature(enable = "avx2,fma")]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn full_tiles(
    tiles: usize,
    depth: usize,
    a: A,
    b: &[f32],
    c: &mut [f32],
    ldc: usize,
    store: Store,
    next: Option<&[f32]>,
) {
    let (b, c) = (b.as_ptr(), c.as_mut_ptr());
    // SAFETY: passed on from the caller.
    unsafe {
        let unit = if matches!(a.order, Order::Panels { .. }) { NR } else { 4 };
        let to = Target { c, ldc, scale: &store.scale };
        if depth == 0 || !depth.is_multiple_of(unit) {
            for i in 0..tiles {
                low_tile::<MR>(depth, a.of_tile(i), b, c.add(i * MR * ldc), ldc, store);
            }
        } else {
            match (store.add, next) {
                (false, None) => by_fours::<false, false>(tiles, depth, a, b, to, &[]),
                (true, None) => by_fours::<true, false>(tiles, depth, a, b, to, &[]),
                (false, Some(next)) => by_fours::<false, true>(tiles, depth, a, b, to, next),
                (true, Some(next)) => by_fours::<true, true>(tiles, depth, a, b, to, next),
            }
        }
    }
}

/// For a depth of whole fours, and for rows in panels of whole panels.
///
/// # Safety
/// As [`full_tiles`], with `depth > 0`.
#[target_feature(enable = "avx2,fma")]
unsafe fn by_fours<const ADD: bool, const ASK: bool>(
    tiles: usize,
    depth: usize,
    a: A,
    b: *const f32,
    mut to: Target,
    next: &[f32],
) {
    let mut first = a.as_ptr();
    let below = MR * to.ldc;
    // SAFETY: passed on from the caller.
    let one = |first: *const f32, to: Target| unsafe {
        match a.order {
            Order::Columns { column } => column_tile::<ADD>(depth / 4, first, column, b, to),
            Order::Rows { row } => {
                let pieces = Pieces { count: 1, fours: depth / 4, stride: 0, row };
                row_tile::<ADD>(pieces, first, b, to)
            }
            Order::Panels { stride } => {
                let pieces = Pieces { count: depth / NR, fours: NR / 4, stride, row: NR };
                row_tile::<ADD>(pieces, first, b, to)
            }
        }
    };
    let mut next = next.as_ptr();
    for _ in 0..tiles {
        if ASK {
            (0..LINES).for_each(|line| prefetch_line(next.wrapping_add(line * NR)));
            next = next.wrapping_add(LINES * NR);
        }
        one(first, to);
        (first, to.c) = (first.wrapping_add(a.tile), to.c.wrapping_add(below));
    }
    // The compiler does this where it uses whole registers itself. Without it, other code pays hundreds of cycles.
    _mm256_zeroupper();
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
            MR => low_tile::<MR>(depth, a, b, c, ldc, store),
            5 => low_tile::<5>(depth, a, b, c, ldc, store),
            4 => low_tile::<4>(depth, a, b, c, ldc, store),
            3 => low_tile::<3>(depth, a, b, c, ldc, store),
            2 => low_tile::<2>(depth, a, b, c, ldc, store),
            _ => low_tile::<1>(depth, a, b, c, ldc, store),
        }
    }
}

/// A tile of at most [`MR`] rows.
///
/// # Safety
/// As [`some_rows`], for `M` rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn low_tile<const M: usize>(
    depth: usize,
    a: A,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    store: Store,
) {
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    let first = a.as_ptr();
    // SAFETY: passed on from the caller.
    unsafe {
        match a.order {
            Order::Rows { row } => {
                for p in 0..depth {
                    add_products(&mut sums, first.add(p), row, b.add(p * NR));
                }
            }
            Order::Columns { column } => {
                for p in 0..depth {
                    add_products(&mut sums, first.add(p * column), 1, b.add(p * NR));
                }
            }
            Order::Panels { stride } => {
                for p in 0..depth {
                    let first = first.add(p / NR * stride + p % NR);
                    add_products(&mut sums, first, NR, b.add(p * NR));
                }
            }
        }
        save(sums, c, ldc, store);
    }
}

/// Adds one column of A times one row of B.
///
/// # Safety
/// Needs AVX2 and FMA, `M` elements behind `a` that lie `row` apart, and [`NR`] behind `b`.
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

/// Writes a tile to C.
///
/// # Safety
/// Needs AVX2 and FMA, and `M` rows of [`NR`] elements behind `c` that lie `ldc` apart; no other reference to them may exist.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn save<const M: usize>(sums: [[__m256; 2]; M], c: *mut f32, ldc: usize, store: Store) {
    let scale = _mm256_set1_ps(store.scale);
    for (r, [low, high]) in sums.into_iter().enumerate() {
        // SAFETY: passed on from the caller.
        unsafe {
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
