//! Tiles of 12 rows and two panels, in 24 of the 32 registers: `vdpbf16ps` adds two products to each sum.

mod pack;

pub(super) use pack::put;

use super::super::avx512::save;
use super::super::tile::C;
use super::super::{MR, NR, Store};
use super::{Passes, ROW};
use std::arch::x86_64::*;

/// Rows of a whole tile.
const HEIGHT: usize = 2 * MR;

/// Panels of a right factor.
#[derive(Clone, Copy)]
struct Panels {
    words: *const u32,
    /// From one panel to the next.
    apart: usize,
}

/// # Safety
/// Needs AVX-512 with bf16, `m` rows of words behind `a`, as many panels as `n` columns take in `b`, `apart` from each other,
/// and `m` rows of `n` columns in `c`, of which no other reference may exist.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
pub(super) unsafe fn multiply(
    [m, n]: [usize; 2],
    passes: &Passes,
    a: &[u32],
    b: &[u32],
    apart: usize,
    c: &C,
    store: Store,
) {
    for first in (0..n).step_by(2 * NR) {
        let (panel, columns) = (first / NR, n - first);
        let mask = |columns: usize| !0 >> (NR - columns.clamp(1, NR));
        // SAFETY: passed on from the caller.
        unsafe {
            let b = Panels { words: b.as_ptr().add(panel * apart), apart };
            let to = c.as_mut_ptr().add(panel * c.apart);
            match columns > NR {
                true => rows::<2>(m, passes, a, b, to, c, mask(columns - NR), store),
                false => rows::<1>(m, passes, a, b, to, c, mask(columns), store),
            }
        }
    }
}

/// # Safety
/// As [`multiply`], for `P` panels of which the last has the columns of `mask`.
#[inline]
#[allow(clippy::too_many_arguments)]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
unsafe fn rows<const P: usize>(
    m: usize,
    passes: &Passes,
    a: &[u32],
    b: Panels,
    to: *mut f32,
    c: &C,
    mask: __mmask16,
    store: Store,
) {
    let mut row = 0;
    // SAFETY: passed on from the caller; rows below `m` alone are touched.
    unsafe {
        while row + HEIGHT <= m {
            let (a, to) = (a.as_ptr().add(row * ROW), to.add(row * c.row));
            tile::<HEIGHT, P>(passes, a, b, to, c, mask, store);
            row += HEIGHT;
        }
        while row < m {
            let (a, to) = (a.as_ptr().add(row * ROW), to.add(row * c.row));
            match m - row {
                8.. => tile::<8, P>(passes, a, b, to, c, mask, store),
                4..8 => tile::<4, P>(passes, a, b, to, c, mask, store),
                3 => tile::<3, P>(passes, a, b, to, c, mask, store),
                2 => tile::<2, P>(passes, a, b, to, c, mask, store),
                _ => tile::<1, P>(passes, a, b, to, c, mask, store),
            }
            row += match m - row {
                8.. => 8,
                4..8 => 4,
                rest => rest,
            };
        }
    }
}

/// A tile of `M` rows and `P` panels.
///
/// # Safety
/// As [`rows`], for `M` rows from `a` and `to` on.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
unsafe fn tile<const M: usize, const P: usize>(
    passes: &Passes,
    a: *const u32,
    b: Panels,
    to: *mut f32,
    c: &C,
    mask: __mmask16,
    store: Store,
) {
    let mut sums = [[_mm512_setzero_ps(); P]; M];
    // SAFETY: passed on from the caller.
    unsafe {
        for [left, right] in passes.starts() {
            let (mut a, mut b0) = (a.add(*left), b.words.add(*right));
            for _ in 0..passes.words {
                let mut right = [_mm512_setzero_si512(); P];
                for (panel, right) in right.iter_mut().enumerate() {
                    *right = _mm512_loadu_si512(b0.add(panel * b.apart).cast());
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = pairs(_mm512_set1_epi32(*a.add(r * ROW) as i32));
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = _mm512_dpbf16_ps(*sum, x, pairs(right));
                    }
                }
                (a, b0) = (a.add(1), b0.add(NR));
            }
        }
        save(&sums, to, c, mask, store);
    }
}

/// The same bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(words: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of any bits.
    unsafe { std::mem::transmute(words) }
}
