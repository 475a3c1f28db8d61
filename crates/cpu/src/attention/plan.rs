//! Which token asks which: the queries of each sequence, and which of its keys each of them sees.

use super::{QUERIES, Shape, Slots};
use crate::Route;
use std::ops::Range;

/// Which keys a routed attention has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Every token's.
    All,
    /// Only those of running tokens.
    Running,
}

/// Keys by which what the queries of one block see may differ: what the last one sees is computed for all of
/// them. At least [`QUERIES`], so that blocks of neighbours are full.
const SPREAD: u32 = 128;

/// The queries of a batch and the keys that they see.
pub(super) struct Plan {
    time: usize,
    keys: Keys,
    /// The queries of each sequence.
    sequences: Vec<Range<usize>>,
    /// Of each query, in its sequence.
    positions: Vec<u32>,
    /// Before which key each query's sight ends.
    seen: Vec<u32>,
    /// The first key that each query sees.
    first: Vec<u32>,
    /// Positions of the keys of a sequence, if all tokens have one.
    key_positions: Vec<u32>,
}

impl Plan {
    /// Every token asks.
    pub(super) fn dense(tokens: usize, shape: &Shape) -> Self {
        let time = shape.time;
        assert!(tokens.is_multiple_of(time.max(1)), "whole sequences of {time} tokens");
        let sequences: Vec<_> =
            (0..tokens).step_by(time.max(1)).map(|first| first..first + time).collect();
        let positions = sequences.iter().flat_map(|_| 0..time as u32).collect();
        Self::new(positions, sequences, shape, Keys::All)
    }

    /// Only the running tokens ask.
    pub(super) fn routed(route: &Route, shape: &Shape, keys: Keys) -> Self {
        let time = shape.time;
        let positions = route.running().iter().map(|token| token % time as u32).collect();
        Self::new(positions, route.sequences(time).collect(), shape, keys)
    }

    fn new(positions: Vec<u32>, sequences: Vec<Range<usize>>, shape: &Shape, keys: Keys) -> Self {
        let time = shape.time;
        let (seen, key_positions) = match keys {
            Keys::All => (positions.iter().map(|t| t + 1).collect(), (0..time as u32).collect()),
            Keys::Running => {
                let seen = sequences.iter().flat_map(|queries| 1..=queries.len() as u32);
                (seen.collect(), Vec::new())
            }
        };
        let first = match (shape.window, keys) {
            (None, _) => vec![0; positions.len()],
            (Some(window), Keys::All) => {
                positions.iter().map(|t| (t + 1).saturating_sub(window)).collect()
            }
            (Some(window), Keys::Running) => {
                let of_sequence = |queries: &Range<usize>| {
                    let keys = &positions[queries.clone()];
                    let first =
                        |t: &u32| keys.partition_point(|key| key.saturating_add(window) <= *t);
                    keys.iter().map(|t| first(t) as u32).collect::<Vec<_>>()
                };
                sequences.iter().flat_map(of_sequence).collect()
            }
        };
        // Kernels rely on it: rows outside of sequences would stay unwritten.
        assert_eq!(sequences.last().map_or(0, |last| last.end), positions.len(), "whole sequences");
        Self { time, keys, sequences, positions, seen, first, key_positions }
    }

    /// Queries of the batch.
    pub(super) fn queries(&self) -> usize {
        self.positions.len()
    }

    /// Sequences in which a token asks.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let sequences = self.sequences.iter().enumerate();
        sequences.filter(|(_, queries)| !queries.is_empty()).map(|(sequence, range)| {
            let token = sequence * self.time;
            let queries = Places { first: range.start, positions: &self.positions[range.clone()] };
            let (seen, first) = (&self.seen[range.clone()], &self.first[range.clone()]);
            let keys = match self.keys {
                // None can see what comes after the last query.
                Keys::All => Places {
                    first: token,
                    positions: &self.key_positions[..seen[seen.len() - 1] as usize],
                },
                Keys::Running => queries,
            };
            Part { token, queries, keys, seen, first }
        })
    }

    /// A task for each key head of each sequence in which a token asks.
    pub(super) fn tasks(&self, kv_heads: usize) -> impl Iterator<Item = (Part<'_>, usize)> {
        self.parts().flat_map(move |part| (0..kv_heads).map(move |kv_head| (part, kv_head)))
    }

    /// Operations of a forward pass.
    pub(super) fn operations(&self, shape: &Shape, slots: &Slots) -> usize {
        let sights = self.seen.iter().zip(&self.first);
        let keys: usize = sights.map(|(seen, first)| (seen - first) as usize).sum();
        4 * shape.query_width() * (keys + slots.count * self.queries())
    }
}

/// Neighbouring rows, and their positions in the sequence.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    /// The first row.
    pub(super) first: usize,
    pub(super) positions: &'a [u32],
}

impl Places<'_> {
    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Rows and positions.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let positions = self.positions.iter().map(|t| *t as usize);
        (self.first..).zip(positions)
    }
}

/// The queries and keys of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    /// The sequence's first token in the batch.
    pub(super) token: usize,
    pub(super) queries: Places<'a>,
    pub(super) keys: Places<'a>,
    /// Before which of the keys each query's sight ends; it never decreases.
    pub(super) seen: &'a [u32],
    /// The first of the keys that each query sees; it never decreases.
    pub(super) first: &'a [u32],
}

impl Part<'_> {
    /// Queries that are worked on together, and the keys that they see together.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let rest = &self.seen[first..];
            let end = rest.first()? + SPREAD;
            let rows = rest.iter().take(QUERIES).take_while(|seen| **seen < end).count();
            let block = first..first + rows;
            first = block.end;
            let keys = self.first[block.start] as usize..rest[rows - 1] as usize;
            Some((block, keys))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(seen: &[u32]) -> Vec<(Range<usize>, usize)> {
        let places = Places { first: 0, positions: seen };
        let first = &vec![0; seen.len()];
        let part = Part { token: 0, queries: places, keys: places, seen, first };
        part.blocks().map(|(block, keys)| (block, keys.end)).collect()
    }

    fn shape(time: usize, window: Option<u32>) -> Shape<'static> {
        let (cos, sin) = (&[], &[]);
        Shape { time, heads: 1, kv_heads: 1, head_dim: 2, cos, sin, norms: None, window }
    }

    #[test]
    fn a_window_hides_what_lies_further_back() {
        let route = Route::of("xx.x.x".bytes().map(|c| c == b'x'));
        let first =
            |window, keys| Plan::routed(route.as_ref().unwrap(), &shape(6, window), keys).first;
        assert_eq!(first(Some(2), Keys::All), [0, 0, 2, 4]);
        // The keys are those of positions 0, 1, 3 and 5.
        assert_eq!(first(Some(2), Keys::Running), [0, 0, 2, 3]);
        assert_eq!(first(Some(3), Keys::Running), [0, 0, 1, 2]);
        assert_eq!(first(None, Keys::Running), [0; 4]);
        assert_eq!(first(Some(u32::MAX), Keys::All), [0; 4]);
    }

    #[test]
    fn blocks_of_neighbours_are_full() {
        let seen: Vec<u32> = (1..=100).collect();
        assert_eq!(blocks(&seen[..60]), [(0..24, 24), (24..48, 48), (48..60, 60)]);
        assert_eq!(blocks(&[]), []);
    }

    #[test]
    fn queries_of_a_block_see_about_the_same() {
        let far = SPREAD + 1;
        assert_eq!(
            blocks(&[1, far - 1, far, far + 1]),
            [(0..2, SPREAD as usize), (2..4, far as usize + 1)]
        );
        let seen: Vec<u32> = (1..500).step_by(10).collect();
        let blocks = blocks(&seen);
        assert_eq!(blocks.iter().map(|(block, _)| block.len()).sum::<usize>(), seen.len());
        assert!(blocks.iter().all(|(block, last)| *last as u32 - seen[block.start] < SPREAD));
    }

    #[test]
    fn sequences_in_which_nobody_asks_are_not_planned() {
        // Three sequences of four tokens.
        let route = Route::of("....|.xx.|x..x".bytes().filter(|c| *c != b'|').map(|c| c == b'x'));
        for (keys, first_keys) in [(Keys::All, [4, 8]), (Keys::Running, [0, 2])] {
            let plan = Plan::routed(route.as_ref().unwrap(), &shape(4, None), keys);
            let parts: Vec<_> = plan.parts().collect();
            assert_eq!(plan.queries(), 4);
            assert_eq!(plan.tasks(3).count(), 6);
            for ((part, token), first_key) in parts.iter().zip([4, 8]).zip(first_keys) {
                assert_eq!((part.token, part.keys.first), (token, first_key));
            }
            assert_eq!([parts[0].queries.positions, parts[1].queries.positions], [[1, 2], [0, 3]]);
            let (seen, key_positions): ([[u32; 2]; 2], [&[u32]; 2]) = match keys {
                Keys::All => ([[2, 3], [1, 4]], [&[0, 1, 2], &[0, 1, 2, 3]]),
                Keys::Running => ([[1, 2], [1, 2]], [&[1, 2], &[0, 3]]),
            };
            assert_eq!([parts[0].seen, parts[1].seen], seen);
            assert_eq!([parts[0].keys.positions, parts[1].keys.positions], key_positions);
        }
    }
}
