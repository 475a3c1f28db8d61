//! Shuffling without memory: a keyed permutation of `0..n` that can be evaluated at any position.
//!
//! A four-round Feistel network permutes the smallest even number of bits that hold n; results
//! outside `0..n` are permuted again until they fall inside (cycle walking). So the data order is a
//! pure function of seed, epoch and position, and resuming needs nothing but a counter.

use hadal_cpu::splitmix::{STEP, finalise};

/// Where position `index` of a shuffled `0..count` comes from.
///
/// # Panics
/// If `index` is not below `count`.
pub(crate) fn shuffled(index: u64, count: u64, seed: u64, epoch: u64) -> u64 {
    assert!(index < count, "position {index} of {count}");
    let half = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let key = mix(seed ^ mix(epoch.wrapping_add(1)));
    let mut at = index;
    loop {
        at = permute(at, half, key);
        if at < count {
            return at;
        }
    }
}

fn permute(value: u64, half: u32, key: u64) -> u64 {
    let mask = (1u64 << half) - 1;
    let (mut left, mut right) = (value >> half, value & mask);
    for round in 0..4 {
        let turned = mix(right ^ key.wrapping_add(round << 56)) & mask;
        (left, right) = (right, left ^ turned);
    }
    (left << half) | right
}

fn mix(value: u64) -> u64 {
    finalise(value.wrapping_add(STEP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_position_is_visited_once() {
        for count in [1, 2, 3, 7, 64, 1000, 4097] {
            let seen: HashSet<u64> = (0..count).map(|i| shuffled(i, count, 5, 0)).collect();
            assert_eq!(seen.len() as u64, count);
            assert!(seen.iter().all(|&at| at < count));
        }
    }

    #[test]
    fn epochs_and_seeds_have_their_own_order() {
        let order =
            |seed, epoch| (0..100).map(|i| shuffled(i, 100, seed, epoch)).collect::<Vec<_>>();
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), (0..100).collect::<Vec<_>>());
    }
}
