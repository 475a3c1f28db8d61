//! How good a model is on held-out data.

use super::quality::{likeliest, scalar};
use hadal_data::{Batch, Feed, FeedError};
use hadal_model::{Decoder, PassError, Variant, masked_cross_entropy};
use serde::Serialize;
use std::ops::Range;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Bits per UTF-8 byte, where there is a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    /// Share of answers that are right, where there are answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Share of sequences whose answers are all right, where there are answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<f64>,
}

/// What was measured of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    /// Mean cross-entropy in nats.
    pub(crate) loss: f64,
    /// Right answers and all answers.
    pub(crate) positions: (usize, usize),
    /// Sequences whose answers are all right, and all sequences.
    pub(crate) sequences: (usize, usize),
}

/// Measures a model without autodiff on some of the held-out batches.
pub(crate) fn measure(
    decoder: &Decoder,
    variant: Variant,
    feed: &Feed,
    batches: Range<usize>,
    batch: usize,
) -> Result<Vec<Measured>, EvaluateError> {
    let one = |i: usize| -> Result<Measured, EvaluateError> {
        let held_out = feed.held_out((i * batch) as u64, batch)?;
        let logits = decoder.logits(&held_out.input, variant.pass())?;
        let mut measured = Measured::default();
        if !held_out.scored.is_empty() {
            let likeliest = likeliest(logits.clone()).map_err(PassError::from)?;
            measured.count(&likeliest, &held_out);
        }
        let loss = masked_cross_entropy(logits, &held_out.target, &held_out.scored);
        measured.loss = scalar(&loss).map_err(PassError::from)?;
        Ok(measured)
    };
    batches.map(one).collect()
}

impl Evaluation {
    /// Of all batches, in order.
    pub(crate) fn of(measured: &[Measured], feed: &Feed) -> Self {
        let mut total = 0.0;
        let mut all = Measured::default();
        for batch in measured {
            total += batch.loss;
            for (sum, more) in
                [(&mut all.positions, batch.positions), (&mut all.sequences, batch.sequences)]
            {
                *sum = (sum.0 + more.0, sum.1 + more.1);
            }
        }
        let loss = total / measured.len() as f64;
        let share = |(right, all): (usize, usize)| (all > 0).then(|| right as f64 / all as f64);
        Self {
            loss,
            perplexity: loss.exp(),
            bits_per_byte: feed
                .bytes_per_token()
                .map(|bytes| loss / std::f64::consts::LN_2 / bytes),
            accuracy: share(all.positions),
            exact_match: share(all.sequences),
        }
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// There is no data.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The model cannot be run.
    #[error(transparent)]
    Pass(#[from] PassError),
}

impl Measured {
    fn count(&mut self, likeliest: &[u32], batch: &Batch) {
        let time = batch.target.time();
        for row in 0..batch.target.batch() {
            let positions = (row * time..(row + 1) * time).filter(|&i| batch.scored[i]);
            let right: Vec<bool> =
                positions.map(|i| likeliest[i] == batch.target.ids()[i]).collect();
            self.positions.0 += right.iter().filter(|&&r| r).count();
            self.positions.1 += right.len();
            self.sequences.0 += usize::from(right.iter().all(|&r| r));
            self.sequences.1 += 1;
        }
    }
}
