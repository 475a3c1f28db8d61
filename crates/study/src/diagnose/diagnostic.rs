//! What every diagnostic has in common: it sees signals go by and keeps sums.

use super::error::DiagnoseError;
use super::summary::Summary;
use super::values::Values;
use hadal_data::Batch;
use hadal_model::{Decoder, Variant};
use hadal_report::figure::Figure;
use hadal_residual::{Place, Signal, Site};

/// What a backward pass found.
pub(crate) struct Backward {
    /// Gradient of the summed loss with respect to each sub-layer's output, `[B, T, d]`.
    pub(crate) writes: Vec<(Site, Vec<f32>)>,
    /// Gradient of the mean loss with respect to each parameter.
    pub(crate) parameters: Vec<(String, Vec<f32>)>,
    /// Positions that the mean runs over.
    pub(crate) positions: usize,
}

/// Looks at a model from one side. All diagnostics use the same pass over the data, and only their sums are kept longer
/// than a batch.
pub(crate) trait Diagnostic {
    /// Whether [`Diagnostic::see`] should be given this signal.
    fn wants(&self, _signal: Signal) -> bool {
        false
    }

    /// Whether it needs gradients.
    fn wants_gradients(&self) -> bool {
        false
    }

    /// A batch begins.
    fn begin(&mut self, _batch: &Batch) {}

    /// A signal, in the order of depth.
    fn see(&mut self, _place: Place, _signal: Signal, _values: &Values) {}

    /// The gradients of the batch.
    fn learn(&mut self, _backward: &Backward) {}

    /// The batch is over.
    fn end(&mut self) {}

    /// Passes of its own over each batch.
    fn passes(&self) -> usize {
        0
    }

    /// Asks the model what the common pass cannot show. `told` is called after each pass.
    fn ask(
        &mut self,
        _decoder: &Decoder,
        _variant: Variant,
        _batch: &Batch,
        _told: &mut dyn FnMut(),
    ) -> Result<(), DiagnoseError> {
        Ok(())
    }

    /// What it found.
    fn figures(&self) -> Vec<Figure>;

    /// Adds the numbers worth a line of text to the summary.
    fn tell(&self, _summary: &mut Summary) {}
}
