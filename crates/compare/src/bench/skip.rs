//! Time against FLOPs where tokens skip.

use super::error::BenchError;
use super::job::{Job, SkipRate};
use super::protocol::Work;
use hadal_data::Batch;
use hadal_model::{Decoder, ModelConfig, Tally};
use hadal_report::statistics::{median, median_ratio};
use hadal_residual::StepMode;
use hadal_study::skip::{Aim, Promise, calibrated};
use hadal_train::SkipPer;
use serde::Serialize;

/// Sets thresholds with which tokens skip the job's share of every sub-layer on these batches, if it has one. The model
/// must not be on a device with autodiff.
pub(super) fn let_skip(
    decoder: &mut Decoder,
    job: &Job,
    batches: &[Batch],
) -> Result<(), BenchError> {
    let SkipRate::Rate(rate) = job.skip else { return Ok(()) };
    let own = decoder.config().residual.skipping();
    let aim = Aim {
        rate,
        scope: SkipPer::Layer,
        shrink: own.as_ref().map_or(0.0, |own| own.shrink),
        keys: decoder.config().residual.skipped_keys(),
    };
    calibrated(decoder, &StepMode::default(), batches, &aim, &mut |_| {})?;
    Ok(())
}

impl Work {
    /// The work of passes that computed every logit.
    pub(super) fn whole(tally: &Tally, config: &ModelConfig) -> Self {
        Self::of(tally, config, Tally::flops)
    }

    /// The work of passes that computed only the last logits.
    pub(super) fn depth(tally: &Tally, config: &ModelConfig) -> Self {
        Self::of(tally, config, Tally::depth_flops)
    }

    fn of(tally: &Tally, config: &ModelConfig, flops: fn(&Tally, &ModelConfig) -> u64) -> Self {
        Self {
            flop_ratio: flops(tally, config) as f64 / flops(&tally.dense(), config).max(1) as f64,
            skipped_share: tally.skipped_share(config),
        }
    }
}

/// How far time follows FLOPs where tokens skip, relative to the same model when no token skips.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SkipReport {
    /// The requested rate.
    pub rate: f64,
    /// Share of the skippable FLOPs that were skipped.
    pub skipped_share: f64,
    /// For training steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<Promise>,
    /// For reading a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Promise>,
    /// For writing after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<Promise>,
}

/// Times of one side, round by round, and what was done meanwhile.
pub(super) struct Timed {
    pub(super) ms: Vec<f64>,
    pub(super) work: Vec<Work>,
}

impl Timed {
    pub(super) fn skipped_share(&self) -> f64 {
        median(self.work.iter().map(|work| work.skipped_share))
    }

    /// FLOPs relative to those when no token skips, if they were counted.
    pub(super) fn flop_ratio(&self) -> Option<f64> {
        let counted = !self.work.is_empty();
        counted.then(|| median(self.work.iter().map(|work| work.flop_ratio)))
    }

    /// Relative to the same when no token skips.
    pub(super) fn by(&self, dense: &Self) -> Option<Promise> {
        let time = median_ratio(&self.ms, &dense.ms);
        Some(Promise::new(self.flop_ratio()?, time)).filter(|_| time.is_finite())
    }
}

impl FromIterator<(f64, Work)> for Timed {
    fn from_iter<I: IntoIterator<Item = (f64, Work)>>(rounds: I) -> Self {
        let (ms, work) = rounds.into_iter().unzip();
        Self { ms, work }
    }
}
