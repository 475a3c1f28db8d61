//! Random choices and hashes that will never change with a dependency's choice of algorithm: the
//! bits of an example are part of what a seed promises.

use hadal_cpu::splitmix::finalise;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of choices, addressed rather than advanced: four numbers name it.
pub(super) struct Draw(ChaCha8Rng);

impl Draw {
    /// The stream of an address. The cipher's key holds all of it, so no two addresses collide.
    pub(super) fn new(address: [u64; 4]) -> Self {
        let mut key = [0; 32];
        for (bytes, number) in key.chunks_exact_mut(8).zip(address) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A number below `count`, uniformly: the bias of multiplying instead of rejecting is below `count / 2^64`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.0.next_u64()) * count as u128) >> 64) as usize
    }

    /// Different numbers below `from`, in random order.
    pub(super) fn distinct(&mut self, count: usize, from: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..from).collect();
        for place in 0..count.min(from) {
            let other = place + self.below(from - place);
            numbers.swap(place, other);
        }
        numbers.truncate(count);
        numbers
    }
}

/// FNV-1a, 64 bits.
pub(super) fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// FNV's low bits depend on the low bits of each byte alone, and the choice of held-out instances must not follow such
/// a pattern.
pub(super) fn mix(hash: u64) -> u64 {
    finalise(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_a_count_are_uniform() {
        let mut draw = Draw::new([1, 2, 3, 4]);
        let mut seen = [0usize; 7];
        for _ in 0..70_000 {
            seen[draw.below(7)] += 1;
        }
        assert!(seen.iter().all(|count| (9_600..10_400).contains(count)), "{seen:?}");
    }

    #[test]
    fn distinct_numbers_are_a_uniform_choice_in_uniform_order() {
        let mut draw = Draw::new([0; 4]);
        let mut seen = std::collections::BTreeMap::<Vec<usize>, usize>::new();
        for _ in 0..12_000 {
            *seen.entry(draw.distinct(2, 4)).or_default() += 1;
        }
        assert_eq!(seen.len(), 12);
        assert!(seen.values().all(|count| (860..1140).contains(count)), "{seen:?}");
        assert!(seen.keys().all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn every_part_of_the_address_matters() {
        let first = |address| Draw::new(address).below(usize::MAX);
        let origin = first([0; 4]);
        for address in [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] {
            assert_ne!(first(address), origin);
        }
    }

    #[test]
    fn fnv1a_gives_its_published_values() {
        assert_eq!(fnv1a([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }
}
