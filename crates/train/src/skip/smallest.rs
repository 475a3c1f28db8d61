//! The smallest gate of each sub-layer in a batch.

use burn::module::Module;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_kernels::{ReadBackError, read_back};
use hadal_model::{Decoder, Pass, PassError};
use hadal_residual::{Place, Probe, Signal};

/// The gate of each sub-layer that a threshold meets first, or none if it has no gates. The model must not skip yet, or
/// later sub-layers would be seen as they are after skipped ones.
pub(super) fn smallest_gates(
    decoder: &Decoder,
    batch: &Batch,
    sites: usize,
) -> Result<Vec<Option<f32>>, PassError> {
    let mut smallest = Smallest { gates: vec![None; sites], unread: None };
    let pass = Pass { probe: Some(&mut smallest), ..Pass::default() };
    decoder.valid().loss(&batch.input, &batch.target, &batch.scored, pass)?;
    match smallest.unread {
        Some(error) => Err(error.into()),
        None => Ok(smallest.gates),
    }
}

struct Smallest {
    gates: Vec<Option<f32>>,
    unread: Option<ReadBackError>,
}

impl Probe for Smallest {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Gain | Signal::Gates)
    }

    fn record(&mut self, place: Place, _: Signal, value: Tensor<4>) {
        let Place::Site(site) = place else { return };
        // A token skips if its widest gate is small.
        match read_back(value.abs().max_dim(2).min()) {
            Ok(values) => self.gates[site.index] = values.first().copied(),
            Err(error) => self.unread = Some(error),
        }
    }
}
