//! AMX: tiles of 16 rows of 64 bytes, and one instruction that multiplies two of them.
//!
//! A block of C is two by two tiles of sums: 32 rows and two panels. Rust has no intrinsics for AMX yet, so this is assembler.
//! It was not run on a CPU with AMX: tests run it instruction by instruction on a model of them (`emulator.rs`).

mod probe;

#[cfg(test)]
pub(super) mod emulator;

pub(super) use probe::usable;

use super::super::avx512::save_row;
use super::super::tile::C;
use super::super::{NR, Store};
use super::{Passes, ROW, STEP};
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of a tile.
const TALL: usize = 16;

/// Four tiles of sums, one behind the other: upper left and right, lower left and right. Not C itself, whose rows may lie a
/// power of two apart and fall into the same cache sets.
#[repr(C, align(64))]
struct Sums([[[f32; NR]; TALL]; 4]);

/// The shapes of the eight tiles: all have 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

impl Shapes {
    const WHOLE: Self = {
        let (mut bytes, mut tile) = ([0; 64], 0);
        bytes[0] = 1;
        while tile < 8 {
            (bytes[16 + 2 * tile], bytes[48 + tile]) = (64, TALL as u8);
            tile += 1;
        }
        Self(bytes)
    };
}

/// # Safety
/// Needs AMX with the system's permission, AVX-512, rows of words behind `a`, a multiple of two tiles of them and at least `m`,
/// as many panels as `n` columns take in `b`, `apart` from each other, a depth of whole tiles in both, and `m` rows of `n`
/// columns in `c`, of which no other reference may exist.
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
    let mut sums = Sums([[[0.0; NR]; TALL]; 4]);
    let mut all = || {
        for panel in (0..n.div_ceil(NR)).step_by(2) {
            let two = panel + 1 < n.div_ceil(NR);
            for row in (0..m).step_by(2 * TALL) {
                // SAFETY: passed on from the caller.
                unsafe {
                    let factors = [a.as_ptr().add(row * ROW), b.as_ptr().add(panel * apart)];
                    block(passes, factors, if two { apart } else { 0 }, m - row > TALL, &mut sums);
                    for r in 0..(m - row).min(2 * TALL) {
                        let to = c.as_mut_ptr().add((row + r) * c.row + panel * c.apart);
                        for side in 0..1 + usize::from(two) {
                            let columns = NR.min(n - (panel + side) * NR);
                            let sum = &sums.0[r / TALL * 2 + side][r % TALL];
                            let sum = _mm512_loadu_ps(sum.as_ptr());
                            save_row(sum, to.add(side * c.apart), !0 >> (NR - columns), store);
                        }
                    }
                }
            }
        }
    };
    // SAFETY: passed on from the caller.
    unsafe { with_tiles(&mut all) };
}

/// Does something with tiles of [`Shapes::WHOLE`]. They are a thread's own, and given back at the end.
///
/// # Safety
/// Needs AMX with the system's permission.
#[inline]
unsafe fn with_tiles(work: impl FnOnce()) {
    let shapes = Shapes::WHOLE;
    // SAFETY: passed on from the caller.
    unsafe {
        let shapes = &raw const shapes;
        asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, readonly, preserves_flags));
        work();
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
}

/// Where a product of parts begins, in bytes of memory.
#[repr(C)]
#[derive(Clone, Copy)]
struct Start {
    upper: *const u32,
    lower: *const u32,
    left: *const u32,
    right: *const u32,
}

/// The sums of one block; of its upper half alone unless it is `tall`.
///
/// # Safety
/// Needs tiles of [`Shapes::WHOLE`], and the words of both factors, of which the second panel begins `apart` behind the first.
#[inline]
unsafe fn block(
    passes: &Passes,
    [a, b]: [*const u32; 2],
    apart: usize,
    tall: bool,
    sums: &mut Sums,
) {
    let start = |[left, right]: [usize; 2]| {
        let (upper, first) = (a.wrapping_add(left), b.wrapping_add(right));
        let lower = upper.wrapping_add(TALL * ROW);
        Start { upper, lower, left: first, right: first.wrapping_add(apart) }
    };
    let starts = passes.starts.map(start);
    // SAFETY: passed on from the caller.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            // Products of parts.
            "2:",
            "mov {a0}, [{start}]",
            "mov {a1}, [{start} + 8]",
            "mov {b0}, [{start} + 16]",
            "mov {b1}, [{start} + 24]",
            "mov {step}, {steps}",
            // 16 words along the depth.
            "3:",
            "tileloadd tmm4, [{a0} + 1*{row}]",
            "tileloadd tmm6, [{b0} + 1*{line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b1} + 1*{line}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "test {tall}, {tall}",
            "jz 4f",
            "tileloadd tmm5, [{a1} + 1*{row}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "4:",
            "add {a0}, 64",
            "add {a1}, 64",
            "add {b0}, 1024",
            "add {b1}, 1024",
            "dec {step}",
            "jnz 3b",
            "add {start}, 32",
            "dec {count}",
            "jnz 2b",
            "tilestored [{sums} + 1*{line}], tmm0",
            "tilestored [{sums} + 1*{line} + 1024], tmm1",
            "tilestored [{sums} + 1*{line} + 2048], tmm2",
            "tilestored [{sums} + 1*{line} + 3072], tmm3",
            start = inout(reg) starts.as_ptr() => _,
            count = inout(reg) passes.count => _,
            steps = in(reg) passes.words / STEP,
            step = out(reg) _,
            a0 = out(reg) _,
            a1 = out(reg) _,
            b0 = out(reg) _,
            b1 = out(reg) _,
            row = in(reg) ROW * size_of::<u32>(),
            line = in(reg) NR * size_of::<u32>(),
            tall = in(reg) usize::from(tall),
            sums = in(reg) sums,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            out("tmm7") _,
            options(nostack),
        );
    }
}
