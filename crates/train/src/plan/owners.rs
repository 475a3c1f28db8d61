//! Who owns which parameter.

use super::{Counted, Parameter};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The largest share that an owner has, in floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// What it remembers of the parameters that it owns.
    pub slots: u64,
    /// The parameters themselves.
    pub elements: u64,
}

impl Counted {
    /// Whole parameters go to owners, the largest first, each to the one that holds least so far.
    pub(super) fn owners(&self, devices: u64) -> Owners {
        let mut sorted: Vec<&Parameter> = self.parameters.iter().collect();
        sorted.sort_by_key(|parameter| Reverse(parameter.slots()));
        let all = Owners {
            slots: sorted.iter().fold(0, |sum, parameter| sum.saturating_add(parameter.slots())),
            elements: sorted
                .iter()
                .fold(0, |sum, parameter| sum.saturating_add(parameter.elements())),
        };
        if devices <= 1 {
            return all;
        }
        // Owners without anything do not count.
        let count = devices.min(sorted.len() as u64);
        let mut loads: BinaryHeap<Reverse<(u64, u64)>> =
            (0..count).map(|_| Reverse((0, 0))).collect();
        for parameter in sorted {
            let Some(Reverse((slots, elements))) = loads.pop() else { break };
            loads.push(Reverse((
                slots.saturating_add(parameter.slots()),
                elements.saturating_add(parameter.elements()),
            )));
        }
        let most = |part: fn(&(u64, u64)) -> u64| {
            loads.iter().map(|Reverse(load)| part(load)).max().unwrap_or_default()
        };
        Owners { slots: most(|load| load.0), elements: most(|load| load.1) }
    }
}
