//! The gates of every token at every sub-layer, as a pass shows them.

use burn::tensor::Tensor;
use hadal_kernels::{ReadBackError, read_back};
use hadal_residual::{Place, Probe, Signal};

/// Gates by sub-layer and token, also of tokens that skip.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gates {
    /// Empty where a sub-layer has no gate; else one for each token, sequence after sequence.
    pub(crate) sites: Vec<Vec<f32>>,
    /// Tokens of a sequence.
    pub(crate) time: usize,
    pub(super) unread: Option<ReadBackError>,
}

impl Gates {
    pub(crate) fn new(sites: usize, time: usize) -> Self {
        Self { sites: vec![Vec::new(); sites], time, unread: None }
    }

    /// Whether all gates could be read.
    pub(crate) fn check(&mut self) -> Result<(), ReadBackError> {
        self.unread.take().map_or(Ok(()), Err)
    }
}

impl Probe for Gates {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Gain | Signal::Gates)
    }

    fn record(&mut self, place: Place, _: Signal, value: Tensor<4>) {
        let Place::Site(site) = place else { return };
        let [.., streams, features] = value.dims();
        let values = match read_back(value) {
            Ok(values) => values,
            Err(error) => {
                self.unread = Some(error);
                return;
            }
        };
        // The widest gate decides: a token that it keeps in place is kept by all of them.
        let widest = |gates: &[f32]| gates.iter().fold(0f32, |most, gate| gate.abs().max(most));
        self.sites[site.index].extend(values.chunks_exact(streams * features).map(widest));
    }
}
