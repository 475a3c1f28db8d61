//! What the layers of a model really do: the figures of the Multi-Gate Residuals paper and of the literature on
//! dilution, attention sinks, massive activations and layer pruning, as data.
//!
//! All diagnostics watch one forward pass through the model that training and decoding use; gradients and removals take
//! passes of their own, one after another, so that little is in memory at a time. See `docs/diagnose.md` for what each figure means.

mod activations;
mod causal;
mod collapse;
mod connectivity;
mod diagnostic;
mod distance;
mod distribution;
mod draw;
mod error;
pub(crate) mod exact;
mod exchange;
mod files;
mod gradient;
pub(crate) mod identity;
mod journal;
mod kind;
mod lanes;
mod least_squares;
mod look;
mod mixer;
mod observer;
mod output;
mod overlay;
mod page;
mod permutation;
mod plan;
mod removal;
mod rescue;
mod sink;
mod skips;
mod solve;
mod spectrum;
mod spikes;
mod steer;
mod streams;
mod summary;
mod sums;
mod surgery;
#[cfg(test)]
mod tests;
mod usefulness;
mod values;
mod verdict;
mod watch;
mod writes;
mod xiong;

pub use causal::CausalSummary;
pub use collapse::{CollapseSummary, TokenRanks};
pub use connectivity::ConnectivitySummary;
pub use error::DiagnoseError;
pub(crate) use files::Files;
pub use files::{PAGE, write};
pub use journal::Journal;
pub use kind::Kind;
pub use observer::Observer;
pub use overlay::overlay;
pub use page::{Context, next, page};
pub use permutation::PermutationSummary;
pub use plan::{Plan, memory, plan};
pub use rescue::{PairSummary, RescueSummary};
pub use summary::{
    LanesSummary, Largest, MASSIVE, Refusal, Removal, SkipsSummary, StreamsSummary, Summary,
    TokenSkips, USELESS,
};
pub use surgery::{MixersSummary, StandIn, SurgerySummary};
pub use usefulness::UsefulnessSummary;
pub use verdict::{CARRIES, HARDLY, SINK, UNEVEN, Verdict};

pub(crate) use activations::SAMPLES;
pub(crate) use diagnostic::Diagnostic;
pub(crate) use distance::{Distance, last_tokens};
pub(crate) use steer::{Steer, Steerable, everywhere, steerable};
pub(crate) use sums::Mean;
pub(crate) use values::{Values, angle};
pub(crate) use watch::watch;

use crate::{Samples, Subject};
use activations::Activations;
use causal::Causal;
use collapse::Collapse;
use connectivity::Connectivity;
use distribution::Distribution;
use gradient::Gradient;
use hadal_model::{Decoder, Variant};
use hadal_report::figure::{Figure, Quartiles};
use hadal_train::Midway;
use identity::Identity;
use lanes::Lanes;
use look::{Notes, look};
use output::Output;
use permutation::Permutation;
use removal::Removals;
use rescue::Rescue;
use sink::Sink;
use skips::Skips;
use std::path::PathBuf;
use streams::Streams;
use surgery::Surgery;
use usefulness::Usefulness;
use writes::Writes;
use xiong::Bounds;

/// What to look at, and how long.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Batches of about 2048 tokens; by default enough for 512 sequences or 65,536 tokens.
    pub batches: Option<usize>,
    /// Which diagnostics; all but the dear ones if this is empty.
    pub only: Vec<Kind>,
}

impl Options {
    /// The diagnostics that are asked for.
    pub fn kinds(&self) -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|kind| self.has(*kind)).collect()
    }

    fn has(&self, kind: Kind) -> bool {
        match self.only.is_empty() {
            true => !kind.is_dear(),
            false => self.only.contains(&kind),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnosis {
    /// The most telling numbers.
    pub summary: Summary,
    /// Everything, as charts.
    pub figures: Vec<Figure>,
    /// The diagnostics that these are of.
    pub shown: Vec<Kind>,
}

impl Diagnosis {
    /// Says of everything that was asked for and shows nothing why it does not.
    fn refuse_the_rest(&mut self, options: &Options) {
        for kind in options.kinds().into_iter().filter(|kind| !self.shown.contains(kind)) {
            self.summary.refuse(kind, kind.nothing());
        }
    }
}

/// Diagnoses what was opened, going on where the journal says that an earlier try got. `None` if the observer stopped it;
/// the journal then has what was found.
pub fn diagnose(
    subject: &Subject,
    samples: &Samples,
    options: &Options,
    journal: &mut Journal,
    observer: &mut dyn Observer,
) -> Result<Option<Diagnosis>, DiagnoseError> {
    let batches = samples.batches(options.batches);
    let identity = Identity::of(subject, samples, batches)?;
    let (entry, differs) = journal.begin(&subject.path, identity);
    if !differs.is_empty() {
        let differs = differs.join(" and ");
        observer.note(&format!(
            "an earlier diagnosis was interrupted, but it was of {differs}: begins anew"
        ));
    } else if !entry.done.is_empty() || entry.begun.is_some() {
        observer.note(&format!("goes on; done before: {}", journal.words().join(", ")));
    }
    let notes = Notes { journal, place: &subject.path };
    let (decoder, variant) = (&subject.decoder, subject.variant());
    let mut found = look(decoder, variant, samples, options, Some(notes), observer)?;
    if let Some(diagnosis) = &mut found {
        diagnosis.summary.name.clone_from(&subject.name);
        diagnosis.summary.step = subject.step;
        if options.has(Kind::Spikes) && subject.config.is_some() {
            spikes::add(diagnosis, &subject.path);
        }
        if !options.only.is_empty() {
            diagnosis.refuse_the_rest(options);
        }
    }
    Ok(found)
}

/// Diagnoses a run in progress and writes the results into its folder: `diagnosis` has the newest figures, and a folder
/// for each diagnosed step. Returns where that is.
pub fn diagnose_midway(midway: &Midway<'_>) -> Result<(Summary, PathBuf), DiagnoseError> {
    let options = Options { batches: Some(midway.batches), ..Options::default() };
    let samples = Samples::lent(midway.feed);
    let variant = Variant::in_mode(midway.mode);
    // Nobody stops it, so something was found.
    let found = look(midway.decoder, variant, &samples, &options, None, &mut ())?;
    let Diagnosis { mut summary, figures, .. } = found.unwrap_or_default();
    midway.name.clone_into(&mut summary.name);
    summary.step = Some(midway.step);
    let path = midway.folder.join("diagnosis");
    let of_step = path.join(format!("step-{:09}", midway.step));
    let summaries = std::slice::from_ref(&summary);
    write(&of_step, &figures, summaries, None)?;
    let context = Context { models: midway.name.to_owned(), ..Context::default() };
    write(&path, &figures, summaries, Some(page(summaries, &figures, &context)))?;
    Ok((summary, path))
}

/// The requested diagnostics for which the model has anything to show.
fn diagnostics(
    decoder: &Decoder,
    variant: Variant,
    samples: &Samples,
    options: &Options,
) -> Vec<(Kind, Box<dyn Diagnostic>)> {
    let config = decoder.config();
    let blocks = config.n_layers;
    let bounds = || Bounds::new(&config.residual, &config.dimensions());
    let lanes = lanes::parameters(decoder);
    let log_gain = lanes.as_ref().map_or(0.0, |(_, log_gain)| *log_gain);
    let asks = [Kind::Surgery, Kind::Rescue].iter().any(|&kind| options.has(kind));
    // A model that cannot read a token fails where the data is read, and says why.
    let steerable = asks.then(|| steerable(decoder, variant).ok()).flatten().unwrap_or_default();
    let streams = (steerable.streams > 1).then_some(steerable);
    (options.kinds().into_iter())
        .filter_map(|kind| -> Option<(Kind, Box<dyn Diagnostic>)> {
            let diagnostic: Box<dyn Diagnostic> = match kind {
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
                Kind::Streams => Box::new(Streams::new(blocks)),
                Kind::Connectivity => {
                    Box::new(Connectivity::new(config.residual.about().kind, blocks))
                }
                Kind::Collapse => Box::new(Collapse::new(blocks)),
                Kind::Surgery => Box::new(Surgery::new(blocks, streams?)),
                Kind::Rescue => Box::new(Rescue::new(blocks, streams?)),
                Kind::Causal => Box::new(Causal::new(blocks)),
                Kind::Permutation => Box::new(Permutation::new(decoder)),
                Kind::Usefulness => Box::new(Usefulness::new(config)),
                // It looks at a run's metrics and not at its model.
                Kind::Spikes => return None,
            };
            Some((kind, diagnostic))
        })
        .collect()
}
