//! What a plan will take, without making it.

use super::choose::Method;
use super::error::PruneError;
use super::halves::Halves;
use super::measure::{passes, pieces};
use super::plan::Request;
use super::scores::cuts;
use super::speed::{READ, TURNS};
use crate::Subject;
use crate::estimate::{Estimate, Rate, memory};
use burn::module::Module;
use hadal_data::Batch;
use hadal_model::{ModelCost, Part};
use serde::Serialize;

/// What a plan would look at, and what that takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanEstimate {
    /// The model's blocks.
    pub blocks: usize,
    /// Its residual policy.
    pub residual: String,
    /// Its parameters.
    pub parameters: u64,
    /// Tokens that the choice is made on.
    pub choice_tokens: u64,
    /// Tokens that it is judged by.
    pub judge_tokens: u64,
    /// Whether these are others.
    pub held_out: bool,
    /// Parts that may go.
    pub candidates: usize,
    /// The most that will go.
    pub most: usize,
    /// What it takes.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// Opens the model and its data and times a short pass.
pub fn estimate(request: &Request) -> Result<PlanEstimate, PruneError> {
    let options = request.options;
    options.check()?;
    let subject = Subject::open_on(request.model, request.device)?;
    let data = Halves::read(&subject, request.data, request.batches)?;
    let decoder = subject.decoder.valid();
    let config = decoder.config();
    let blocks = config.n_layers;
    let rate = Rate::measure(&decoder, &subject.mode, &data.choice[0])?;
    let parts: Vec<Part> = cuts(blocks).concat();
    let of_kind = |part: &&Part| matches!(part, Part::Block(_)) != options.sub_layers;
    let kinds: Vec<Part> = parts.iter().filter(of_kind).copied().collect();
    let free: Vec<Part> =
        kinds.iter().filter(|part| !options.protects(part.block(), blocks)).copied().collect();
    let most = options.budget.count(kinds.len(), free.len())?.min(free.len());
    // If costs decide, one part may go or all.
    let least = if options.budget.limits_cost() { most.min(1) } else { most };

    let replay = |parts: &[Part]| -> f64 {
        let share = |part: &Part| part.sites().first().map_or(0, |site| site.index) as f64;
        parts.iter().map(|part| rate.after(share(part) / (2 * blocks) as f64)).sum()
    };
    let mean = replay(&free) / free.len().max(1) as f64;
    // Passes and seconds for each token of the choice, of trials while `count` parts go.
    let trials = |count: usize| -> (Vec<usize>, f64) {
        let rounds: Vec<usize> = match (options.method, options.contiguous) {
            // The first round is what scores measured already.
            (Method::Greedy, _) => (1..count).map(|gone| free.len() - gone).collect(),
            (Method::OneShot, _) if options.budget.limits_cost() => vec![1; count],
            (Method::OneShot, true) if options.score.is_measured() => vec![free.len()],
            (Method::OneShot, _) => Vec::new(),
        };
        let seconds = rounds.iter().map(|&cuts| 2.0 * rate.whole + cuts as f64 * mean).sum();
        (rounds, seconds)
    };
    let (choice_tokens, judge_tokens) = (tokens(&data.choice), tokens(&data.judge));
    let cost = |count: usize| {
        let (rounds, seconds) = trials(count);
        let vocabulary = config.vocab_size;
        let of_trials: usize =
            rounds.iter().map(|&cuts| passes(&data.choice, vocabulary, cuts)).sum();
        let all = data.choice.len()
            + passes(&data.choice, vocabulary, parts.len())
            + of_trials
            + passes(&data.judge, vocabulary, count)
            + TURNS;
        let choice = 2.0 * rate.whole + replay(&parts) + seconds;
        let judge = rate.whole + count as f64 * mean.max(rate.whole / 2.0);
        let speed = (TURNS * READ) as f64 * rate.whole;
        (all, choice * choice_tokens as f64 + judge * judge_tokens as f64 + speed)
    };
    let ends = [cost(least), cost(most)];
    let largest = |batches: &[Batch]| batches.iter().map(|b| b.input.ids().len()).max();
    let piece: Vec<Batch> = pieces(&data.choice[0], config.vocab_size);
    let positions = largest(&piece).unwrap_or(0) as u64;
    Ok(PlanEstimate {
        blocks,
        residual: config.residual.to_string(),
        parameters: ModelCost::of(config)?.parameters.total(),
        choice_tokens,
        judge_tokens,
        held_out: data.apart,
        candidates: free.len(),
        most,
        estimate: Estimate {
            passes: ends.map(|(passes, _)| passes),
            seconds: ends.map(|(_, seconds)| seconds),
            // What was recorded of the whole model and of what cuts share; its logits and probabilities, those of a cut,
            // and a copy of these on the way.
            memory: memory(&subject, largest(&data.choice).unwrap_or(0) as u64, 2, 4 * positions),
            tokens_per_second: 1.0 / rate.whole,
        },
    })
}

fn tokens(batches: &[Batch]) -> u64 {
    batches.iter().map(|batch| batch.input.ids().len() as u64).sum()
}
