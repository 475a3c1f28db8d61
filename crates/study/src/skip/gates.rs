//! The gates of every token at every sub-layer, as a pass shows them.

use burn::tensor::Tensor;
use hadal_residual::{Place, Probe, Signal};

/// Gates by sub-layer and token, of those who skip as well.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gates {
    /// Empty where a sub-layer has no gate; else one for each token, sequence after sequence.
    pub(crate) sites: Vec<Vec<f32>>,
    /// Tokens of a sequence.
    pub(crate) time: usize,
}

impl Gates {
    pub(crate) fn new(sites: usize, time: usize) -> Self {
        Self { sites: vec![Vec::new(); sites], time }
    }
}

impl Probe for Gates {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Gain | Signal::Gates)
    }

    fn record(&mut self, place: Place, _: Signal, value: Tensor<4>) {
        let Place::Site(site) = place else { return };
        let [.., streams, features] = value.dims();
        let values: Vec<f32> = value.try_into_vec_as().unwrap_or_default();
        // The widest gate decides: a token that it keeps in place is kept by all of them.
        let widest = |gates: &[f32]| gates.iter().fold(0f32, |most, gate| gate.abs().max(most));
        self.sites[site.index].extend(values.chunks_exact(streams * features).map(widest));
    }
}
