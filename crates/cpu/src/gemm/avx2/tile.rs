//! Whole tiles in assembler.
//!
//! What a compiler makes of the loop has offsets of four bytes, which are read and decoded too slowly to run far ahead
//! of the multipliers; and of what it puts between two tiles, one more jump has them wait for 20 cycles. That made 30
//! to 50 cycles per tile, 3 % of a product over a depth of 256 and a tenth of one over 64. Here it is about 10.

use super::super::{MR, NR};
use std::arch::asm;

const _: () = assert!(MR == 6 && NR == 16, "the code below is for such tiles");

/// Where a tile goes, and what is done to it on the way.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) c: *mut f32,
    pub(super) ldc: usize,
    pub(super) scale: &'a f32,
}

/// Clears the sums: the first twelve registers, two for each row.
macro_rules! clear {
    () => {
        "vxorps xmm0, xmm0, xmm0
        vxorps xmm1, xmm1, xmm1
        vxorps xmm2, xmm2, xmm2
        vxorps xmm3, xmm3, xmm3
        vxorps xmm4, xmm4, xmm4
        vxorps xmm5, xmm5, xmm5
        vxorps xmm6, xmm6, xmm6
        vxorps xmm7, xmm7, xmm7
        vxorps xmm8, xmm8, xmm8
        vxorps xmm9, xmm9, xmm9
        vxorps xmm10, xmm10, xmm10
        vxorps xmm11, xmm11, xmm11"
    };
}

/// Step `p` of four: adds a row of B times the elements of A at six addresses. `b` points into the middle of four
/// rows, so that all offsets fit into a byte.
#[rustfmt::skip]
macro_rules! step {
    ($p:literal, [$a0:expr, $a1:expr, $a2:expr, $a3:expr, $a4:expr, $a5:expr]) => {
        concat!(
            "vmovups ymm12, [{b} + 64 * ", $p, " - 128]\n",
            "vmovups ymm13, [{b} + 64 * ", $p, " - 96]\n",
            "vbroadcastss ymm14, [", $a0, "]\n",
            "vbroadcastss ymm15, [", $a1, "]\n",
            "vfmadd231ps ymm0, ymm14, ymm12\n",
            "vfmadd231ps ymm1, ymm14, ymm13\n",
            "vbroadcastss ymm14, [", $a2, "]\n",
            "vfmadd231ps ymm2, ymm15, ymm12\n",
            "vfmadd231ps ymm3, ymm15, ymm13\n",
            "vbroadcastss ymm15, [", $a3, "]\n",
            "vfmadd231ps ymm4, ymm14, ymm12\n",
            "vfmadd231ps ymm5, ymm14, ymm13\n",
            "vbroadcastss ymm14, [", $a4, "]\n",
            "vfmadd231ps ymm6, ymm15, ymm12\n",
            "vfmadd231ps ymm7, ymm15, ymm13\n",
            "vbroadcastss ymm15, [", $a5, "]\n",
            "vfmadd231ps ymm8, ymm14, ymm12\n",
            "vfmadd231ps ymm9, ymm14, ymm13\n",
            "vfmadd231ps ymm10, ymm15, ymm12\n",
            "vfmadd231ps ymm11, ymm15, ymm13\n",
        )
    };
}

/// Writes eight sums to C, scaled.
#[rustfmt::skip]
macro_rules! set {
    ($sums:literal, $c:literal) => {
        concat!(
            "vmulps ymm", $sums, ", ymm", $sums, ", ymm12\n",
            "vmovups [", $c, "], ymm", $sums, "\n",
        )
    };
}

/// Adds eight sums to C, scaled.
#[rustfmt::skip]
macro_rules! add {
    ($sums:literal, $c:literal) => {
        concat!(
            "vfmadd213ps ymm", $sums, ", ymm12, [", $c, "]\n",
            "vmovups [", $c, "], ymm", $sums, "\n",
        )
    };
}

/// All sums to C.
macro_rules! save {
    ($eight:ident) => {
        concat!(
            "vbroadcastss ymm12, [{scale}]\n",
            $eight!(0, "{c}"),
            $eight!(1, "{c} + 32"),
            $eight!(2, "{c} + {ldc}"),
            $eight!(3, "{c} + {ldc} + 32"),
            $eight!(4, "{c} + 2 * {ldc}"),
            $eight!(5, "{c} + 2 * {ldc} + 32"),
            $eight!(6, "{below}"),
            $eight!(7, "{below} + 32"),
            $eight!(8, "{below} + {ldc}"),
            $eight!(9, "{below} + {ldc} + 32"),
            $eight!(10, "{below} + 2 * {ldc}"),
            $eight!(11, "{below} + 2 * {ldc} + 32"),
        )
    };
}

/// A tile: cleared, `steps`, and saved. What the steps need besides `b` comes last.
macro_rules! tile {
    ($add:ident, $($rest:tt)*) => {
        if $add {
            tile!(@ add, $($rest)*)
        } else {
            tile!(@ set, $($rest)*)
        }
    };
    (@ $save:ident, $target:ident, $b:ident, $steps:expr, $($operands:tt)*) => {
        asm!(
            clear!(), $steps, save!($save),
            b = inout(reg) $b.wrapping_byte_add(128) => _,
            c = in(reg) $target.c,
            ldc = in(reg) $target.ldc * size_of::<f32>(),
            below = in(reg) $target.c.wrapping_add(3 * $target.ldc),
            scale = in(reg) $target.scale,
            $($operands)*
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        )
    };
}

/// Six elements side by side.
macro_rules! column {
    ($p:literal, $first:literal) => {
        step!(
            $p,
            [
                concat!($first, " + 0"),
                concat!($first, " + 4"),
                concat!($first, " + 8"),
                concat!($first, " + 12"),
                concat!($first, " + 16"),
                concat!($first, " + 20")
            ]
        )
    };
}

macro_rules! column_steps {
    () => {
        concat!(
            "2:\n",
            column!(0, "{a}"),
            column!(1, "{a} + {column}"),
            column!(2, "{a} + 2 * {column}"),
            column!(3, "{d}"),
            "add {b}, 256
            lea {a}, [{a} + 4 * {column}]
            lea {d}, [{d} + 4 * {column}]
            dec {fours}
            jnz 2b"
        )
    };
}

/// A tile of a left factor with its columns `column` elements apart: `4 * fours` of them, at least four, times as many
/// rows of B.
///
/// # Safety
/// Needs AVX2 and FMA, and all of these elements; no other reference to the tile of C may exist.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn column_tile<const ADD: bool>(
    fours: usize,
    a: *const f32,
    column: usize,
    b: *const f32,
    to: Target,
) {
    let fourth = a.wrapping_add(3 * column);
    let column = column * size_of::<f32>();
    // SAFETY: reads and writes what the caller says is there.
    unsafe {
        tile!(ADD, to, b, column_steps!(), fours = inout(reg) fours => _,
            a = inout(reg) a => _, d = inout(reg) fourth => _, column = in(reg) column,);
    }
}

/// How the rows of a left factor lie: in pieces, of each of which `4 * fours` elements are read.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    pub(super) count: usize,
    pub(super) fours: usize,
    /// From one piece of a row to the next.
    pub(super) stride: usize,
    /// From one row to the next.
    pub(super) row: usize,
}

/// One element of each of six rows, `$at` bytes further than the first ones.
macro_rules! rows {
    ($p:literal, $at:literal) => {
        step!(
            $p,
            [
                concat!("{a} + ", $at),
                concat!("{a} + {row} + ", $at),
                concat!("{a} + 2 * {row} + ", $at),
                concat!("{d} + ", $at),
                concat!("{d} + {row} + ", $at),
                concat!("{d} + 2 * {row} + ", $at)
            ]
        )
    };
}

macro_rules! row_steps {
    () => {
        concat!(
            "3:
            mov {four}, {fours}
            2:\n",
            rows!(0, 0),
            rows!(1, 4),
            rows!(2, 8),
            rows!(3, 12),
            "add {b}, 256
            add {a}, 16
            add {d}, 16
            dec {four}
            jnz 2b
            add {a}, {jump}
            add {d}, {jump}
            dec {count}
            jnz 3b"
        )
    };
}

/// A tile of a left factor with rows in pieces, at least one with four elements, times as many rows of B.
///
/// # Safety
/// Needs AVX2 and FMA, and all of these elements; no other reference to the tile of C may exist.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn row_tile<const ADD: bool>(
    pieces: Pieces,
    a: *const f32,
    b: *const f32,
    to: Target,
) {
    let Pieces { count, fours, stride, row } = pieces;
    let fourth = a.wrapping_add(3 * row);
    let jump = stride.wrapping_sub(4 * fours).wrapping_mul(size_of::<f32>());
    let row = row * size_of::<f32>();
    // SAFETY: reads and writes what the caller says is there.
    unsafe {
        tile!(ADD, to, b, row_steps!(),
            a = inout(reg) a => _, d = inout(reg) fourth => _, row = in(reg) row, jump = in(reg) jump,
            count = inout(reg) count => _, fours = in(reg) fours, four = out(reg) _,);
    }
}
