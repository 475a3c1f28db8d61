//! What stands in for mixers, while a model runs and in its parameters.

use super::{Mixers, Prediction};
use crate::diagnose::{StandIn, Steer, Values, everywhere};
use crate::prune::course::Course;
use crate::prune::error::PruneError;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_kernels::{ReadBackError, read_back};
use hadal_model::{
    ConfigError, Decoder, Device, ModelConfig, Pass, PassError, Variant, apart, some_tokens,
};
use hadal_residual::{Chosen, Place, Probe, Signal, Site};
use hadal_train::quality::mean_loss;
use std::collections::{BTreeMap, HashMap};

/// Difference of logits, relative to the largest, that rounding can explain.
const ROUNDING: f32 = 1e-4;

/// Sums of mixers over tokens.
#[derive(Default)]
struct Sums {
    by_site: BTreeMap<usize, (Vec<f64>, u64)>,
    failed: Option<ReadBackError>,
}

impl Probe for Sums {
    fn wants(&self, signal: Signal) -> bool {
        signal == Signal::Mixing
    }

    fn record(&mut self, place: Place, _: Signal, value: Tensor<4>) {
        let Place::Site(Site { index }) = place else { return };
        let values = match Values::of(value) {
            Ok(values) => values,
            Err(error) => {
                self.failed = Some(error);
                return;
            }
        };
        let entries = values.streams() * values.features();
        let (sum, count) = self.by_site.entry(index).or_default();
        sum.resize(entries, 0.0);
        for token in values.all().chunks(entries) {
            sum.iter_mut().zip(token).for_each(|(sum, &value)| *sum += f64::from(value));
            *count += 1;
        }
    }
}

/// The mean of every mixer over the tokens of the data.
pub(super) fn means(
    decoder: &Decoder,
    variant: Variant,
    batches: &[Batch],
    course: &mut Course,
) -> Result<Mixers, PruneError> {
    let mut sums = Sums::default();
    for batch in batches {
        let pass = Pass { probe: Some(&mut sums), ..variant.pass() };
        mean_loss(decoder, batch, pass)?;
        if let Some(error) = sums.failed.take() {
            return Err(PassError::from(error).into());
        }
        course.passed()?;
    }
    let mean = |(site, (sum, count)): (usize, (Vec<f64>, u64))| {
        (site, sum.into_iter().map(|sum| sum / count as f64).collect())
    };
    Ok(sums.by_site.into_iter().map(mean).collect())
}

/// The mean loss, with some mixers replaced while the model runs.
pub(super) fn loss(
    decoder: &Decoder,
    variant: Variant,
    replaced: Option<&Mixers>,
    batches: &[Batch],
    course: &mut Course,
) -> Result<Prediction, PruneError> {
    let (mut sum, mut positions) = (0.0, 0);
    for batch in batches {
        let loss = match replaced {
            None => mean_loss(decoder, batch, variant.pass())?,
            Some(mixers) => {
                let mut probe = replacing(mixers);
                mean_loss(decoder, batch, Pass { probe: Some(&mut probe), ..variant.pass() })?
            }
        };
        sum += loss * batch.positions() as f64;
        positions += batch.positions();
        course.passed()?;
    }
    let loss = sum / positions.max(1) as f64;
    Ok(Prediction { loss, perplexity: loss.exp() })
}

/// A probe that replaces mixers.
pub(super) fn replacing(
    mixers: &Mixers,
) -> Steer<impl FnMut(Place, Signal, Tensor<4>) -> Tensor<4>> {
    Steer(|place, signal, value: Tensor<4>| match (place, signal) {
        (Place::Site(Site { index }), Signal::Mixing) => match mixers.get(&index) {
            Some(mixer) => everywhere(mixer, &value),
            None => value,
        },
        _ => value,
    })
}

/// The model whose parameters say what stands in for its mixers. If none is left, neither are their parameters.
pub(super) fn with_mixers(
    decoder: &Decoder,
    by: StandIn,
    mixers: &Mixers,
) -> Result<Decoder, PruneError> {
    let config = decoder.config();
    let all = mixers.len() == 2 * config.n_layers && by == StandIn::Identity;
    let unmixed = if all { config.residual.without_mixers() } else { None };
    let old: HashMap<String, Vec<f32>> = decoder.parameters().into_iter().collect();
    let shapes: HashMap<&str, &[usize]> =
        decoder.declared().iter().map(|d| (d.name.as_str(), d.shape.as_slice())).collect();
    let fixed: Chosen = match &unmixed {
        Some(_) => Box::new(|_, _| None),
        None => config.residual.fixed_mixers(mixers).map_err(ConfigError::from)?,
    };
    let result = ModelConfig {
        residual: unmixed.clone().unwrap_or_else(|| config.residual.clone()),
        ..config.clone()
    };
    let mut missing = None;
    let mut stored = |name: &str, shape: &[usize]| {
        let kept = || old.get(name).filter(|_| shapes.get(name) == Some(&shape)).cloned();
        let values = fixed(name, shape).or_else(kept);
        if values.is_none() {
            missing.get_or_insert_with(|| name.to_owned());
        }
        values
    };
    let cut = Decoder::stored(&result, &mut stored, &Device::flex())?;
    match missing {
        None => Ok(cut),
        Some(name) => Err(PruneError::MixersDiffer {
            residual: config.residual.to_string(),
            reason: format!("{name} has no counterpart of its shape"),
        }),
    }
}

/// Holds the result to the model whose mixers are replaced while it runs, and returns how far their logits are apart.
pub(super) fn proven(
    decoder: &Decoder,
    cut: &Decoder,
    variant: Variant,
    mixers: &Mixers,
) -> Result<f32, PruneError> {
    let tokens = some_tokens(decoder.config())?;
    let mut probe = replacing(mixers);
    let pass = Pass { probe: Some(&mut probe), ..variant.pass() };
    let wanted = read_back(decoder.logits(&tokens, pass)?).map_err(PassError::from)?;
    let found = read_back(cut.logits(&tokens, variant.pass())?).map_err(PassError::from)?;
    let difference = apart(&wanted, &found);
    if difference > ROUNDING {
        return Err(PruneError::MixersDiffer {
            residual: decoder.config().residual.to_string(),
            reason: format!(
                "its parameters cannot say what was measured: logits would move by {difference:.1e} of the largest"
            ),
        });
    }
    Ok(difference)
}
