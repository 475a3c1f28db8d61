//! How long a step takes, from rates that are given.

use super::{Counted, Machine, Owners, Traffic};
use serde::Serialize;

/// Seconds of a step on the slowest device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// Passes forward.
    pub forward: f64,
    /// Passes back, with what is computed again.
    pub backward: f64,
    /// Muon's products; other rules take next to nothing.
    pub optimiser: f64,
    /// Gradients on their way to owners.
    pub gradients: f64,
    /// Parameters on their way back.
    pub parameters: f64,
}

impl StepTime {
    pub(super) fn of(counted: &Counted, owners: &Owners, machine: &Machine) -> Self {
        let (job, cost) = (&counted.job, &counted.cost);
        let passes = job.passes(machine.devices);
        let tokens = passes.count as f64 * passes.batch as f64 * job.seq_len as f64;
        let forward = cost.forward_flops_per_token as f64;
        let head = 2.0 * job.model.d_model as f64 * job.model.vocab_size as f64;
        let again = if job.memory.recompute {
            (forward - cost.residual_flops_per_token as f64 - head).max(0.0)
        } else {
            0.0
        };
        let traffic = Traffic::of(cost.parameters.total(), machine.devices, machine.wire);
        let seconds = |flops: f64| flops / machine.flops;
        let sent = |bytes: u64| if bytes == 0 { 0.0 } else { bytes as f64 / machine.bandwidth };
        Self {
            forward: seconds(tokens * forward),
            backward: seconds(tokens * (2.0 * forward + again)),
            optimiser: seconds(owners.flops as f64),
            gradients: sent(traffic.gradients),
            parameters: sent(traffic.parameters),
        }
    }

    /// One after another.
    pub fn apart(&self) -> f64 {
        self.forward + self.backward + self.optimiser + self.gradients + self.parameters
    }

    /// With gradients on their way while the pass back goes on.
    pub fn overlapped(&self) -> f64 {
        self.forward + self.backward.max(self.gradients) + self.optimiser + self.parameters
    }
}
