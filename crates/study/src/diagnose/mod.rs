//! What the layers of a model really do: the figures of the Multi-Gate Residuals paper and of the literature on
//! dilution, attention sinks, massive activations and layer pruning, as data.
//!
//! All diagnostics watch one forward (and backward) pass through the model that training and decoding use; none has a
//! forward pass of its own. See `docs/diagnose.md` for what each figure means.

mod activations;
mod diagnostic;
mod distance;
mod distribution;
mod draw;
mod error;
mod files;
mod gradient;
mod kind;
mod lanes;
mod output;
mod overlay;
mod removal;
mod sink;
mod skips;
mod summary;
mod sums;
#[cfg(test)]
mod tests;
mod values;
mod watch;
mod writes;
mod xiong;

pub use error::DiagnoseError;
pub(crate) use files::Files;
pub use files::write;
pub use kind::Kind;
pub use overlay::overlay;
pub use summary::{
    LanesSummary, Largest, MASSIVE, Removal, SkipsSummary, Summary, TokenSkips, USELESS,
};

pub(crate) use activations::SAMPLES;
pub(crate) use diagnostic::Diagnostic;
pub(crate) use distance::{Distance, last_tokens};
pub(crate) use sums::Mean;
pub(crate) use values::{Values, angle};
pub(crate) use watch::watch;

use crate::{Samples, Subject};
use activations::Activations;
use burn::module::Module;
use distribution::Distribution;
use gradient::Gradient;
use hadal_model::{Decoder, Variant};
use hadal_report::figure::{Figure, Quartiles};
use hadal_train::Midway;
use lanes::Lanes;
use output::Output;
use removal::Removals;
use sink::Sink;
use skips::Skips;
use std::path::PathBuf;
use writes::Writes;
use xiong::Bounds;

/// What to look at, and how long.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Batches of about 2048 tokens; by default enough for 512 sequences or 65,536 tokens.
    pub batches: Option<usize>,
    /// Which diagnostics; all if this is empty.
    pub only: Vec<Kind>,
}

impl Options {
    fn has(&self, kind: Kind) -> bool {
        self.only.is_empty() || self.only.contains(&kind)
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnosis {
    /// The most telling numbers.
    pub summary: Summary,
    /// Everything, as charts.
    pub figures: Vec<Figure>,
}

/// Diagnoses what was opened. `progress` receives the number of passes done and their total.
pub fn diagnose(
    subject: &Subject,
    samples: &Samples,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Diagnosis, DiagnoseError> {
    let mut diagnosis = look(&subject.decoder, subject.variant(), samples, options, progress)?;
    diagnosis.summary.name.clone_from(&subject.name);
    diagnosis.summary.step = subject.step;
    Ok(diagnosis)
}

/// Diagnoses a run in progress and writes the results into its folder: `diagnosis` has the newest figures, and a folder
/// for each diagnosed step. Returns where that is.
pub fn diagnose_midway(midway: &Midway<'_>) -> Result<(Summary, PathBuf), DiagnoseError> {
    let options = Options { batches: Some(midway.batches), ..Options::default() };
    let samples = Samples::lent(midway.feed);
    let mut found =
        look(midway.decoder, Variant::in_mode(midway.mode), &samples, &options, &mut |_, _| {})?;
    midway.name.clone_into(&mut found.summary.name);
    found.summary.step = Some(midway.step);
    let path = midway.folder.join("diagnosis");
    let of_step = path.join(format!("step-{:09}", midway.step));
    for directory in [&of_step, &path] {
        write(directory, &found.figures, std::slice::from_ref(&found.summary))?;
    }
    Ok((found.summary, path))
}

/// Diagnoses a model, which must be on a device with autodiff.
fn look(
    decoder: &Decoder,
    variant: Variant,
    samples: &Samples,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Diagnosis, DiagnoseError> {
    let config = decoder.config();
    let plain = decoder.valid();
    let mut diagnostics = diagnostics(&plain, samples, options);
    let learns = diagnostics.iter().any(|diagnostic| diagnostic.wants_gradients());
    let batches = samples.batches(options.batches);
    let passes = batches * (1 + diagnostics.iter().map(|d| d.passes()).sum::<usize>());
    let mut done = 0;
    let mut told = || {
        done += 1;
        progress(done, passes);
    };
    let mut summary = Summary {
        residual: config.residual.to_string(),
        blocks: config.n_layers,
        ..Summary::default()
    };
    let (mut loss, mut positions) = (0.0, 0);
    for index in 0..batches {
        let batch = samples.batch(index)?;
        let model = if learns { decoder } else { &plain };
        let mut all: Vec<&mut dyn Diagnostic> = Vec::new();
        for diagnostic in &mut diagnostics {
            all.push(diagnostic.as_mut());
        }
        loss += watch(model, variant, &batch, &mut all)?;
        if !loss.is_finite() {
            return Err(DiagnoseError::NotFinite { loss });
        }
        positions += batch.positions();
        summary.sequences += batch.input.batch() as u64;
        summary.tokens += batch.input.ids().len() as u64;
        told();
        for diagnostic in &mut diagnostics {
            diagnostic.ask(&plain, variant, &batch, &mut told)?;
        }
    }
    summary.loss = loss / positions.max(1) as f64;
    summary.perplexity = summary.loss.exp();
    diagnostics.iter().for_each(|diagnostic| diagnostic.tell(&mut summary));
    let figures = diagnostics.iter().flat_map(|diagnostic| diagnostic.figures()).collect();
    Ok(Diagnosis { summary, figures })
}

/// The requested diagnostics for which the model has anything to show.
fn diagnostics(
    decoder: &Decoder,
    samples: &Samples,
    options: &Options,
) -> Vec<Box<dyn Diagnostic>> {
    let config = decoder.config();
    let blocks = config.n_layers;
    let bounds = || Bounds::new(&config.residual, &config.dimensions());
    let lanes = lanes::parameters(decoder);
    let log_gain = lanes.as_ref().map_or(0.0, |(_, log_gain)| *log_gain);
    let wanted = Kind::ALL.into_iter().filter(|kind| options.has(*kind));
    wanted
        .filter_map(|kind| -> Option<Box<dyn Diagnostic>> {
            Some(match kind {
                Kind::Output => Box::new(Output::new(blocks, bounds(), log_gain)),
                Kind::Gradients => Box::new(Gradient::new(blocks)),
                Kind::Writes => Box::new(Writes::new(blocks, bounds())),
                Kind::Distance => Box::new(Distance::new(blocks)),
                Kind::Removal => Box::new(Removals::new(blocks)),
                Kind::Activations => Box::new(Activations::new(blocks)),
                Kind::Gates => Box::new(Distribution::gates(blocks)),
                Kind::Pools => Box::new(Distribution::pools(blocks)),
                Kind::Lanes => {
                    let (alphas, log_gain) = lanes.clone()?;
                    Box::new(Lanes::new(alphas, log_gain))
                }
                Kind::Sink => Box::new(Sink::new(blocks)),
                Kind::Skips => Box::new(Skips::new(config, samples.tokenizer())),
            })
        })
        .collect()
}
