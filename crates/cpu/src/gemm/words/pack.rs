//! Making words of f32 numbers, in the order in which the kernels read them.

use super::super::View;
use super::{Kind, NR, ROW, STEP};

/// Elements along the depth that are packed at once.
const DEEP: usize = 2 * STEP;

/// Up to [`NR`] lanes of numbers, rows of a left factor or columns of a right one, and up to [`DEEP`] numbers of each.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Numbers of a lane are neighbours, [`STEP`] of them in each half; lanes are so far apart.
    Along { halves: [&'a [f32]; 2], apart: usize },
    /// Lanes are neighbours, and the numbers of a lane so far apart.
    Across { rows: &'a [f32], apart: usize },
}

/// Where the words of one [`Source`] go: [`STEP`] rows of [`STEP`] words for each part.
pub(super) struct Target<'a> {
    pub(super) words: &'a mut [u32],
    /// How many of the rows are written.
    pub(super) rows: usize,
    /// From one row to the next.
    pub(super) apart: usize,
    /// From one part to the next.
    pub(super) part: usize,
    /// Whether a row is a lane's, not a pair's.
    pub(super) lanes: bool,
}

/// The rows of a left factor: the first `m` rows and `depth` columns of `a`.
pub(in crate::gemm) fn pack_rows(kind: Kind, out: &mut [u32], a: View, m: usize, depth: usize) {
    let (lane, along) = (a.row, a.column);
    blocks(m, depth, |first, start| {
        let source = view(a.data, [lane, along], [first, start], depth);
        put_rows(kind, out, source, [first, start], [m, depth]);
    });
}

/// The same of a matrix in panels: `piece` has the rows of the panel with this number, from the first column on.
pub(in crate::gemm) fn pack_rows_of_panels<'a>(
    kind: Kind,
    out: &mut [u32],
    piece: impl Fn(usize) -> &'a [f32],
    m: usize,
    depth: usize,
) {
    blocks(m, depth, |first, start| {
        let half = |start: usize| match start < depth {
            true => &piece(start / NR)[first * NR..],
            false => &[][..],
        };
        let source = Source::Along { halves: [half(start), half(start + STEP)], apart: NR };
        put_rows(kind, out, source, [first, start], [m, depth]);
    });
}

/// A panel of a right factor: `columns` columns from `column` on and `depth` rows from `start` on of `b`.
pub(in crate::gemm) fn pack_panel(
    kind: Kind,
    out: &mut [u32],
    b: View,
    [start, column]: [usize; 2],
    [depth, columns]: [usize; 2],
) {
    let data = &b.data[start * b.row + column * b.column..];
    for start in (0..depth).step_by(DEEP) {
        let source = view(data, [b.column, b.row], [0, start], depth);
        put_panel(kind, out, source, [start, DEEP.min(depth - start), depth], columns);
    }
}

/// The same of rows of [`NR`] columns, from row `start` of a panel on that is `depth` deep. Whatever is behind them must be
/// packed after them.
pub(in crate::gemm) fn pack_panel_of_rows(
    kind: Kind,
    out: &mut [u32],
    rows: &[f32],
    start: usize,
    depth: usize,
) {
    assert!(start.is_multiple_of(2), "whole words");
    for (step, rows) in rows.chunks(DEEP * NR).enumerate() {
        let source = Source::Across { rows, apart: NR };
        put_panel(kind, out, source, [start + step * DEEP, rows.len() / NR, depth], NR);
    }
}

fn blocks(m: usize, depth: usize, mut each: impl FnMut(usize, usize)) {
    for first in (0..m).step_by(NR) {
        (0..depth).step_by(DEEP).for_each(|start| each(first, start));
    }
}

/// Lanes from `first` on and numbers from `start` on.
fn view<'a>(
    data: &'a [f32],
    [lane, along]: [usize; 2],
    [first, start]: [usize; 2],
    depth: usize,
) -> Source<'a> {
    match along {
        1 => {
            let half = |start: usize| match start < depth {
                true => &data[first * lane + start..],
                false => &[][..],
            };
            Source::Along { halves: [half(start), half(start + STEP)], apart: lane }
        }
        _ => {
            assert_eq!(lane, 1, "a matrix has rows or columns of neighbours");
            Source::Across { rows: &data[first + start * along..], apart: along }
        }
    }
}

fn put_rows(
    kind: Kind,
    out: &mut [u32],
    source: Source,
    [first, start]: [usize; 2],
    [m, depth]: [usize; 2],
) {
    let words = &mut out[first * ROW + start / 2..];
    let rows = NR.min(m - first);
    let target = Target { words, rows, apart: ROW, part: kind.part(), lanes: true };
    put(kind, source, [rows, DEEP.min(depth - start)], target);
}

/// Words of `count` rows from row `start` on of a panel that is `depth` deep.
fn put_panel(
    kind: Kind,
    out: &mut [u32],
    source: Source,
    [start, count, depth]: [usize; 3],
    columns: usize,
) {
    let (words, all) = (&mut out[start / 2 * NR..], kind.words(depth));
    let rows = STEP.min(all - start / 2);
    let target = Target { words, rows, apart: NR, part: all * NR, lanes: false };
    put(kind, source, [columns, count], target);
}

fn put(kind: Kind, source: Source, [lanes, depth]: [usize; 2], target: Target) {
    let parts = kind.precision.parts();
    assert!((1..=NR).contains(&lanes) && (1..=DEEP).contains(&depth) && target.rows <= STEP);
    assert!(source.has(lanes, depth));
    let Target { words, rows, apart, part, .. } = &target;
    assert!(words.len() >= (parts - 1) * part + (rows - 1) * apart + STEP);
    // SAFETY: the unit is the proof that its instructions are there, and the lengths were checked above.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        match parts {
            1 => super::avx512::put::<1>(source, [lanes, depth], target),
            _ => super::avx512::put::<3>(source, [lanes, depth], target),
        }
    }
}

impl Source<'_> {
    fn has(&self, lanes: usize, depth: usize) -> bool {
        match *self {
            Self::Along { halves: [low, high], apart } => {
                low.len() >= (lanes - 1) * apart + depth.min(STEP)
                    && (depth <= STEP || high.len() >= (lanes - 1) * apart + depth - STEP)
            }
            Self::Across { rows, apart } => rows.len() >= (depth - 1) * apart + lanes,
        }
    }
}
