//! The smallest gate of each sub-layer in a batch.

use burn::module::Module;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_model::{Decoder, Pass, PassError};
use hadal_residual::{Place, Probe, Signal};

/// Of each sub-layer the gate that a threshold meets first, or none if it has no gates. The model must not skip
/// yet, or later sub-layers would be seen as they are behind skipped ones.
pub(super) fn smallest_gates(
    decoder: &Decoder,
    batch: &Batch,
    sites: usize,
) -> Result<Vec<Option<f32>>, PassError> {
    let mut smallest = Smallest { gates: vec![None; sites] };
    let pass = Pass { probe: Some(&mut smallest), ..Pass::default() };
    decoder.valid().loss(&batch.input, &batch.target, &batch.scored, pass)?;
    Ok(smallest.gates)
}

struct Smallest {
    gates: Vec<Option<f32>>,
}

impl Probe for Smallest {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Gain | Signal::Gates)
    }

    fn record(&mut self, place: Place, _: Signal, value: Tensor<4>) {
        let Place::Site(site) = place else { return };
        // A token skips if its widest gate is small.
        let widest = value.abs().max_dim(2).min();
        let widest =
            widest.try_into_vec_as::<f32>().ok().and_then(|values| values.first().copied());
        self.gates[site.index] = widest;
    }
}
