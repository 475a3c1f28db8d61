//! One way through depth: how it goes, and the probe that watches it.

use crate::fused::Memory;
use crate::probe::{Place, Probe, Signal};
use crate::site::Site;
use crate::skip::StepMode;
use burn::tensor::Tensor;

/// What a policy knows about a traversal besides its own parameters.
#[derive(Default)]
pub struct Traversal<'a> {
    /// What changes from step to step of training.
    pub mode: &'a StepMode,
    /// What the backward pass may compute again.
    pub memory: Memory,
    /// The probe that watches, if any.
    pub probe: Option<&'a mut dyn Probe>,
}

impl Traversal<'_> {
    /// Whether the probe wants or changes anything at all.
    pub(crate) fn is_watched(&self) -> bool {
        self.steers() || Signal::ALL.iter().any(|&signal| self.wants(signal))
    }

    /// Whether the probe changes what flows.
    pub(crate) fn steers(&self) -> bool {
        self.probe.as_ref().is_some_and(|probe| probe.steers())
    }

    /// What goes on in place of a value, see [`Probe::steer`].
    pub(crate) fn steer(&mut self, place: Place, signal: Signal, value: Tensor<4>) -> Tensor<4> {
        match &mut self.probe {
            Some(probe) if probe.steers() => probe.steer(place, signal, value),
            _ => value,
        }
    }

    /// Whether a signal should be recorded.
    pub(crate) fn wants(&self, signal: Signal) -> bool {
        self.probe.as_ref().is_some_and(|probe| probe.wants(signal))
    }

    /// Hands a signal to the probe.
    pub(crate) fn record(&mut self, place: Place, signal: Signal, value: Tensor<4>) {
        if let Some(probe) = &mut self.probe {
            probe.record(place, signal, value);
        }
    }

    /// What goes on as a sub-layer's output, see [`Probe::tap`].
    pub(crate) fn tap(&mut self, site: Site, output: Tensor<3>) -> Tensor<3> {
        match &mut self.probe {
            Some(probe) => probe.tap(site, output),
            None => output,
        }
    }
}
