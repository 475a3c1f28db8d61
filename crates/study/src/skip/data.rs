//! Batches to calibrate and to measure on.

use super::error::SkipError;
use crate::Samples;
use hadal_data::Batch;

/// Gates that are kept at a time by default.
const MOST_GATES: usize = 1 << 24;

/// The first batches: as many as requested, or as many as there is memory for their gates.
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
        return Ok((vec![only.rows(0..rows / 2)], vec![only.rows(rows / 2..rows)]));
    }
    let rest = batches.split_off(batches.len() / 2);
    Ok((batches, rest))
}
