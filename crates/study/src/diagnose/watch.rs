//! One pass over the data for all diagnostics.

use super::diagnostic::Diagnostic;
use super::error::DiagnoseError;
use super::values::Values;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_kernels::ReadBackError;
use hadal_model::{Decoder, Pass, PassError, Variant};
use hadal_residual::{Place, Probe, Signal};
use hadal_train::quality::mean_loss;

/// Hands signals to the diagnostics that want them.
struct Watch<'a, 'd> {
    diagnostics: &'a mut [&'d mut dyn Diagnostic],
    unread: Option<ReadBackError>,
}

impl Probe for Watch<'_, '_> {
    fn wants(&self, signal: Signal) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.wants(signal))
    }

    fn record(&mut self, place: Place, signal: Signal, value: Tensor<4>) {
        match Values::of(value.inner()) {
            Ok(values) => {
                for diagnostic in self.diagnostics.iter_mut().filter(|d| d.wants(signal)) {
                    diagnostic.see(place, signal, &values);
                }
            }
            Err(error) => self.unread = Some(error),
        }
    }
}

/// Shows a batch to all diagnostics, and returns its summed loss. A model with autodiff would keep everything that they
/// see for a backward pass.
pub(crate) fn watch(
    decoder: &Decoder,
    variant: Variant,
    batch: &Batch,
    diagnostics: &mut [&mut dyn Diagnostic],
) -> Result<f64, DiagnoseError> {
    diagnostics.iter_mut().for_each(|diagnostic| diagnostic.begin(batch));
    let mut probe = Watch { diagnostics, unread: None };
    let mean = mean_loss(decoder, batch, Pass { probe: Some(&mut probe), ..variant.pass() })?;
    let Watch { diagnostics, unread } = probe;
    if let Some(error) = unread {
        return Err(PassError::from(error).into());
    }
    diagnostics.iter_mut().for_each(|diagnostic| diagnostic.end());
    Ok(mean * batch.positions() as f64)
}
