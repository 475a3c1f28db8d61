//! The most telling numbers.

use super::causal::CausalSummary;
use super::collapse::CollapseSummary;
use super::connectivity::ConnectivitySummary;
use super::kind::Kind;
use super::permutation::PermutationSummary;
use super::rescue::RescueSummary;
use super::surgery::SurgerySummary;
use super::usefulness::UsefulnessSummary;
use hadal_report::statistics::Spikes;
use serde::{Deserialize, Serialize};

/// The results of a diagnosis in brief.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Which model.
    pub name: String,
    /// Its residual policy.
    pub residual: String,
    /// Steps of training, if it is a run's.
    pub step: Option<u64>,
    /// Its blocks.
    pub blocks: usize,
    /// Sequences that were looked at.
    pub sequences: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Mean cross-entropy on them, in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// How many times longer the stream is after the last block than before the first.
    pub norm_growth: Option<f64>,
    /// RMS gradient at the first block's output over that at the last's.
    pub gradient_ratio: Option<f64>,
    /// Relative size of the first and the last block's write.
    pub write_sizes: Option<(f64, f64)>,
    /// Angle in degrees between what each block reads and what the next one does, at the last token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_turns: Vec<Option<f64>>,
    /// What the loss loses when a block is removed.
    pub removals: Vec<Removal>,
    /// The largest activation.
    pub largest: Option<Largest>,
    /// The block whose heads look most at the first token, and the mean share.
    pub sink: Option<(usize, f64)>,
    /// The widest gate that was seen.
    pub widest_gate: Option<f64>,
    /// NAG's lanes.
    pub lanes: Option<LanesSummary>,
    /// Which tokens skip, if any can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skips: Option<SkipsSummary>,
    /// What the streams are used for, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamsSummary>,
    /// Weights of the embedding and of outputs in what is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connectivity: Option<ConnectivitySummary>,
    /// Directions that tokens span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse: Option<CollapseSummary>,
    /// What fixed mixers and fewer weights cost, if there are streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surgery: Option<SurgerySummary>,
    /// What predictions hang on, if there are streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rescue: Option<RescueSummary>,
    /// Which blocks hang on which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causal: Option<CausalSummary>,
    /// What it costs if blocks change places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permutation: Option<PermutationSummary>,
    /// What affine maps in the place of blocks cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usefulness: Option<UsefulnessSummary>,
    /// How restless training was, if it was a run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spikes: Option<Spikes>,
    /// Diagnostics that were asked for and cannot answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refusal>,
}

/// A diagnostic that cannot answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Which one.
    pub diagnostic: Kind,
    /// Why.
    pub reason: String,
}

/// What n streams are used for; means over tokens and sub-layers, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamsSummary {
    /// How many there are.
    pub streams: usize,
    /// Effective number that is read (by entropy).
    pub read: Option<f64>,
    /// Effective number that is written.
    pub written: Option<f64>,
    /// Effective number by squared norm.
    pub held: Option<f64>,
    /// Mean cosine between streams at the end.
    pub cosine: Option<f64>,
    /// Share of the largest stream in the summed squared norm.
    pub dominant_share: Option<f64>,
    /// The stream that leads at most sub-layers, and at which share of them.
    pub leader: Option<(usize, f64)>,
    /// Distance of the mixers from the identity.
    pub from_identity: Option<f64>,
    /// Distance of the product of all mixers from the uniform matrix.
    pub product_from_uniform: Option<f64>,
    /// Effective rank of that product, by singular values and by their squares.
    pub product_rank: Option<(f64, f64)>,
}

/// What the loss loses without one block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Removal {
    /// The block.
    pub block: usize,
    /// Change of the loss in nats; none if it cannot be removed.
    pub loss_change: Option<f64>,
    /// Why it cannot be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The largest activation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Largest {
    /// Its magnitude.
    pub value: f64,
    /// How many times the median magnitude of the same sequence at the same place.
    pub times_median: f64,
    /// Where in depth: after this sub-layer.
    pub behind: String,
    /// Which position of the sequence.
    pub position: usize,
    /// Which channel.
    pub channel: usize,
}

/// What NAG's lanes do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanesSummary {
    /// Mean rotation of a sub-layer in degrees.
    pub rotation: f64,
    /// Share of gains above a quarter.
    pub large_gains: f64,
    /// Correlation of the logarithm of the inverse temperature with a token's loss.
    pub temperature_correlation: Option<f64>,
}

/// What tokens skip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkipsSummary {
    /// Share of the FLOPs of sub-layers that show which tokens skip them; approximate where keys are dropped.
    pub flops: f64,
    /// Share of the runs of attention.
    pub attention: Option<f64>,
    /// Share of the runs of MLPs.
    pub mlp: Option<f64>,
    /// Tokens that skip most.
    pub most: Vec<TokenSkips>,
    /// Tokens that skip least.
    pub least: Vec<TokenSkips>,
}

/// How much a token skips.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenSkips {
    /// The token.
    pub id: u32,
    /// Its text, if it has one by itself.
    pub text: Option<String>,
    /// How often it was seen.
    pub count: u64,
    /// Share of sub-layers that it skips.
    pub skipped: f64,
}

impl TokenSkips {
    /// Its text in quotes, or its number.
    pub fn name(&self) -> String {
        match &self.text {
            Some(text) => format!("{text:?}"),
            None => format!("#{}", self.id),
        }
    }
}

/// Below this change of the loss, in nats, a block is nearly useless: one per cent of perplexity.
pub const USELESS: f64 = 0.01;

/// A massive activation is at least this many times the median (Sun et al. 2024, arXiv 2402.17762).
pub const MASSIVE: f64 = 1000.0;

impl Summary {
    /// Takes over what another one tells.
    pub(crate) fn add(&mut self, told: Self) {
        fn take<T>(own: &mut Option<T>, told: Option<T>) {
            if told.is_some() {
                *own = told;
            }
        }
        take(&mut self.norm_growth, told.norm_growth);
        take(&mut self.gradient_ratio, told.gradient_ratio);
        take(&mut self.write_sizes, told.write_sizes);
        if !told.block_turns.is_empty() {
            self.block_turns = told.block_turns;
        }
        if !told.removals.is_empty() {
            self.removals = told.removals;
        }
        take(&mut self.largest, told.largest);
        take(&mut self.sink, told.sink);
        take(&mut self.widest_gate, told.widest_gate);
        take(&mut self.lanes, told.lanes);
        take(&mut self.skips, told.skips);
        take(&mut self.streams, told.streams);
        take(&mut self.connectivity, told.connectivity);
        take(&mut self.collapse, told.collapse);
        take(&mut self.surgery, told.surgery);
        take(&mut self.rescue, told.rescue);
        take(&mut self.causal, told.causal);
        take(&mut self.permutation, told.permutation);
        take(&mut self.usefulness, told.usefulness);
        self.refused.extend(told.refused);
    }

    /// Says that a diagnostic cannot answer, unless it has been said.
    pub(crate) fn refuse(&mut self, diagnostic: Kind, reason: impl Into<String>) {
        if self.refused.iter().all(|refusal| refusal.diagnostic != diagnostic) {
            self.refused.push(Refusal { diagnostic, reason: reason.into() });
        }
    }

    /// Blocks without which the loss is as good or better.
    pub fn useless(&self) -> Vec<usize> {
        let low = |removal: &&Removal| removal.loss_change.is_some_and(|change| change < USELESS);
        self.removals.iter().filter(low).map(|removal| removal.block).collect()
    }

    /// The block that is missed most, and the change of the loss.
    pub fn dearest(&self) -> Option<(usize, f64)> {
        let changes = self.removals.iter().filter_map(|r| Some((r.block, r.loss_change?)));
        changes.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
