//! How good a model is, and what it ran.

use super::error::SkipError;
use hadal_data::Batch;
use hadal_model::{Decoder, Tally};
use hadal_residual::StepMode;
use hadal_train::quality::{self, Quality};

/// Measures a model as it is, if it computes numbers.
pub(super) fn measure(
    decoder: &Decoder,
    mode: &StepMode,
    batches: &[Batch],
    told: &mut dyn FnMut(),
) -> Result<(Quality, Tally), SkipError> {
    let (quality, tally) = quality::measure(decoder, mode, batches, told)?;
    if !quality.loss.is_finite() {
        return Err(SkipError::NotFinite { loss: quality.loss });
    }
    Ok((quality, tally))
}
