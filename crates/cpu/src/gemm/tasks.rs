//! How products are cut into tasks.

use super::MR;
use super::panels::BLOCK;
use super::tile::Tile;
use super::words::Kind;
use crate::precision::Precision;
use crate::rows::{cut, cut_mut};
use std::ops::{Range, RangeInclusive};

/// Rows of the largest and of the smallest task.
const LARGEST: usize = 22 * MR;
const SMALLEST: usize = 2 * MR;

/// Rows of the tasks that compute C, one after another. They are large enough to read B seldom, and get smaller
/// towards the end, so that all threads end at about the same time however fast each of them is. Rows
/// are independent of each other, so sizes change no bit.
pub(crate) fn row_tasks(
    rows: usize,
    precision: Precision,
) -> impl ExactSizeIterator<Item = usize> + Send {
    let unit = height(precision);
    tasks(rows, unit, smallest(unit)..=largest(unit), usize::MAX).into_iter()
}

/// Rows of a kernel's tile.
fn height(precision: Precision) -> usize {
    Kind::here(precision).map_or_else(|| Tile::here().rows, Kind::height)
}

/// Rows of the smallest task of whole tiles.
fn smallest(unit: usize) -> usize {
    SMALLEST.next_multiple_of(unit)
}

/// Rows of the largest task of whole tiles.
fn largest(unit: usize) -> usize {
    LARGEST / unit * unit
}

/// The rows of C of each of the [`row_tasks`], which are `width` long, with those of A, which are `depth` long.
pub(crate) fn row_pairs<'a>(
    mut c: &'a mut [f32],
    width: usize,
    mut a: &'a [f32],
    depth: usize,
    precision: Precision,
) -> impl ExactSizeIterator<Item = (&'a mut [f32], &'a [f32])> + Send {
    row_tasks(a.len() / depth, precision)
        .map(move |rows| (cut_mut(&mut c, rows * width), cut(&mut a, rows * depth)))
}

/// [`row_tasks`] that stay large, for rows after which there is more to do.
pub(crate) fn large_row_tasks(
    rows: usize,
    precision: Precision,
) -> impl ExactSizeIterator<Item = usize> + Send {
    let unit = height(precision);
    tasks(rows, unit, largest(unit)..=largest(unit), usize::MAX).into_iter()
}

/// [`row_tasks`] for a matrix in panels: the rows of each task are rows of one block.
pub(crate) fn block_tasks(
    rows: usize,
    precision: Precision,
) -> impl ExactSizeIterator<Item = Range<usize>> + Send {
    let unit = height(precision);
    ranges(tasks(rows, unit, smallest(unit)..=largest(unit), BLOCK))
}

/// The panels of the tasks that compute columns of C, in the same way.
pub(crate) fn panel_tasks(panels: usize) -> impl ExactSizeIterator<Item = Range<usize>> + Send {
    let unit = Tile::here().panels;
    ranges(tasks(panels, unit, unit..=4, usize::MAX))
}

fn ranges(sizes: Vec<usize>) -> impl ExactSizeIterator<Item = Range<usize>> + Send {
    let mut end = 0;
    sizes.into_iter().map(move |size| {
        end += size;
        end - size..end
    })
}

/// Sizes, multiples of `unit`, of tasks that have `count` of something in all and do not cross borders of blocks.
fn tasks(count: usize, unit: usize, limits: RangeInclusive<usize>, block: usize) -> Vec<usize> {
    let threads = rayon::current_num_threads();
    let mut sizes = Vec::with_capacity(count / limits.end() + 8 * threads);
    let mut done = 0;
    while done < count {
        let rest = count - done;
        let share = match threads {
            1 => rest,
            _ => rest.div_ceil(2 * threads),
        };
        let size = share.next_multiple_of(unit).clamp(*limits.start(), *limits.end());
        let size = size.min(rest).min(block - done % block);
        sizes.push(size);
        done += size;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cover_all_rows_and_end_small() {
        let in_pool = |threads: usize, rows: usize, unit: usize| -> Vec<usize> {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| tasks(rows, unit, SMALLEST..=LARGEST, usize::MAX))
        };
        for (threads, unit) in [1, 2, 3, 8].into_iter().flat_map(|t| [(t, MR), (t, 2 * MR)]) {
            for rows in [0, 1, 5, 256, 1024, 2048, 10_000] {
                let sizes = in_pool(threads, rows, unit);
                assert_eq!(sizes.iter().sum::<usize>(), rows);
                assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
                assert!(sizes.iter().all(|size| (1..=LARGEST).contains(size)));
                let whole = sizes.split_last().map_or(&[][..], |(_, whole)| whole);
                assert!(whole.iter().all(|size| size.is_multiple_of(unit) && *size >= SMALLEST));
            }
        }
        assert_eq!(in_pool(2, 256, MR), [66, 48, 36, 30, 24, 18, 12, 12, 10]);
        assert_eq!(in_pool(2, 256, 2 * MR), [72, 48, 36, 36, 24, 12, 12, 12, 4]);
    }
}
