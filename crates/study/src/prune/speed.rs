//! How much faster a cut is: both models in turn, so that any other load on the machine disturbs them alike.

use super::error::PruneError;
use crate::timing::in_turn;
use hadal_data::Batch;
use hadal_model::{Decoder, Part, PassError, Session, Variant};
use hadal_report::statistics::{median, median_ratio};
use hadal_residual::StepMode;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Rounds that count.
const ROUNDS: usize = 5;
/// Rounds that do not count.
const WARM_UP: usize = 1;
/// Tokens written in a round.
const DECODED: usize = 8;

/// Time without the parts, as a share of the whole model's: below 1 is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Reading a batch.
    pub prefill: f64,
    /// Writing one token after another.
    pub decode: f64,
    /// Tokens per second that the cut model reads.
    pub prefill_tokens_per_second: f64,
    /// Tokens per second that the cut model writes.
    pub decode_tokens_per_second: f64,
}

/// Times the whole and the cut model in turn on one row of a batch.
pub(super) fn speed(
    decoder: &Decoder,
    mode: &StepMode,
    batch: &Batch,
    cut: &[Part],
) -> Result<Speed, PruneError> {
    let time = batch.input.time();
    let row = &batch.input.ids()[..time];
    let room = decoder.config().max_seq_len.saturating_sub(DECODED).max(1);
    let row = &row[..row.len().min(room)];
    let mut models = [Vec::new(), cut.to_vec()];
    let times = in_turn(&mut models, WARM_UP, ROUNDS, |cut, _| once(decoder, mode, row, cut))?;
    let [whole, cut] =
        [0, 1].map(|model| -> (Vec<f64>, Vec<f64>) { times[model].iter().copied().unzip() });
    Ok(Speed {
        prefill: median_ratio(&cut.0, &whole.0),
        decode: median_ratio(&cut.1, &whole.1),
        prefill_tokens_per_second: row.len() as f64 / median(cut.0),
        decode_tokens_per_second: 1.0 / median(cut.1),
    })
}

/// Seconds to read a row, and to write one token.
fn once(
    decoder: &Decoder,
    mode: &StepMode,
    row: &[u32],
    cut: &[Part],
) -> Result<(f64, f64), PassError> {
    let absent = Part::all_sites(cut);
    let mut session = Session::new(decoder, Variant { absent: &absent, mode })?;
    session.reserve(row.len() + DECODED);
    let mut step = |ids: &[u32]| -> Result<f64, PassError> {
        let started = Instant::now();
        std::hint::black_box(session.feed(ids, None)?);
        Ok(started.elapsed().as_secs_f64())
    };
    let prefill = step(row)?;
    let room = decoder.config().max_seq_len - row.len();
    let count = DECODED.min(room);
    let mut decode = 0.0;
    for i in 0..count {
        decode += step(&row[i % row.len()..=i % row.len()])?;
    }
    Ok((prefill, decode / count.max(1) as f64))
}
