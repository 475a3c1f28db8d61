//! One pass over the data for all diagnostics.

use super::diagnostic::{Backward, Diagnostic};
use super::error::DiagnoseError;
use super::values::Values;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_kernels::{ReadBackError, take_gradient};
use hadal_model::{Decoder, Pass, PassError, Variant};
use hadal_residual::{Place, Probe, Signal, Site};
use hadal_train::quality::scalar;

/// Hands signals to the diagnostics that want them.
struct Watch<'a, 'd> {
    diagnostics: &'a mut [&'d mut dyn Diagnostic],
    /// A zero beside each write, if gradients are wanted.
    taps: Option<Vec<(Site, Tensor<3>)>>,
    unread: Option<ReadBackError>,
}

impl Probe for Watch<'_, '_> {
    fn wants(&self, signal: Signal) -> bool {
        // Taps exist only in a traversal that is watched, so at least one signal must be wanted.
        let watched = self.taps.is_some() && signal == Signal::Embedding;
        watched || self.diagnostics.iter().any(|diagnostic| diagnostic.wants(signal))
    }

    fn record(&mut self, place: Place, signal: Signal, value: Tensor<4>) {
        let values = match Values::of(value.inner()) {
            Ok(values) => values,
            Err(error) => {
                self.unread = Some(error);
                return;
            }
        };
        for diagnostic in self.diagnostics.iter_mut().filter(|d| d.wants(signal)) {
            diagnostic.see(place, signal, &values);
        }
    }

    fn tap(&mut self, site: Site, output: Tensor<3>) -> Tensor<3> {
        let Some(taps) = &mut self.taps else { return output };
        let zero = Tensor::zeros(output.dims(), &output.device()).require_grad();
        taps.push((site, zero.clone()));
        output + zero
    }
}

/// Shows a batch to all diagnostics, and returns its summed loss. The model must be on a device with
/// autodiff if one of them wants gradients.
pub(crate) fn watch(
    decoder: &Decoder,
    variant: Variant,
    batch: &Batch,
    diagnostics: &mut [&mut dyn Diagnostic],
) -> Result<f64, DiagnoseError> {
    let learns = diagnostics.iter().any(|diagnostic| diagnostic.wants_gradients());
    diagnostics.iter_mut().for_each(|diagnostic| diagnostic.begin(batch));
    let mut probe = Watch { diagnostics, taps: learns.then(Vec::new), unread: None };
    let pass = Pass { probe: Some(&mut probe), ..variant.pass() };
    let loss = decoder.loss(&batch.input, &batch.target, &batch.scored, pass)?;
    let Watch { diagnostics, taps, unread } = probe;
    if let Some(error) = unread {
        return Err(PassError::from(error).into());
    }
    let (mean, positions) = (scalar(&loss).map_err(PassError::from)?, batch.positions());
    if let Some(taps) = taps {
        let mut gradients = loss.backward();
        let summed = |(site, zero): (Site, Tensor<3>)| {
            let mut values = take_gradient(&zero, &mut gradients).unwrap_or_default();
            values.iter_mut().for_each(|value| *value *= positions as f32);
            (site, values)
        };
        let writes = taps.into_iter().map(summed).collect();
        let backward = Backward { writes, parameters: decoder.gradients(gradients), positions };
        diagnostics.iter_mut().for_each(|diagnostic| diagnostic.learn(&backward));
    }
    diagnostics.iter_mut().for_each(|diagnostic| diagnostic.end());
    Ok(mean * positions as f64)
}
