//! Products of bf16 numbers where the CPU has instructions for them: words of two numbers, and kernels that multiply words.
//!
//! A word is a pair of neighbours along the depth, the first in its low half. A right factor is in panels of [`NR`] columns,
//! of which one row is a word of each column: 64 bytes, which `vdpbf16ps` and an AMX tile read alike. A left factor is in rows
//! of [`ROW`] words. What is missing at the end of the depth is zero in both.
//!
//! The depth is cut into blocks. A factor of one part has [`BLOCK`] words of it in a block; of three parts it has fewer, one
//! part after another, so that all parts of two panels fit into the L1 cache. The products of parts are summed in the order of
//! [`Precision::terms`] before the block's sums go to C.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pack;
mod unit;

pub(super) use pack::{pack_panel, pack_panel_of_rows, pack_rows, pack_rows_of_panels};
pub use unit::Unit;

use super::tile::C;
use super::{MR, NR, Store};
use crate::precision::Precision;

/// Words that are packed at once, along the depth: as many as an AMX tile has.
const STEP: usize = 16;
/// Words of a block of depth, all parts together.
const BLOCK: usize = 256;
/// From one row of a left factor to the next: one line more than a block, so that rows do not fall into the same cache sets.
const ROW: usize = BLOCK + STEP;
/// Rows of a left factor come in multiples of this: two AMX tiles.
const ROWS: usize = 32;

/// How factors are made into words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kind {
    /// What multiplies them.
    unit: Unit,
    precision: Precision,
}

impl Kind {
    /// That of products of this precision here, if they are of words.
    pub(crate) fn here(precision: Precision) -> Option<Self> {
        match precision {
            Precision::F32 => None,
            _ => Unit::best().map(|unit| Self { unit, precision }),
        }
    }

    /// Elements of a block of depth.
    pub(crate) fn block(self) -> usize {
        2 * self.part()
    }

    /// Rows of a kernel's tile.
    pub(crate) fn height(self) -> usize {
        match self.unit {
            Unit::Dot(_) => 2 * MR,
            Unit::Amx(_) => ROWS,
        }
    }

    /// Words from one part of a row of a left factor to the next.
    fn part(self) -> usize {
        match self.precision.parts() {
            1 => BLOCK,
            parts => BLOCK / parts.next_power_of_two(),
        }
    }

    /// Words along so many elements of a block.
    fn words(self, depth: usize) -> usize {
        depth.div_ceil(2).next_multiple_of(self.unit.step())
    }

    /// Words of a panel of a right factor in a block that is so deep.
    pub(crate) fn panel(self, depth: usize) -> usize {
        self.precision.parts() * self.words(depth) * NR
    }

    /// Words of so many rows of a left factor in a block.
    pub(crate) fn rows(self, rows: usize) -> usize {
        rows.next_multiple_of(ROWS) * ROW
    }
}

/// Products of parts over a block: where each begins in a row of the left factor and in a panel of the right one.
#[derive(Clone, Copy)]
struct Passes {
    starts: [[usize; 2]; 6],
    count: usize,
    /// Words along the depth.
    words: usize,
}

impl Passes {
    /// Over so many elements of a block, of which the right factor may have more.
    fn new(kind: Kind, depth: usize, right_depth: usize) -> Self {
        let terms = kind.precision.terms();
        let mut starts = [[0; 2]; 6];
        for (start, (left, right)) in starts.iter_mut().zip(terms) {
            *start = [left * kind.part(), right * kind.words(right_depth) * NR];
        }
        Self { starts, count: terms.len(), words: kind.words(depth) }
    }

    fn starts(&self) -> &[[usize; 2]] {
        &self.starts[..self.count]
    }
}

/// Panels of a right factor in a block.
#[derive(Clone, Copy)]
pub(super) struct Right<'a> {
    pub(super) words: &'a [u32],
    /// Elements of the block.
    pub(super) depth: usize,
}

/// `C = A B` in a block: `m` rows of A, as many panels of B as `n` columns take, and `depth` of B's elements. If B has more,
/// they are multiplied by zero as far as the last word reaches.
pub(super) fn multiply(
    kind: Kind,
    [m, n, depth]: [usize; 3],
    a: &[u32],
    b: Right,
    c: C,
    store: Store,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!((1..=b.depth).contains(&depth) && b.depth <= kind.block());
    let (passes, apart) = (Passes::new(kind, depth, b.depth), kind.panel(b.depth));
    assert!(a.len() >= kind.rows(m) && b.words.len() >= n.div_ceil(NR) * apart && c.has(m, n));
    match kind.unit {
        // SAFETY: the unit is the proof that its instructions are there, and the lengths were checked above.
        #[cfg(target_arch = "x86_64")]
        Unit::Dot(_) => unsafe {
            avx512::multiply([m, n], &passes, a, b.words, apart, &c, store);
        },
        // SAFETY: as above.
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Unit::Amx(_) => unsafe {
            amx::multiply([m, n], &passes, a, b.words, apart, &c, store);
        },
        #[allow(unreachable_patterns)]
        _ => unreachable!("there is no such unit here"),
    }
}

#[cfg(test)]
mod tests;
