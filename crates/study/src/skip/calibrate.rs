//! Thresholds for a share of FLOPs.
//!
//! A threshold is a quantile of gates. But a token that skips early changes what later gates see, so quantiles are
//! taken of the gates under the thresholds of the previous round, until the share that is really skipped is the
//! requested one, to the weight of a single token at a single sub-layer. With a threshold for each sub-layer this ends:
//! its gates depend on earlier thresholds alone.

use super::data::batches;
use super::error::SkipError;
use super::gates::Gates;
use super::measure::measure;
use super::quantile::Weights;
use super::report::{CalibrationReport, Shares, sites};
use super::{Options, Progress, checked};
use crate::{Samples, Subject};
use burn::module::Module;
use hadal_data::Batch;
use hadal_model::{Decoder, Pass, PassError, Saving, Tally, companions, replace_config, save_with};
use hadal_residual::{Site, SkippedKeys, Skipping, StepMode};
use hadal_train::SkipPer;
use std::fs;
use std::path::{Path, PathBuf};

/// The most times that the data is read; each brings the share about ten times nearer.
const MOST_ROUNDS: usize = 12;

/// What thresholds should achieve.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// Share of the skippable FLOPs.
    pub rate: f64,
    /// Which sub-layers have a threshold in common.
    pub scope: SkipPer,
    /// The share of the threshold that is taken off the gates of running tokens.
    pub shrink: f64,
    /// What becomes of the keys of tokens that skip.
    pub keys: SkippedKeys,
}

impl Aim {
    /// Takes the model's own values for options that are not given.
    pub(super) fn of(rate: f64, options: &Options, decoder: &Decoder) -> Self {
        let own = decoder.config().residual.skipping();
        let shrink = own.as_ref().map_or(0.0, |own| own.shrink);
        let keys = own.map_or(SkippedKeys::Keep, |own| own.keys);
        Self {
            rate,
            scope: options.scope,
            shrink: options.shrink.unwrap_or(shrink),
            keys: options.keys.unwrap_or(keys),
        }
    }

    /// Refuses what the model does not take, before any data is read.
    pub(super) fn try_on(&self, decoder: &Decoder) -> Result<(), SkipError> {
        let groups = self.scope.groups(2 * decoder.config().n_layers);
        Ok(decoder.clone().set_skipping(Some(self.skipping(&vec![0.0; groups.len()])))?)
    }

    /// The most passes over this many batches.
    pub(super) fn most_passes(batches: usize) -> usize {
        MOST_ROUNDS * batches
    }

    fn skipping(&self, values: &[f64]) -> Skipping {
        let thresholds = self.scope.thresholds(values);
        Skipping { thresholds, shrink: self.shrink, keys: self.keys }
    }
}

/// Sets thresholds that come nearest to the aim on these batches, and returns how often they were read. The model must
/// not be on a device with autodiff.
pub fn calibrated(
    decoder: &mut Decoder,
    mode: &StepMode,
    batches: &[Batch],
    aim: &Aim,
    told: &mut dyn FnMut(&str),
) -> Result<usize, SkipError> {
    let rate = checked(aim.rate)?;
    let count = 2 * decoder.config().n_layers;
    let groups = aim.scope.groups(count);
    let mut values = vec![0.0; groups.len()];
    decoder.set_skipping(Some(aim.skipping(&values)))?;
    let savings: Vec<Saving> =
        (0..count).map(|site| Saving::of(decoder.config(), Site::new(site))).collect();
    let mut nearest = (f64::INFINITY, values.clone());
    // Thresholds known to skip too little and too much, if there is only one.
    let (mut low, mut high) = (0.0, f64::INFINITY);
    let mut rounds = 0;
    while rounds < MOST_ROUNDS {
        rounds += 1;
        decoder.set_skipping(Some(aim.skipping(&values)))?;
        let note = format!("round {rounds}");
        let (gates, tally) = look(decoder, mode, batches, &mut || told(&note))?;
        let weights = Weights { gates: &gates, savings: &savings };
        let tokens = tally.tokens as usize;
        let all: f64 = (0..count).map(|site| weights.flops(site, tokens)).sum();
        let gated: f64 = (0..count).map(|site| weights.of_site(site)).sum();
        if gated == 0.0 {
            return Err(SkipError::NoGates);
        }
        if rate * all > gated {
            return Err(SkipError::TooMuch { rate, most: gated / all });
        }
        let share = tally.skipped_share(decoder.config());
        let miss = (share - rate).abs();
        if miss < nearest.0 {
            nearest = (miss, values.clone());
        }
        if miss <= weights.heaviest() / all {
            break;
        }
        if let [value] = values.as_slice() {
            if share < rate { low = f64::max(low, *value) } else { high = f64::min(high, *value) }
        }
        let mut next = weights.quantiles(&groups, rate * all / gated);
        if let [value] = next.as_mut_slice()
            && high.is_finite()
            && !(low < *value && *value < high)
        {
            *value = low + (high - low) / 2.0;
        }
        if next == values {
            break;
        }
        values = next;
    }
    decoder.set_skipping(Some(aim.skipping(&nearest.1)))?;
    Ok(rounds)
}

/// The gates of all tokens under the model's thresholds, and which tokens ran.
fn look(
    decoder: &Decoder,
    mode: &StepMode,
    batches: &[Batch],
    told: &mut dyn FnMut(),
) -> Result<(Gates, Tally), PassError> {
    let time = batches.first().map_or(1, |batch| batch.input.time());
    let mut gates = Gates::new(2 * decoder.config().n_layers, time);
    let mut tally = Tally::default();
    for batch in batches {
        let (probe, tally) = (Some(&mut gates as _), Some(&mut tally));
        let pass = Pass { mode, probe, tally, only_last: true, ..Pass::default() };
        decoder.logits(&batch.input, pass)?;
        gates.check().map_err(PassError::from)?;
        told();
    }
    Ok((gates, tally))
}

/// A model with thresholds.
#[derive(Debug)]
pub struct Calibrated {
    /// The result.
    pub report: CalibrationReport,
    decoder: Decoder,
    /// Where the model is, if it is finished.
    place: Option<PathBuf>,
    subject: PathBuf,
    tokenizer: Option<PathBuf>,
}

impl Calibrated {
    /// Changes the config of the model that was opened.
    pub fn write(&self) -> Result<PathBuf, SkipError> {
        let Some(place) = &self.place else {
            return Err(SkipError::Unfinished { path: self.subject.clone() });
        };
        replace_config(place, self.decoder.config())?;
        Ok(place.clone())
    }

    /// Writes a model directory, with whatever goes along with the model: all of it or nothing.
    pub fn save(&self, out: &Path) -> Result<(), SkipError> {
        check_free(out)?;
        let files = match (&self.place, &self.tokenizer) {
            (Some(place), _) => companions(place)?,
            (None, Some(tokenizer)) => vec![("tokenizer.json", hadal_files::read(tokenizer)?)],
            (None, None) => Vec::new(),
        };
        let more: Vec<_> = files.iter().map(|(name, content)| (*name, &content[..])).collect();
        Ok(save_with(&self.decoder, out, &more)?)
    }
}

/// Refuses a model whose config cannot be changed.
pub fn check_changeable(subject: &Subject) -> Result<(), SkipError> {
    match subject.model_directory() {
        Some(place) => Ok(hadal_files::check_writable(&place.join("config.json"))?),
        None => Err(SkipError::Unfinished { path: subject.path.clone() }),
    }
}

/// Refuses a directory that is not empty.
pub fn check_free(out: &Path) -> Result<(), SkipError> {
    let occupied = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
    if occupied || out.is_file() {
        return Err(SkipError::Occupied { path: out.into() });
    }
    Ok(())
}

/// Finds thresholds with which this share of the data's FLOPs is skipped.
pub fn calibrate(
    subject: &Subject,
    samples: &Samples,
    rate: f64,
    options: &Options,
    progress: Progress,
) -> Result<Calibrated, SkipError> {
    checked(rate)?;
    let mut decoder = subject.decoder.valid();
    let aim = Aim::of(rate, options, &decoder);
    aim.try_on(&decoder)?;
    let batches = batches(samples, options.batches, 2 * decoder.config().n_layers)?;
    let most = Aim::most_passes(batches.len()) + 2 * batches.len();
    let mut done = 0;
    let mut told = |note: &str| {
        done += 1;
        progress(done, most, note);
    };
    let (before, was) = measure(&decoder, &subject.mode, &batches, &mut || told("before"))?;
    let before_skipped = Shares::of(&was, decoder.config());
    let rounds = calibrated(&mut decoder, &subject.mode, &batches, &aim, &mut told)?;
    let (after, tally) = measure(&decoder, &subject.mode, &batches, &mut || told("after"))?;
    let config = decoder.config();
    let skipping = config.residual.skipping().unwrap_or(Skipping::below(0.0));
    let report = CalibrationReport {
        name: subject.name.clone(),
        residual: config.residual.to_string(),
        rate,
        scope: aim.scope,
        skip_threshold: skipping.thresholds.clone(),
        skip_shrink: skipping.shrink,
        skip_kv: skipping.keys,
        sequences: batches.iter().map(|batch| batch.input.batch() as u64).sum(),
        tokens: tally.tokens,
        rounds,
        skipped: Shares::of(&tally, config),
        before,
        before_skipped,
        after,
        sites: sites(&tally, &skipping),
    };
    Ok(Calibrated {
        report,
        decoder,
        place: subject.model_directory(),
        subject: subject.path.clone(),
        tokenizer: subject.tokenizer_file(),
    })
}
