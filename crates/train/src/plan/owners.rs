//! What the fullest owner has. The trainer gives parameters to the same owners.

use super::{Counted, Parameter};
use crate::team::{Load, owners};

/// The largest share that an owner has, of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// Floats that it remembers of the parameters that it owns.
    pub slots: u64,
    /// Floats of the parameters themselves.
    pub elements: u64,
    /// Floating-point operations of Muon's products.
    pub flops: u64,
}

impl Counted {
    /// Of so many devices.
    pub(super) fn owners(&self, devices: u64) -> Owners {
        let load = |parameter: &Parameter| {
            let Parameter { shape, group } = parameter;
            Load::of(*group, parameter.elements(), shape, self.job.muon_steps)
        };
        let loads: Vec<Load> = self.parameters.iter().map(load).collect();
        let owners = owners(&loads, devices);
        let count = owners.iter().max().map_or(0, |last| last + 1);
        let mut sums = vec![Owners::default(); usize::try_from(count).unwrap_or_default()];
        for ((parameter, load), owner) in self.parameters.iter().zip(&loads).zip(owners) {
            let sum = &mut sums[owner as usize];
            sum.slots = sum.slots.saturating_add(load.slots);
            sum.elements = sum.elements.saturating_add(parameter.elements());
            sum.flops = sum.flops.saturating_add(load.flops);
        }
        let most = |part: fn(&Owners) -> u64| sums.iter().map(part).max().unwrap_or_default();
        Owners {
            slots: most(|owner| owner.slots),
            elements: most(|owner| owner.elements),
            flops: most(|owner| owner.flops),
        }
    }
}
