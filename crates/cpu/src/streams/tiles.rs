//! Cutting rows into tiles of tokens, and buffers into parts.

use crate::simd::add_scaled;
use crate::team::each_of;

/// Tokens that one task works on: their streams stay in the cache.
pub(crate) const TILE: usize = 32;

/// Elements of a sum that one task adds up.
pub(super) const SUMMED: usize = 1 << 12;

/// How many tiles so many tokens make.
pub(crate) fn tile_count(tokens: usize) -> usize {
    tokens.div_ceil(TILE)
}

/// What the tile with this index holds of `values`, which has `each` elements for each token, or is empty.
pub(crate) fn tile<T>(values: &[T], index: usize, each: usize) -> &[T] {
    values.chunks((TILE * each).max(1)).nth(index).unwrap_or_default()
}

/// The parts of `values`, which follow each other without gaps.
#[inline(always)]
pub(crate) fn split<const N: usize>(values: &[f32], lengths: [usize; N]) -> [&[f32]; N] {
    let mut rest = values;
    lengths.map(|length| {
        let (part, others) = rest.split_at(length);
        rest = others;
        part
    })
}

/// [`split`], to be written to.
#[inline(always)]
pub(crate) fn split_mut<const N: usize>(
    values: &mut [f32],
    lengths: [usize; N],
) -> [&mut [f32]; N] {
    let mut rest = values;
    lengths.map(|length| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(length);
        rest = others;
        part
    })
}

/// The sum of partial sums of `length` elements, always added in the same order.
pub(crate) fn sum_of_partials(partials: &[f32], length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; length];
    each_of(sum.chunks_mut(SUMMED).enumerate(), |(slice, sum)| {
        for partial in partials.chunks_exact(length) {
            add_scaled(sum, 1.0, &partial[slice * SUMMED..]);
        }
    });
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_sums_of_many_parameters_are_all_added() {
        let length = 2 * SUMMED + 5;
        let partials: Vec<f32> =
            (0..3 * length).map(|i| (i % length + i / length) as f32).collect();
        let want: Vec<f32> = (0..length).map(|i| (3 * i + 3) as f32).collect();
        assert_eq!(sum_of_partials(&partials, length), want);
        assert!(sum_of_partials(&[], 0).is_empty());
    }
}
