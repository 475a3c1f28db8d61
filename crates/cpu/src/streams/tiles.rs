//! Cutting rows into tiles of tokens, and buffers into parts.

/// Tokens that one task works on: their streams stay in the cache.
pub(crate) const TILE: usize = 32;

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
