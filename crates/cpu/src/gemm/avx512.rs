//! Tiles of two groups of [`MR`] rows and two panels: 24 of the 32 registers.
//!
//! Whatever is narrower is masked, whatever is lower has fewer rows.

use super::tile::{A, B, C, Order};
use super::{MR, NR, Store};
use crate::simd::prefetch_line;
use std::arch::x86_64::*;

/// Rows of a whole tile.
const ROWS: usize = 2 * MR;
/// Lines to ask for with every tile: two panels' with those of a block of rows.
const LINES: usize = 24;

/// # Safety
/// Needs AVX-512, `m` rows of `depth` elements behind `a`, as many rows of `columns` elements in `b`, and `m` rows of
/// `columns` elements in `c`, of which no other reference may exist; at most two panels.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
pub(super) unsafe fn multiply(
    [m, columns, depth]: [usize; 3],
    a: A,
    b: B,
    c: C,
    store: Store,
    next: Option<&[f32]>,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match columns > NR {
            true => panels::<2>([m, columns - NR, depth], a, b, &c, store, next),
            false => panels::<1>([m, columns, depth], a, b, &c, store, next),
        }
    }
}

/// # Safety
/// As [`multiply`], where the last of `P` panels has `columns`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
unsafe fn panels<const P: usize>(
    [m, columns, depth]: [usize; 3],
    a: A,
    b: B,
    c: &C,
    store: Store,
    next: Option<&[f32]>,
) {
    let mask = !0 >> (NR - columns);
    let mut next = next.map(<[f32]>::as_ptr);
    let mut row = 0;
    // SAFETY: passed on from the caller; rows below `m` alone are touched.
    unsafe {
        let at = |row: usize| (a.of_tile(row / MR), c.as_mut_ptr().add(row * c.row));
        while row + ROWS <= m {
            if let Some(next) = &mut next {
                (0..LINES).for_each(|line| prefetch_line(next.wrapping_add(line * NR)));
                *next = next.wrapping_add(LINES * NR);
            }
            let (a, to) = at(row);
            tile::<ROWS, P>(depth, a, b, to, c, mask, store);
            row += ROWS;
        }
        if row + MR <= m {
            let (a, to) = at(row);
            tile::<MR, P>(depth, a, b, to, c, mask, store);
            row += MR;
        }
        if row < m {
            let (a, to) = at(row);
            match m - row {
                5 => tile::<5, P>(depth, a, b, to, c, mask, store),
                4 => tile::<4, P>(depth, a, b, to, c, mask, store),
                3 => tile::<3, P>(depth, a, b, to, c, mask, store),
                2 => tile::<2, P>(depth, a, b, to, c, mask, store),
                _ => tile::<1, P>(depth, a, b, to, c, mask, store),
            }
        }
    }
}

/// A tile of `M` rows and `P` panels.
///
/// # Safety
/// As [`panels`], for `M` rows of A and for those of C from `to` on.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
unsafe fn tile<const M: usize, const P: usize>(
    depth: usize,
    a: A,
    b: B,
    to: *mut f32,
    c: &C,
    mask: __mmask16,
    store: Store,
) {
    let mut sums = [[_mm512_setzero_ps(); P]; M];
    let (first, group, apart) = (a.as_ptr(), a.tile, b.apart);
    let mut b = b.as_ptr();
    // SAFETY: passed on from the caller.
    unsafe {
        match a.order {
            Order::Rows { row } => {
                for p in 0..depth {
                    add_products(&mut sums, first.add(p), row, group, b, apart);
                    b = b.add(NR);
                }
            }
            Order::Columns { column } => {
                let mut first = first;
                for _ in 0..depth {
                    add_products(&mut sums, first, 1, group, b, apart);
                    (first, b) = (first.wrapping_add(column), b.add(NR));
                }
            }
            Order::Panels { stride } => {
                let mut first = first;
                for start in (0..depth).step_by(NR) {
                    for p in 0..NR.min(depth - start) {
                        add_products(&mut sums, first.add(p), NR, group, b, apart);
                        b = b.add(NR);
                    }
                    first = first.wrapping_add(stride);
                }
            }
        }
        save(&sums, to, c, mask, store);
    }
}

/// Adds one column of A times one row of B.
///
/// # Safety
/// Needs AVX-512, the elements of A, `row` apart within a group of [`MR`], and rows of [`NR`] elements of `P` panels.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
unsafe fn add_products<const M: usize, const P: usize>(
    sums: &mut [[__m512; P]; M],
    a: *const f32,
    row: usize,
    group: usize,
    b: *const f32,
    apart: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut right = [_mm512_setzero_ps(); P];
        for (panel, right) in right.iter_mut().enumerate() {
            *right = _mm512_loadu_ps(b.add(panel * apart));
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = _mm512_set1_ps(*a.add(r / MR * group + r % MR * row));
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = _mm512_fmadd_ps(x, right, *sum);
            }
        }
    }
}

/// Writes a tile to C; of the last panel, only columns in the mask.
///
/// # Safety
/// Needs AVX-512, and `M` rows of `P` panels behind `to`; no other reference to them may exist.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
pub(super) unsafe fn save<const M: usize, const P: usize>(
    sums: &[[__m512; P]; M],
    to: *mut f32,
    c: &C,
    mask: __mmask16,
    store: Store,
) {
    for (r, sums) in sums.iter().enumerate() {
        for (panel, sum) in sums.iter().enumerate() {
            let mask = if panel + 1 == P { mask } else { !0 };
            // SAFETY: passed on from the caller.
            unsafe { save_row(*sum, to.add(r * c.row + panel * c.apart), mask, store) };
        }
    }
}

/// Writes a row of a panel to C: columns in the mask.
///
/// # Safety
/// Needs AVX-512, and these columns behind `to`; no other reference to them may exist.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
pub(super) unsafe fn save_row(sum: __m512, to: *mut f32, mask: __mmask16, store: Store) {
    let scale = _mm512_set1_ps(store.scale);
    // SAFETY: passed on from the caller.
    unsafe {
        let new = match store.add {
            true => _mm512_fmadd_ps(sum, scale, _mm512_maskz_loadu_ps(mask, to)),
            false => _mm512_mul_ps(sum, scale),
        };
        _mm512_mask_storeu_ps(to, mask, new);
    }
}
