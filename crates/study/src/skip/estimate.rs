//! What a calibration or a sweep will take, without making it.

use super::calibrate::Aim;
use super::data::{batches, halves};
use super::error::SkipError;
use super::speed::PASSES;
use super::{Options, checked};
use crate::estimate::{Estimate, Rate, memory};
use crate::{Samples, Subject};
use burn::module::Module;
use hadal_data::Batch;

/// Times a short pass. With `rates` it is a sweep over these, otherwise one calibration.
pub fn estimate(
    subject: &Subject,
    samples: &Samples,
    rates: Option<&[f64]>,
    options: &Options,
) -> Result<Estimate, SkipError> {
    for &rate in rates.into_iter().flatten() {
        checked(rate)?;
    }
    let decoder = subject.decoder.valid();
    Aim::of(0.0, options, &decoder).try_on(&decoder)?;
    let config = decoder.config();
    let sites = 2 * config.n_layers;
    let all = batches(samples, options.batches, sites)?;
    let (learned, measured) = match rates {
        Some(_) => halves(all)?,
        None => (all.clone(), [all.clone(), all].concat()),
    };
    let rate = Rate::measure(&decoder, &subject.mode, &learned[0])?;
    let tokens = |batches: &[Batch]| batches.iter().map(|b| b.input.ids().len()).sum::<usize>();
    let mean = tokens(&learned) / learned.len();
    let (times, timing) = rates.map_or((1, 0), |rates| (rates.len(), PASSES));
    // One round at least, and a pass for each batch that is measured or timed.
    let passes = [learned.len(), Aim::most_passes(learned.len())]
        .map(|calibrating| times * (calibrating + measured.len() + timing));
    let seconds = passes.map(|passes| (passes * mean) as f64 * rate.whole);
    // Gates of all tokens are kept as f64; logits are those of the last token, or of a piece while quality is measured.
    let gates = 8.0 * (tokens(&learned) * sites) as f64;
    let logits =
        hadal_train::quality::MOST_LOGITS.min(mean * config.vocab_size) / config.vocab_size;
    let memory = gates + memory(subject, mean as u64, 1, 2 * logits as u64);
    Ok(Estimate { passes, seconds, memory, tokens_per_second: 1.0 / rate.whole })
}
