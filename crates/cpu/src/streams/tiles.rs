//! Splitting rows into tiles of tokens, and putting the tiles' results together.

use super::TILE;
use crate::simd::add_scaled;

/// What the tile with this index holds of `values`, which has `width` elements for each token, or is
/// empty.
pub(crate) fn tile(values: &[f32], index: usize, width: usize) -> &[f32] {
    values.chunks(TILE * width).nth(index).unwrap_or_default()
}

/// Hands out a buffer tile by tile; an empty one yields empty tiles for ever.
#[derive(Debug)]
pub(crate) struct TilesMut<'a>(std::slice::ChunksMut<'a, f32>);

impl<'a> TilesMut<'a> {
    /// A buffer with `width` elements for each token.
    pub(crate) fn new(values: &'a mut [f32], width: usize) -> Self {
        Self(values.chunks_mut(TILE * width))
    }

    /// A buffer with `length` elements for each tile.
    pub(crate) fn of_partials(values: &'a mut [f32], length: usize) -> Self {
        Self(values.chunks_mut(length.max(1)))
    }

    /// The next tile.
    pub(crate) fn take(&mut self) -> &'a mut [f32] {
        self.0.next().unwrap_or_default()
    }
}

/// How many tiles so many tokens make.
pub(crate) fn tile_count(tokens: usize) -> usize {
    tokens.div_ceil(TILE)
}

/// The sum of the tiles' partial sums of `length` elements, always added in the same order.
pub(crate) fn sum_of_partials(partials: &[f32], length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; length];
    for partial in partials.chunks_exact(length.max(1)) {
        add_scaled(&mut sum, 1.0, partial);
    }
    sum
}
