//! How good a model is on a batch: losses and likeliest tokens, read back from the device.

use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_kernels::{ReadBackError, read_back};
use hadal_model::{Decoder, Pass, PassError, Tally, Tokens, negative_log_likelihood};
use hadal_residual::StepMode;
use serde::{Deserialize, Serialize};

/// Logits that exist at a time.
pub const MOST_LOGITS: usize = 1 << 24;

/// How good a model is at the positions that count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Share of positions whose likeliest token is right.
    pub accuracy: f64,
}

/// The only element of a tensor.
pub fn scalar(tensor: &Tensor<1>) -> Result<f64, ReadBackError> {
    Ok(f64::from(read_back(tensor.clone())?[0]))
}

/// The mean loss of a batch, whose logits are never held.
pub fn mean_loss(decoder: &Decoder, batch: &Batch, pass: Pass) -> Result<f64, PassError> {
    let loss = decoder.loss(&batch.input, &batch.target, &batch.scored, pass)?;
    Ok(scalar(&loss)?)
}

/// The loss of each position.
pub fn losses(logits: Tensor<3>, target: &Tokens) -> Result<Vec<f32>, ReadBackError> {
    read_back(negative_log_likelihood(logits, target))
}

/// The likeliest token of each position.
pub fn likeliest(logits: Tensor<3>) -> Result<Vec<u32>, ReadBackError> {
    // An f32 holds every token: no vocabulary has 2^24 of them.
    let ids = read_back(logits.argmax(2).float())?;
    Ok(ids.into_iter().map(|id| id as u32).collect())
}

/// Measures a model on batches, position by position, and counts what ran. `told` is called after each batch.
pub fn measure(
    decoder: &Decoder,
    mode: &StepMode,
    batches: &[Batch],
    told: &mut dyn FnMut(),
) -> Result<(Quality, Tally), PassError> {
    let mut tally = Tally::default();
    let (mut loss, mut right, mut all) = (0.0, 0u64, 0u64);
    for batch in batches {
        for piece in batch.pieces(MOST_LOGITS / decoder.config().vocab_size) {
            let pass = Pass { mode, tally: Some(&mut tally), ..Pass::default() };
            let logits = decoder.logits(&piece.input, pass)?;
            let likeliest = likeliest(logits.clone())?;
            let losses = losses(logits, &piece.target)?;
            let targets = piece.target.ids().iter().zip(likeliest).zip(losses).enumerate();
            for (position, ((&target, likeliest), nats)) in targets {
                if piece.counts(position) {
                    loss += f64::from(nats);
                    right += u64::from(likeliest == target);
                    all += 1;
                }
            }
        }
        told();
    }
    let count = all.max(1) as f64;
    let loss = loss / count;
    Ok((Quality { loss, perplexity: loss.exp(), accuracy: right as f64 / count }, tally))
}
