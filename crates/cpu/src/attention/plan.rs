//! Who asks whom: the queries of each sequence, and how many of its keys each of them sees.

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
    /// How many keys each query sees.
    seen: Vec<u32>,
    /// Positions of the keys of a sequence, if all tokens have one.
    key_positions: Vec<u32>,
}

impl Plan {
    /// Every token asks.
    pub(super) fn everyone(tokens: usize, time: usize) -> Self {
        let sequences = (0..tokens).step_by(time.max(1)).map(|first| first..first + time);
        Self::new(0..tokens as u32, sequences.collect(), time, Keys::All)
    }

    /// Only the running tokens ask.
    pub(super) fn routed(route: &Route, time: usize, keys: Keys) -> Self {
        let sequences = route.sequences(time).collect();
        Self::new(route.running().iter().copied(), sequences, time, keys)
    }

    fn new(
        tokens: impl Iterator<Item = u32>,
        sequences: Vec<Range<usize>>,
        time: usize,
        keys: Keys,
    ) -> Self {
        let positions: Vec<u32> = tokens.map(|token| token % time as u32).collect();
        let (seen, key_positions) = match keys {
            Keys::All => (positions.iter().map(|t| t + 1).collect(), (0..time as u32).collect()),
            Keys::Running => {
                let seen = sequences.iter().flat_map(|queries| 1..=queries.len() as u32);
                (seen.collect(), Vec::new())
            }
        };
        // Kernels rely on it: rows outside of sequences would stay unwritten.
        assert_eq!(sequences.last().map_or(0, |last| last.end), positions.len(), "whole sequences");
        Self { time, keys, sequences, positions, seen, key_positions }
    }

    /// Queries of the batch.
    pub(super) fn queries(&self) -> usize {
        self.positions.len()
    }

    /// Sequences in which somebody asks.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let sequences = self.sequences.iter().enumerate();
        sequences.filter(|(_, queries)| !queries.is_empty()).map(|(sequence, range)| {
            let token = sequence * self.time;
            let queries = Places { first: range.start, positions: &self.positions[range.clone()] };
            let seen = &self.seen[range.clone()];
            let keys = match self.keys {
                // None can see what comes after the last query.
                Keys::All => Places {
                    first: token,
                    positions: &self.key_positions[..seen[seen.len() - 1] as usize],
                },
                Keys::Running => queries,
            };
            Part { token, queries, keys, seen }
        })
    }

    /// A task for each key head of each sequence in which somebody asks.
    pub(super) fn tasks(&self, kv_heads: usize) -> impl Iterator<Item = (Part<'_>, usize)> {
        self.parts().flat_map(move |part| (0..kv_heads).map(move |kv_head| (part, kv_head)))
    }

    /// Operations of a forward pass.
    pub(super) fn operations(&self, shape: &Shape, slots: &Slots) -> usize {
        let keys: usize = self.seen.iter().map(|seen| *seen as usize).sum();
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
    /// How many of the keys each query sees; it never decreases.
    pub(super) seen: &'a [u32],
}

impl Part<'_> {
    /// Queries that are worked on together, and how many keys the last of them sees.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let rest = &self.seen[first..];
            let end = rest.first()? + SPREAD;
            let rows = rest.iter().take(QUERIES).take_while(|seen| **seen < end).count();
            let block = first..first + rows;
            first = block.end;
            Some((block, rest[rows - 1] as usize))
        })
    }
}
