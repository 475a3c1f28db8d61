//! How much faster a cut is: both models in turn, so that any other load on the machine disturbs them alike.

use super::course::Course;
use super::error::PruneError;
use crate::timing::in_turn;
use hadal_data::Batch;
use hadal_model::{Decoder, Part, PassError, Session, Variant};
use hadal_report::statistics::{median, median_ratio};
use hadal_residual::StepMode;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Rounds that count.
const ROUNDS: usize = 11;
/// Rounds that do not count.
const WARM_UP: usize = 1;
/// Of so many rounds the third to the ninth hold the true median in 93 of 100 cases.
const OUTSIDE: usize = 2;
/// Turns of the two models.
pub(super) const TURNS: usize = 2 * (ROUNDS + WARM_UP);
/// Tokens that are read in a turn, at most.
pub(super) const READ: usize = 128;
/// Tokens that are written in a turn.
const WRITTEN: usize = 8;
/// Seconds that reading and writing take in a turn at least: small models do both several times.
const LEAST: f64 = 0.004;
/// The most times.
const MOST_TIMES: usize = 16;
/// Ends of a range that are further apart say nothing.
const SCATTER: f64 = 1.25;

/// Time without the parts, as a share of the whole model's: below 1 is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Reading, the median of all rounds.
    pub prefill: f64,
    /// Writing one token after another, the same.
    pub decode: f64,
    /// Where the median of reading is, in 93 of 100 cases. Older plans do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_range: Option<[f64; 2]>,
    /// The same of writing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_range: Option<[f64; 2]>,
    /// Tokens per second that the cut model reads.
    pub prefill_tokens_per_second: f64,
    /// Tokens per second that the cut model writes.
    pub decode_tokens_per_second: f64,
}

impl Speed {
    /// What can be said: `reading takes 78 to 84 % of the time, writing 80 %`.
    pub fn words(&self) -> String {
        let [reading, writing] = [("reading", self.prefill_range), ("writing", self.decode_range)]
            .map(|(what, range)| (what, range, range.and_then(told)));
        match (reading, writing) {
            ((.., Some(read)), (.., Some(write))) => {
                format!("reading takes {read} of the time, writing {write}")
            }
            ((.., Some(told)), (what, range, None)) | ((what, range, None), (.., Some(told))) => {
                let other = if what == "reading" { "writing" } else { "reading" };
                format!("{other} takes {told} of the time; {}", untold(what, range))
            }
            ((.., None), (.., None)) => untold("reading and writing", self.prefill_range),
        }
    }

    /// The range of reading, if rounds agree.
    pub fn reading(&self) -> Option<String> {
        self.prefill_range.and_then(told)
    }
}

/// A range whose ends are near each other.
fn told([low, high]: [f64; 2]) -> Option<String> {
    // Neither is a number otherwise.
    let steady = low > 0.0 && high <= SCATTER * low;
    let [from, to] = [low, high].map(|share| format!("{:.0}", 100.0 * share));
    steady.then(|| if from == to { format!("{to} %") } else { format!("{from} to {to} %") })
}

fn untold(what: &str, range: Option<[f64; 2]>) -> String {
    let seen = range.map_or(String::new(), |[low, high]| {
        format!(" ({:.0} to {:.0} %)", 100.0 * low, 100.0 * high)
    });
    format!("times of {what} scatter too much to say{seen}")
}

/// Times the whole and the cut model in turn on one row of a batch.
pub(super) fn speed(
    decoder: &Decoder,
    mode: &StepMode,
    batch: &Batch,
    cut: &[Part],
    course: &mut Course,
) -> Result<Speed, PruneError> {
    let room = decoder.config().max_seq_len.saturating_sub(WRITTEN).max(1);
    let row = &batch.input.ids()[..batch.input.time().min(room).min(READ)];
    let first = turn(decoder, mode, row, &[], 1)?;
    let times = (LEAST / first.0.min(first.1 * WRITTEN as f64)).ceil() as usize;
    let times = times.clamp(1, MOST_TIMES);
    let mut models = [Vec::new(), cut.to_vec()];
    let found = in_turn(&mut models, WARM_UP, ROUNDS, |cut, _| {
        let time = turn(decoder, mode, row, cut, times)?;
        course.passed()?;
        Ok::<_, PruneError>(time)
    })?;
    let [whole, cut] =
        [0, 1].map(|model| -> (Vec<f64>, Vec<f64>) { found[model].iter().copied().unzip() });
    Ok(Speed {
        prefill: median_ratio(&cut.0, &whole.0),
        decode: median_ratio(&cut.1, &whole.1),
        prefill_range: Some(range(&cut.0, &whole.0)),
        decode_range: Some(range(&cut.1, &whole.1)),
        prefill_tokens_per_second: row.len() as f64 / median(cut.0),
        decode_tokens_per_second: 1.0 / median(cut.1),
    })
}

/// Where the median of the rounds' ratios is.
fn range(cut: &[f64], whole: &[f64]) -> [f64; 2] {
    let mut ratios: Vec<f64> = cut.iter().zip(whole).map(|(cut, whole)| cut / whole).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
    [at(OUTSIDE), at(ratios.len().saturating_sub(1 + OUTSIDE))]
}

/// Seconds to read a row, and to write one token.
fn turn(
    decoder: &Decoder,
    mode: &StepMode,
    row: &[u32],
    cut: &[Part],
    times: usize,
) -> Result<(f64, f64), PassError> {
    let absent = Part::all_sites(cut);
    let count = WRITTEN.min(decoder.config().max_seq_len - row.len());
    let (mut prefill, mut decode) = (0.0, 0.0);
    for _ in 0..times {
        let variant = Variant { absent: &absent, mode, ..Variant::default() };
        let mut session = Session::new(decoder, variant)?;
        session.reserve(row.len() + WRITTEN);
        let mut step = |ids: &[u32]| -> Result<f64, PassError> {
            let started = Instant::now();
            std::hint::black_box(session.feed(ids, None)?);
            Ok(started.elapsed().as_secs_f64())
        };
        prefill += step(row)?;
        for i in 0..count {
            decode += step(&row[i % row.len()..=i % row.len()])?;
        }
    }
    let times = times as f64;
    Ok((prefill / times, decode / times / count.max(1) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_leaves_out_the_rounds_that_something_else_disturbed() {
        let whole = [1.0; 11];
        let cut = [0.81, 0.25, 0.8, 0.79, 3.0, 0.8, 0.82, 0.83, 0.8, 0.24, 9.0];
        let [low, high] = range(&cut, &whole);
        assert_eq!((low, high), (0.79, 0.83));
        assert!(range(&[], &[])[0].is_nan());
    }

    #[test]
    fn a_speed_is_a_range_or_is_not_said() {
        let speed = |prefill_range, decode_range| Speed {
            prefill: 0.8,
            decode: 0.8,
            prefill_range,
            decode_range,
            prefill_tokens_per_second: 1.0,
            decode_tokens_per_second: 1.0,
        };
        let said = |reading, writing| speed(reading, writing).words();
        let (good, same, bad) = (Some([0.78, 0.84]), Some([0.8, 0.801]), Some([0.25, 0.9]));
        assert_eq!(said(good, same), "reading takes 78 to 84 % of the time, writing 80 %");
        assert_eq!(
            said(good, bad),
            "reading takes 78 to 84 % of the time; times of writing scatter too much to say (25 to 90 %)"
        );
        assert!(
            said(bad, good).starts_with("writing takes 78 to 84 % of the time; times of reading")
        );
        assert_eq!(said(None, None), "times of reading and writing scatter too much to say");
        assert_eq!(speed(Some([f64::NAN, 1.0]), good).reading(), None);
    }
}
