//! What skipping costs and saves: one point for each rate.

use super::Quality;
use super::calibrate::{Aim, calibrated};
use super::data::{batches, halves};
use super::error::SkipError;
use super::measure::measure;
use super::promise::Promise;
use super::report::Shares;
use super::speed::{PASSES, speed};
use super::{Options, Progress, checked};
use crate::diagnose::identity::Identity;
use crate::kept::{Kept, KeptError};
use crate::prune::hash_into;
use crate::{Samples, Subject};
use burn::module::Module;
use hadal_data::Batch;
use hadal_residual::{SkippedKeys, Thresholds};
use hadal_train::SkipPer;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The requested rate on the calibration data.
    pub rate: f64,
    /// The gates below which tokens skip.
    pub skip_threshold: Thresholds,
    /// What was skipped of the other data.
    pub skipped: Shares,
    /// How good the model is there.
    #[serde(flatten)]
    pub quality: Quality,
    /// Mean forward FLOPs of a token, including the head's.
    pub flops_per_token: f64,
    /// Tokens read per second.
    pub tokens_per_second: f64,
    /// The same when no token skips, measured in turn.
    pub dense_tokens_per_second: f64,
    /// How far the time of reading follows its FLOPs.
    pub prefill: Promise,
}

/// All rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sweep {
    /// Which model.
    pub name: String,
    /// Its residual policy, as it was.
    pub residual: String,
    /// Which sub-layers have a threshold in common.
    pub scope: SkipPer,
    /// Share of the threshold that is taken off the gates of running tokens.
    pub skip_shrink: f64,
    /// What becomes of the keys of tokens that skip.
    pub skip_kv: SkippedKeys,
    /// Tokens that thresholds were calibrated on.
    pub calibration_tokens: u64,
    /// Tokens that were measured.
    pub tokens: u64,
    /// One for each requested rate, in that order.
    pub points: Vec<Point>,
}

/// Where points are kept until all of them are there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep<'a> {
    /// The file; without one, a sweep that is stopped begins anew.
    pub path: Option<&'a Path>,
    /// Whether what is of another model may go.
    pub force: bool,
}

impl Keep<'_> {
    fn open(self, subject: &Subject, samples: &Samples) -> Result<Kept<Point>, SkipError> {
        let Some(path) = self.path else { return Ok(Kept::default()) };
        // Data is part of each point's name.
        let identity = Identity::of(subject, samples, 0)?;
        let of = serde_json::to_string(&identity).unwrap_or_default();
        Kept::open(path, of, self.force).map_err(|error| match error {
            KeptError::File(error) => error.into(),
            KeptError::Other => SkipError::OtherMeasurements { path: path.into() },
        })
    }
}

/// All that a point depends on, besides the program and the model.
fn name(rate: f64, aim: &Aim, batches: &[Batch]) -> String {
    let mut hasher = blake3::Hasher::new();
    batches.iter().for_each(|batch| hash_into(&mut hasher, batch));
    let Aim { scope, shrink, keys, .. } = aim;
    format!("{rate:?} {scope:?} {shrink:?} {keys:?} {}", hasher.finalize())
}

/// Calibrates for each rate on one half of the data and measures on the other. Points of an earlier sweep that was
/// stopped are not measured again.
pub fn sweep(
    subject: &Subject,
    samples: &Samples,
    rates: &[f64],
    options: &Options,
    keep: Keep,
    progress: Progress,
) -> Result<Sweep, SkipError> {
    for &rate in rates {
        checked(rate)?;
    }
    let (mut decoder, mode) = (subject.decoder.valid(), &subject.mode);
    let aim = Aim::of(0.0, options, &decoder);
    aim.try_on(&decoder)?;
    let sites = 2 * decoder.config().n_layers;
    let mut kept = keep.open(subject, samples)?;
    let all = batches(samples, options.batches, sites)?;
    let names: Vec<String> = rates.iter().map(|&rate| name(rate, &aim, &all)).collect();
    let (learned, held_out) = halves(all)?;
    let mut dense = decoder.clone();
    dense.set_skipping(None)?;
    let each = Aim::most_passes(learned.len()) + held_out.len() + PASSES;
    let mut points = Vec::new();
    for (index, &rate) in rates.iter().enumerate() {
        let mut done = index * each;
        if let Some(point) = kept.get(&names[index]) {
            progress(done + each, rates.len() * each, &format!("rate {rate}: known"));
            points.push(point.clone());
            continue;
        }
        let mut told = |note: &str| {
            done += 1;
            progress(done, rates.len() * each, &format!("rate {rate}: {note}"));
        };
        calibrated(&mut decoder, mode, &learned, &Aim { rate, ..aim }, &mut told)?;
        let (quality, tally) = measure(&decoder, mode, &held_out, &mut || told("measuring"))?;
        let speed = speed([&dense, &decoder], mode, &held_out, &mut || told("timing"))?;
        let config = decoder.config();
        let point = Point {
            rate,
            skip_threshold: config
                .residual
                .skipping()
                .map_or(Thresholds::One(0.0), |skipping| skipping.thresholds),
            skipped: Shares::of(&tally, config),
            quality,
            flops_per_token: tally.flops(config) as f64 / tally.tokens.max(1) as f64,
            tokens_per_second: speed.tokens_per_second,
            dense_tokens_per_second: speed.dense_tokens_per_second,
            prefill: speed.promise,
        };
        kept.put(names[index].clone(), point.clone());
        kept.save()?;
        points.push(point);
    }
    let count = |batch: &Batch| batch.input.ids().len() as u64;
    Ok(Sweep {
        name: subject.name.clone(),
        residual: subject.model().residual.to_string(),
        scope: aim.scope,
        skip_shrink: aim.shrink,
        skip_kv: aim.keys,
        calibration_tokens: learned.iter().map(count).sum(),
        tokens: held_out.iter().map(count).sum(),
        points,
    })
}
