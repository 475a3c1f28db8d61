//! How good a model is, and what it ran.

use super::data::part;
use super::error::SkipError;
use hadal_data::Batch;
use hadal_model::{Decoder, Pass, Tally, negative_log_likelihood};
use hadal_residual::StepMode;
use serde::Serialize;

/// Logits that exist at a time.
const MOST_LOGITS: usize = 1 << 24;

/// How good a model is at the positions that count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Share of positions whose likeliest token is right.
    pub accuracy: f64,
}

/// Measures a model as it is.
pub(super) fn measure(
    decoder: &Decoder,
    mode: &StepMode,
    batches: &[Batch],
    told: &mut dyn FnMut(),
) -> Result<(Quality, Tally), SkipError> {
    let mut tally = Tally::default();
    let (mut loss, mut right, mut all) = (0.0, 0u64, 0u64);
    for batch in batches {
        let row = batch.input.time() * decoder.config().vocab_size;
        let rows = (MOST_LOGITS / row.max(1)).max(1);
        for from in (0..batch.input.batch()).step_by(rows) {
            let part = part(batch, from, (from + rows).min(batch.input.batch()));
            let pass = Pass { mode, tally: Some(&mut tally), ..Pass::default() };
            let logits = decoder.logits(&part.input, pass)?;
            let likeliest: Vec<i64> =
                logits.clone().argmax(2).try_into_vec_as().unwrap_or_default();
            let losses: Vec<f32> =
                negative_log_likelihood(logits, &part.target).try_into_vec_as().unwrap_or_default();
            let targets = part.target.ids().iter().zip(likeliest).zip(losses).enumerate();
            for (place, ((&target, likeliest), nats)) in targets {
                if part.scored.get(place).is_none_or(|&scored| scored) {
                    loss += f64::from(nats);
                    right += u64::from(likeliest == i64::from(target));
                    all += 1;
                }
            }
        }
        told();
    }
    let count = all.max(1) as f64;
    let loss = loss / count;
    if !loss.is_finite() {
        return Err(SkipError::NotFinite { loss });
    }
    let quality = Quality { loss, perplexity: loss.exp(), accuracy: right as f64 / count };
    Ok((quality, tally))
}
