//! Who owns which parameter. `hadal plan` counts with the same owners.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a parameter takes of its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Floats that its rule remembers.
    pub(crate) slots: u64,
    /// Floating-point operations of its rule, where they count: Muon's products.
    pub(crate) flops: u64,
}

/// Floating-point operations of `steps` of Muon's polynomials on a matrix: half of both squares, and a product.
pub(crate) fn muon_flops(shape: &[usize], steps: usize) -> u64 {
    let [rows, columns] = [shape[0] as u64, shape[1] as u64];
    let (m, n) = (rows.min(columns), rows.max(columns));
    let product = |a: u64, b: u64, c: u64| a.saturating_mul(b).saturating_mul(c);
    let each = product(m, m, n).saturating_mul(3).saturating_add(product(m, m, m));
    each.saturating_mul(steps as u64)
}

/// The owner of each parameter. Whole parameters go to owners, the heaviest first, each to the one with the least so far;
/// a parameter weighs its share of all slots and its share of all operations.
pub(crate) fn owners(loads: &[Load], devices: u64) -> Vec<u64> {
    const WHOLE: u128 = 1 << 40;
    let sum =
        |part: fn(&Load) -> u64| loads.iter().map(|load| u128::from(part(load))).sum::<u128>();
    let all = (sum(|load| load.slots).max(1), sum(|load| load.flops).max(1));
    let weight = |load: &Load| {
        u128::from(load.slots) * WHOLE / all.0 + u128::from(load.flops) * WHOLE / all.1
    };
    let mut sorted: Vec<(u128, usize)> =
        loads.iter().enumerate().map(|(index, load)| (weight(load), index)).collect();
    sorted.sort_by_key(|&(weight, index)| (Reverse(weight), index));
    // Owners without anything need not be looked at.
    let count = devices.clamp(1, loads.len().max(1) as u64);
    let mut least: BinaryHeap<Reverse<(u128, u64)>> =
        (0..count).map(|owner| Reverse((0, owner))).collect();
    let mut owners = vec![0; loads.len()];
    for (weight, index) in sorted {
        let Some(Reverse((sum, owner))) = least.pop() else { break };
        owners[index] = owner;
        least.push(Reverse((sum + weight, owner)));
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(slots: u64, flops: u64) -> Load {
        Load { slots, flops }
    }

    #[test]
    fn heavy_ones_are_spread_and_light_ones_fill_up() {
        let loads =
            [load(1, 0), load(8, 8), load(8, 8), load(2, 0), load(8, 8), load(8, 8), load(1, 0)];
        let owners = owners(&loads, 2);
        let of = |owner| loads.iter().zip(&owners).filter(move |(_, of)| **of == owner);
        for owner in [0, 1] {
            assert_eq!(of(owner).map(|(load, _)| load.flops).sum::<u64>(), 16);
            assert_eq!(of(owner).map(|(load, _)| load.slots).sum::<u64>(), 18);
        }
    }

    #[test]
    fn more_owners_than_parameters_are_no_trouble() {
        assert_eq!(owners(&[load(3, 0), load(5, 0)], 5000), [1, 0]);
        assert!(owners(&[], 4).is_empty());
        assert_eq!(owners(&[load(0, 0); 3], 1), [0; 3]);
        assert_eq!(owners(&[load(u64::MAX, u64::MAX); 2], 2), [0, 1]);
    }
}
