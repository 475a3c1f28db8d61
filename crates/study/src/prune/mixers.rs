//! Mixers of a trained model with several streams, replaced by matrices that do not depend on the token: the identity, or
//! their mean over tokens. What that costs is measured first, on data that nothing was chosen on, and the model that is
//! written is compared with the whole one whose mixers are replaced while it runs.
//!
//! In DeepSeek-V4-Flash late mixers cost 1.9 % of perplexity, and means almost nothing (arXiv 2609.05309).

mod replace;
#[cfg(test)]
mod tests;

use self::replace::{loss, means, proven, with_mixers};
use super::apply::hashes;
use super::course::Course;
use super::error::PruneError;
use super::file::{FileHash, Source, write_json};
use super::halves::{Halves, MeasuredOn};
use super::ledger::Ledger;
use crate::diagnose::{StandIn, Steer, Steerable, steerable};
use crate::estimate::{Estimate, memory};
use crate::words::quoted;
use crate::{Subject, save_into};
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_files::{StagedDirectory, write_whole};
use hadal_kernels::read_back;
use hadal_model::{Decoder, Part, Pass, PassError, Tokens, companions};
use hadal_residual::Site;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The record of what was done.
const RECORD: &str = "mixers.json";

/// By sub-layer, `[target, source]` row by row.
type Mixers = BTreeMap<usize, Vec<f64>>;

/// Whose mixers go.
#[derive(Clone, Debug, PartialEq)]
pub enum Which {
    /// All.
    All,
    /// Those of these parts.
    Of(Vec<Part>),
    /// All but so many, which cost most when they alone are replaced.
    AllBut(usize),
}

/// What to replace in which model.
#[derive(Clone, Debug)]
pub struct MixersRequest<'a> {
    /// The model.
    pub model: &'a Path,
    /// What to measure with; the run's held-out data if there is none.
    pub data: Option<&'a Path>,
    /// Batches of about 2048 tokens.
    pub batches: Option<usize>,
    /// What stands in.
    pub by: StandIn,
    /// Whose mixers go.
    pub which: Which,
    /// Where the result goes; nothing is written without it.
    pub out: Option<&'a Path>,
    /// What was typed.
    pub command: &'a str,
}

/// How well a model predicts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
}

/// What one sub-layer's mixer is worth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixerWorth {
    /// The sub-layer.
    pub part: Part,
    /// How much the loss rises, in nats, when it alone is replaced.
    pub loss_change: f64,
}

/// What was measured and written, `mixers.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixersCut {
    /// The model.
    pub source: Source,
    /// Its policy.
    pub residual: String,
    /// The result's.
    pub result: String,
    /// What stands in for the mixers.
    pub replaced_by: StandIn,
    /// Whose mixers are replaced.
    pub replaced: Vec<Part>,
    /// Whose are not.
    pub kept: Vec<Part>,
    /// What each is worth, if it was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worth: Vec<MixerWorth>,
    /// The model as it was.
    pub whole: Prediction,
    /// The result on the same data.
    pub cut: Prediction,
    /// Whether that data is apart from what means and choices were made on.
    pub held_out: bool,
    /// Tokens of that data.
    pub tokens: u64,
    /// What was measured with.
    pub data: MeasuredOn,
    /// Parameters before.
    pub parameters_before: u64,
    /// Parameters after.
    pub parameters_after: u64,
    /// How far logits are from those of the model whose mixers are replaced while it runs, relative to the largest.
    pub difference: f32,
    /// What was written.
    pub files: Vec<FileHash>,
    /// What was typed.
    pub command: String,
    /// How to undo it.
    pub undo: String,
}

/// What it takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MixersEstimate {
    /// The model's policy.
    pub residual: String,
    /// Its sub-layers.
    pub sites: usize,
    /// Tokens that means and choices are made on.
    pub choice_tokens: u64,
    /// Tokens that the result is judged by.
    pub judge_tokens: u64,
    /// Whether these are others.
    pub held_out: bool,
    /// What it takes.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// A model with mixers, and its data.
struct Opened {
    subject: Subject,
    decoder: Decoder,
    streams: usize,
    data: Halves,
}

impl Opened {
    fn of(request: &MixersRequest) -> Result<Self, PruneError> {
        let subject = Subject::open(request.model)?;
        let decoder = subject.decoder.valid();
        let Steerable { streams, mixes } = steerable(&decoder, subject.variant())?;
        let config = decoder.config();
        if !mixes {
            return Err(PruneError::NoMixers { residual: config.residual.to_string() });
        }
        let sites = 2 * config.n_layers;
        match &request.which {
            Which::All => {}
            Which::Of(parts) => {
                let wrong = parts.iter().find(|part| part.block() >= config.n_layers);
                if let Some(&part) = wrong {
                    return Err(PruneError::NoSuchPart { part, blocks: config.n_layers });
                }
            }
            Which::AllBut(keep) if *keep < sites => {}
            Which::AllBut(keep) => {
                return Err(PruneError::Limit {
                    name: "--keep",
                    value: *keep as f64,
                    reason: "that is every mixer of the model; keep fewer",
                });
            }
        }
        let data = Halves::read(&subject, request.data, request.batches)?;
        Ok(Self { subject, decoder, streams, data })
    }

    fn sites(&self) -> usize {
        2 * self.decoder.config().n_layers
    }

    /// Passes over the data to choose on.
    fn looks(&self, request: &MixersRequest) -> usize {
        let means = usize::from(request.by == StandIn::Mean);
        // The whole model, and every sub-layer by itself.
        let each = if matches!(request.which, Which::AllBut(_)) { 1 + self.sites() } else { 0 };
        means + each
    }
}

/// Opens the model and its data and times a short pass.
pub fn estimate_mixers(request: &MixersRequest) -> Result<MixersEstimate, PruneError> {
    /// Tokens of the pass that is timed.
    const TIMED: usize = 128;
    let opened = Opened::of(request)?;
    let Opened { subject, decoder, data, .. } = &opened;
    let row = &data.choice[0].input.ids()[..data.choice[0].input.time().min(TIMED)];
    let mut seen = Steer(|_, _, value: Tensor<4>| value);
    let pass = Pass { probe: Some(&mut seen), ..subject.variant().pass() };
    let started = Instant::now();
    let logits = read_back(decoder.logits(&Tokens::row(row), pass)?);
    std::hint::black_box(logits.map_err(PassError::from)?);
    let each = started.elapsed().as_secs_f64() / row.len() as f64;
    let tokens =
        |batches: &[Batch]| batches.iter().map(|b| b.input.ids().len() as u64).sum::<u64>();
    let (choice_tokens, judge_tokens) = (tokens(&data.choice), tokens(&data.judge));
    let looks = opened.looks(request);
    let passes = looks * data.choice.len() + 2 * data.judge.len();
    let seconds = each * (looks as f64 * choice_tokens as f64 + 2.0 * judge_tokens as f64);
    let largest = data.choice.iter().map(|b| b.input.ids().len() as u64).max().unwrap_or(0);
    Ok(MixersEstimate {
        residual: decoder.config().residual.to_string(),
        sites: opened.sites(),
        choice_tokens,
        judge_tokens,
        held_out: data.apart,
        estimate: Estimate {
            passes: [passes; 2],
            seconds: [seconds; 2],
            memory: memory(subject, largest * opened.streams as u64, 1, largest),
            tokens_per_second: 1.0 / each,
        },
    })
}

/// Replaces mixers, measures what that costs, and writes the result if it has a place. `progress` receives the number of
/// passes done and their total.
pub fn mixers(
    request: &MixersRequest,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<MixersCut, PruneError> {
    if let Some(out) = request.out.filter(|out| out.exists()) {
        return Err(PruneError::Exists { path: out.into() });
    }
    let source = Source::open(request.model)?;
    source.verify()?;
    let opened = Opened::of(request)?;
    let Opened { subject, decoder, data, .. } = &opened;
    let mut course = Course::new(progress, stop, Ledger::default());
    course.expect(opened.looks(request) * data.choice.len() + 2 * data.judge.len());

    let all = match request.by {
        StandIn::Identity => {
            (0..opened.sites()).map(|site| (site, identity(opened.streams))).collect()
        }
        StandIn::Mean => means(decoder, subject.variant(), &data.choice, &mut course)?,
    };
    let (replaced, worth) = choose(&opened, request, &all, &mut course)?;
    let chosen: Mixers =
        all.into_iter().filter(|(site, _)| replaced.contains(&Site::new(*site))).collect();
    let cut = with_mixers(decoder, request.by, &chosen)?;
    let difference = proven(decoder, &cut, subject.variant(), &chosen)?;
    let mut judge = |decoder| loss(decoder, subject.variant(), None, &data.judge, &mut course);
    let (whole, after) = (judge(decoder)?, judge(&cut)?);
    let kept: Vec<Site> =
        (0..opened.sites()).map(Site::new).filter(|site| !replaced.contains(site)).collect();
    let undo =
        |out: &Path| format!("rm -r {}   # {} is untouched", quoted(out), quoted(&source.path));
    let mut done = MixersCut {
        residual: decoder.config().residual.to_string(),
        result: cut.config().residual.to_string(),
        replaced_by: request.by,
        replaced: Part::of_sites(&replaced),
        kept: Part::of_sites(&kept),
        worth,
        whole,
        cut: after,
        held_out: data.apart,
        tokens: data.judge.iter().map(|batch| batch.input.ids().len() as u64).sum(),
        data: data.measured_on.clone(),
        parameters_before: parameters(decoder),
        parameters_after: parameters(&cut),
        difference,
        files: Vec::new(),
        command: request.command.into(),
        undo: request.out.map(undo).unwrap_or_default(),
        source,
    };
    if let Some(out) = request.out {
        write(&mut done, &cut, out)?;
    }
    Ok(done)
}

fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|k| if k / n == k % n { 1.0 } else { 0.0 }).collect()
}

fn parameters(decoder: &Decoder) -> u64 {
    decoder.declared().iter().map(|d| d.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
}

/// Whose mixers go, and what each is worth if that decides.
fn choose(
    opened: &Opened,
    request: &MixersRequest,
    all: &Mixers,
    course: &mut Course,
) -> Result<(Vec<Site>, Vec<MixerWorth>), PruneError> {
    let every = || (0..opened.sites()).map(Site::new);
    let keep = match &request.which {
        Which::All => return Ok((every().collect(), Vec::new())),
        Which::Of(parts) => return Ok((Part::all_sites(parts), Vec::new())),
        Which::AllBut(keep) => *keep,
    };
    let Opened { subject, decoder, data, .. } = opened;
    let variant = subject.variant();
    let whole = loss(decoder, variant, None, &data.choice, course)?.loss;
    let mut worth = Vec::new();
    for site in every() {
        let alone = all.get(&site.index).map(|mixer| (site.index, mixer.clone()));
        let alone: Mixers = alone.into_iter().collect();
        let loss_change = loss(decoder, variant, Some(&alone), &data.choice, course)?.loss - whole;
        worth.push(MixerWorth { part: Part::from(site), loss_change });
    }
    let mut order: Vec<Site> = every().collect();
    // The cheapest first; of equals the earlier one.
    order.sort_by(|a, b| worth[a.index].loss_change.total_cmp(&worth[b.index].loss_change));
    order.truncate(opened.sites() - keep);
    order.sort();
    Ok((order, worth))
}

/// Writes the result with its record: all of it or nothing.
fn write(done: &mut MixersCut, cut: &Decoder, out: &Path) -> Result<(), PruneError> {
    let staged = StagedDirectory::create(out)?;
    save_into(cut, staged.path())?;
    for (name, content) in companions(&done.source.path)? {
        write_whole(&staged.path().join(name), content)?;
    }
    hadal_files::write_manifest(staged.path())?;
    done.files = hashes(staged.path())?;
    write_json(&staged.path().join(RECORD), done)?;
    Ok(staged.finish()?)
}
