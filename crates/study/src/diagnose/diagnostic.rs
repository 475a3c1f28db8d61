//! What every diagnostic has in common: it sees signals go by and keeps sums.

use super::error::DiagnoseError;
use super::summary::Summary;
use super::values::Values;
use hadal_data::Batch;
use hadal_model::{Decoder, Variant};
use hadal_report::figure::Figure;
use hadal_residual::{Place, Signal};
use serde_json::Value;

/// The model that is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Models<'a> {
    /// On a device with autodiff, for gradients.
    pub(crate) learning: &'a Decoder,
    /// The same parameters without autodiff.
    pub(crate) plain: &'a Decoder,
    pub(crate) variant: Variant<'a>,
}

/// Looks at a model from one side. All diagnostics watch the same pass over the data; what it cannot show they ask in
/// passes of their own. Only their sums are kept longer than a batch.
pub(crate) trait Diagnostic {
    /// Whether [`Diagnostic::see`] should be given this signal.
    fn wants(&self, _signal: Signal) -> bool {
        false
    }

    /// A batch begins.
    fn begin(&mut self, _batch: &Batch) {}

    /// A signal, in the order of depth.
    fn see(&mut self, _place: Place, _signal: Signal, _values: &Values) {}

    /// The batch is over.
    fn end(&mut self) {}

    /// Passes of its own over each batch, after all diagnostics have seen all of the data.
    fn passes(&self) -> usize {
        0
    }

    /// One of these, from 0.
    fn pass(
        &mut self,
        _index: usize,
        _models: Models,
        _batch: &Batch,
    ) -> Result<(), DiagnoseError> {
        Ok(())
    }

    /// What the passes so far found, if it is small enough to be kept on the disk.
    fn save(&self) -> Option<Value> {
        None
    }

    /// Goes on from what was saved. False if it cannot be read.
    fn restore(&mut self, _saved: &Value) -> bool {
        false
    }

    /// What it found.
    fn figures(&self) -> Vec<Figure>;

    /// Adds the numbers worth a line of text to the summary.
    fn tell(&self, _summary: &mut Summary) {}
}
