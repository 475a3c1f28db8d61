//! Batches to calibrate and to measure on.

use super::error::SkipError;
use crate::Samples;
use hadal_data::Batch;
use hadal_model::Tokens;

/// Gates that are kept at a time by default.
const MOST_GATES: usize = 1 << 24;

/// The first batches, as many as were asked for, or as there are gates in memory for.
pub(super) fn batches(
    samples: &Samples,
    wanted: Option<usize>,
    sites: usize,
) -> Result<Vec<Batch>, SkipError> {
    let mut batches = Vec::new();
    let mut gates = 0;
    for index in 0..samples.batches(wanted) {
        let batch = samples.batch(index)?;
        gates += batch.input.ids().len() * sites;
        if wanted.is_none() && gates > MOST_GATES && !batches.is_empty() {
            break;
        }
        batches.push(batch);
    }
    Ok(batches)
}

/// One half to calibrate on, the other to measure on.
pub(super) fn halves(mut batches: Vec<Batch>) -> Result<(Vec<Batch>, Vec<Batch>), SkipError> {
    if let [only] = batches.as_slice() {
        let rows = only.input.batch();
        if rows < 2 {
            return Err(SkipError::OneSequence);
        }
        return Ok((vec![part(only, 0, rows / 2)], vec![part(only, rows / 2, rows)]));
    }
    let rest = batches.split_off(batches.len() / 2);
    Ok((batches, rest))
}

/// Some rows of a batch.
pub(super) fn part(batch: &Batch, from: usize, to: usize) -> Batch {
    let time = batch.input.time();
    let (from, to) = (from * time, to * time);
    let rows = |tokens: &Tokens| {
        let ids = tokens.ids()[from..to].to_vec();
        Tokens::rows(ids, (to - from) / time).expect("rows are as long as before")
    };
    let scored = batch.scored.get(from..to).unwrap_or_default().to_vec();
    Batch { input: rows(&batch.input), target: rows(&batch.target), scored }
}
