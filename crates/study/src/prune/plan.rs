//! A plan: what should go, why, and its measured cost. Nothing is written but the plan.

use super::choose::{Options, choose};
use super::course::Course;
use super::error::PruneError;
use super::file::Source;
use super::halves::{Halves, MeasuredOn};
use super::ledger::Ledger;
use super::measure::{Cost, measure, passes};
use super::scores::{Scores, cuts, score};
use super::speed::{Speed, TURNS, speed};
use crate::Subject;
use burn::module::Module;
use hadal_model::{Decoder, Device, ModelConfig, ModelCost, Part};
use hadal_residual::StepMode;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The version of the file.
pub(super) const FORMAT: u32 = 1;

/// What is cut, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of this file.
    pub format: u32,
    /// The model.
    pub source: Source,
    /// Its residual policy.
    pub residual: String,
    /// Its blocks.
    pub blocks: usize,
    /// What goes, by original numbers, in order.
    pub remove: Vec<Part>,
    /// The same in the order in which it was chosen.
    pub chosen: Vec<Part>,
    /// Original numbers of the blocks that stay.
    pub kept: Vec<usize>,
    /// How it was chosen.
    pub options: Options,
    /// What that costs.
    pub outcome: Outcome,
    /// The cost on the same data after each part of `chosen`.
    pub curve: Vec<Cost>,
    /// Memory before and after.
    pub memory: Memory,
    /// Time without the parts.
    pub speed: Speed,
    /// What every part is worth.
    pub scores: Scores,
    /// What it was measured with; older plans do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<MeasuredOn>,
    /// What was typed.
    pub command: String,
}

/// Predicted and measured cost of a cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Perplexity that the parts' own changes of the loss add up to.
    pub predicted_perplexity: f64,
    /// The sum of the parts' own KL.
    pub predicted_kl: f64,
    /// The whole model on the same data as the cut.
    pub whole: Cost,
    /// The cut model.
    pub cut: Cost,
    /// Whether that data is apart from what the choice was made on.
    pub held_out: bool,
    /// Tokens of that data.
    pub tokens: u64,
}

/// Bytes before and after a cut, as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Parameters of the whole model.
    pub parameters_before: u64,
    /// Parameters that are left.
    pub parameters_after: u64,
    /// Bytes of keys and values for each token, before.
    pub kv_bytes_before: u64,
    /// The same after the cut.
    pub kv_bytes_after: u64,
}

impl Memory {
    fn of(decoder: &Decoder, remove: &[Part]) -> Result<Self, PruneError> {
        let config = decoder.config();
        let count = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
        let declared = decoder.declared();
        let before = declared.iter().map(|d| count(&d.shape)).sum();
        let gone = declared.iter().filter(|d| remove.iter().any(|&part| belongs(&d.name, part)));
        let gone: u64 = gone.map(|d| count(&d.shape)).sum();
        let blocks = config.n_layers as u64;
        let kv_bytes_before = ModelCost::of(config)?.kv_bytes_per_token;
        let silent = remove.iter().filter(|part| !matches!(part, Part::Mlp(_))).count() as u64;
        Ok(Self {
            parameters_before: before,
            parameters_after: before - gone,
            kv_bytes_before,
            kv_bytes_after: kv_bytes_before / blocks * (blocks - silent),
        })
    }
}

/// Whether a parameter goes with a part. The policy's parameters for a sub-layer go, too.
fn belongs(name: &str, part: Part) -> bool {
    let words: Vec<&str> = name.split('.').collect();
    let number = words.get(1).and_then(|word| word.parse::<usize>().ok());
    match (words.as_slice(), number) {
        (["layers", _, rest, ..], Some(block)) if block == part.block() => match part {
            Part::Block(_) => true,
            Part::Attention(_) => rest.starts_with("attn"),
            Part::Mlp(_) => rest.starts_with("mlp"),
        },
        (["residual", ..], Some(site)) => part.sites().iter().any(|own| own.index == site),
        _ => false,
    }
}

/// What to plan.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The model.
    pub model: &'a Path,
    /// What to measure with; the run's held-out data if there is none.
    pub data: Option<&'a Path>,
    /// Batches of about 2048 tokens.
    pub batches: Option<usize>,
    /// What goes, and how it is chosen.
    pub options: &'a Options,
    /// Where the model is measured.
    pub device: &'a Device,
    /// What was typed.
    pub command: &'a str,
    /// Where measurements are kept until the plan is done, see [`measurements_of`](super::measurements_of).
    pub keep: Option<&'a Path>,
    /// Whether measurements of another model there may be thrown away.
    pub force: bool,
}

/// Measures a model and chooses what goes. `progress` receives the number of passes done and their total; the total
/// grows if the choice is made step by step. If it is asked to stop, what was measured is kept, and the same request
/// goes on from there.
pub fn plan(
    request: &Request,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Plan, PruneError> {
    request.options.check()?;
    let source = Source::open(request.model)?;
    let ledger = match request.keep {
        Some(path) => Ledger::open(path, &source, request.device, request.force)?,
        None => Ledger::default(),
    };
    let subject = Subject::open_on(request.model, request.device)?;
    let data = Halves::read(&subject, request.data, request.batches)?;
    let decoder = subject.decoder.valid();
    let mut course = Course::new(progress, stop, ledger);
    make(source, &decoder, &subject.mode, &data, request, &mut course)
}

fn make(
    source: Source,
    decoder: &Decoder,
    mode: &StepMode,
    data: &Halves,
    request: &Request,
    course: &mut Course,
) -> Result<Plan, PruneError> {
    let config: &ModelConfig = decoder.config();
    let options = request.options;
    let (blocks, vocabulary) = (config.n_layers, config.vocab_size);
    course.expect(data.choice.len() + passes(&data.choice, vocabulary, cuts(blocks).len()) + TURNS);
    let scores = score(decoder, mode, &data.choice, course)?;
    let mut evaluate = |trials: &[Vec<Part>]| {
        course.expect(passes(&data.choice, vocabulary, trials.len()));
        measure(decoder, mode, &data.choice, trials, course)
    };
    let chosen = choose(&scores, options, &mut evaluate)?;
    let remove = Part::of_sites(&Part::all_sites(&chosen));
    let beginnings: Vec<Vec<Part>> = (1..=chosen.len()).map(|n| chosen[..n].to_vec()).collect();
    course.expect(passes(&data.judge, vocabulary, beginnings.len()));
    let costs = measure(decoder, mode, &data.judge, &beginnings, course)?;
    let curve: Result<Vec<Cost>, String> = costs.cuts.into_iter().collect();
    let curve = curve.map_err(|reason| PruneError::NotWritable {
        residual: config.residual.to_string(),
        reason,
    })?;
    let cut = curve.last().copied().unwrap_or(costs.whole);
    let sum = |get: fn(&super::PartScore) -> Option<f64>| -> f64 {
        chosen.iter().filter_map(|&part| get(scores.of(part)?)).sum()
    };
    let loss_change = sum(|score| score.loss_change);
    let outcome = Outcome {
        predicted_perplexity: (costs.whole.loss + loss_change).exp(),
        predicted_kl: sum(|score| score.kl),
        whole: costs.whole,
        cut,
        held_out: data.apart,
        tokens: data.judge.iter().map(|batch| batch.input.ids().len() as u64).sum(),
    };
    let speed = speed(decoder, mode, &data.judge[0], &remove, course)?;
    Ok(Plan {
        format: FORMAT,
        source,
        residual: config.residual.to_string(),
        blocks,
        kept: kept(blocks, &remove),
        memory: Memory::of(decoder, &remove)?,
        remove,
        chosen,
        options: options.clone(),
        outcome,
        curve,
        speed,
        scores,
        data: Some(data.measured_on.clone()),
        command: request.command.into(),
    })
}

/// The blocks that stay, by their original numbers.
pub(super) fn kept(blocks: usize, remove: &[Part]) -> Vec<usize> {
    (0..blocks).filter(|&block| !remove.contains(&Part::Block(block))).collect()
}
