//! The part of a row of scores that its query sees, in whole chunks: a loop over elements that do not fill a
//! chunk would take as long as the rest of the row.

use super::KEYS;

/// Elements of a chunk: two AVX2 registers.
pub(super) const CHUNK: usize = 16;

/// What a query sees of a tile of keys.
#[derive(Clone, Copy)]
pub(super) struct Live {
    first: usize,
    end: usize,
    keys: usize,
}

impl Live {
    /// A query sees the keys from `first` on and before `seen`; the tile holds `keys` of them from `start` on.
    #[inline(always)]
    pub(super) fn of(first: u32, seen: u32, start: usize, keys: usize) -> Self {
        let within = |key: u32| (key as usize).saturating_sub(start).min(keys);
        Self { first: within(first), end: within(seen), keys }
    }

    /// Chunks with all scores that are seen; what else they hold weighs nothing. Weights outside of them
    /// become zero, and there are no chunks if nothing is seen.
    #[inline(always)]
    pub(super) fn chunks(self, scores: &mut [f32]) -> Option<&mut [[f32; CHUNK]]> {
        self.only(scores, f32::NEG_INFINITY)
    }

    /// The same chunks of a row of gradients, with zeros where nothing is seen.
    #[inline(always)]
    pub(super) fn gradient_chunks(self, d_scores: &mut [f32]) -> Option<&mut [[f32; CHUNK]]> {
        self.only(d_scores, 0.0)
    }

    #[inline(always)]
    fn only(self, row: &mut [f32], nothing: f32) -> Option<&mut [[f32; CHUNK]]> {
        let Self { first, end, keys } = self;
        let row = &mut row[..KEYS];
        if first >= end {
            row[..keys].fill(0.0);
            return None;
        }
        let (start, stop) = (first / CHUNK * CHUNK, end.next_multiple_of(CHUNK));
        row[..start].fill(0.0);
        row[start..first].fill(nothing);
        // A whole chunk where there is room: stores of parts of a register are slow.
        match row[end..].first_chunk_mut::<CHUNK>() {
            Some(chunk) => *chunk = [nothing; CHUNK],
            None => row[end..].fill(nothing),
        }
        row[stop..keys.max(stop)].fill(0.0);
        Some(row[start..stop].as_chunks_mut().0)
    }
}
