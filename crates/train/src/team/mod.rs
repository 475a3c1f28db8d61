//! Training on several ranks: docs/ranks.md says what they send each other and why the bits are those of one process.
//!
//! All ranks make the same exchanges in the same order. A rank that fails says so in its next one, whichever that is, so
//! the others end with its message.

mod agreement;
mod division;
mod evaluation;
mod exchange;
mod failure;
mod mean;
mod owners;
mod spread;
mod sums;
mod together;
mod tree;
mod wire;

pub(crate) use agreement::Agreement;
pub(crate) use division::Division;
pub(crate) use evaluation::together as measured_together;
pub(crate) use exchange::Team;
pub use failure::Elsewhere;
pub(crate) use mean::mean;
pub(crate) use owners::{Load, owners};
pub(crate) use spread::{keep, parameters, remembered, state, to_all};
pub(crate) use sums::Sums;
pub(crate) use together::Seen;
pub(crate) use tree::Tree;

use std::ops::Range;

/// The part of `count` things that belongs to a rank: neighbours, the first ranks one more where they cannot be divided.
pub(crate) fn share(count: usize, rank: usize, ranks: usize) -> Range<usize> {
    let (each, more) = (count / ranks, count % ranks);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn things_are_divided_among_neighbours() {
        let shares = |count, ranks| (0..ranks).map(|r| share(count, r, ranks)).collect::<Vec<_>>();
        assert_eq!(shares(4, 3), [0..2, 2..3, 3..4]);
        assert_eq!(share(8, 0, 1), 0..8);
        assert_eq!(shares(1, 3), [0..1, 1..1, 1..1]);
    }
}
