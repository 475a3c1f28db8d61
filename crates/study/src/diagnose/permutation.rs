//! Permutation score: what it costs when two blocks change places.
//!
//! `P(i,j) = |loss - loss with the weights of blocks i and j exchanged| / loss`. Where nothing happens, the order of the
//! blocks carries nothing. As in DepthBench (2609.32534), which counts pairs above 0.15 in the last three quarters. What
//! travels with a block is said in `exchange.rs`.

use super::causal::share_above;
use super::diagnostic::{Diagnostic, Models};
use super::draw::Words;
use super::error::DiagnoseError;
use super::exchange::Exchange;
use super::kind::Kind;
use super::summary::Summary;
use hadal_data::Batch;
use hadal_model::Decoder;
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_train::quality::mean_loss;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Positions that are measured, in whole batches.
pub(crate) const POSITIONS: usize = 8192;
/// A pair counts from this score on.
pub(crate) const MATTERS: f64 = 0.15;

/// What it costs to exchange blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PermutationSummary {
    /// Loss of the model as it is, on the same data.
    pub loss: f64,
    /// `P[i][j]` for i < j; none elsewhere, or where the two cannot change places.
    pub scores: Vec<Vec<Option<f64>>>,
    /// Share of pairs above 0.15 in the last three quarters of the blocks.
    pub share: Option<f64>,
    /// Pairs that cannot change places, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(usize, usize, String)>,
}

impl PermutationSummary {
    /// A sentence without its full stop.
    pub(crate) fn sentence(&self) -> Option<String> {
        let share = self.share?;
        Some(format!(
            "The order matters for {:.0} % of pairs of blocks in the last three quarters: exchanged, they move the loss by \
             more than {:.0} %",
            100.0 * share,
            100.0 * MATTERS
        ))
    }
}

/// What is summed.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Sums {
    whole: f64,
    /// Of each pair.
    losses: Vec<f64>,
    positions: usize,
    /// Whether this batch is measured.
    measures: bool,
}

/// Losses with two blocks exchanged.
pub(crate) struct Permutation {
    blocks: usize,
    pairs: Vec<(usize, usize)>,
    refused: Vec<(usize, usize, String)>,
    sums: Sums,
    /// A copy whose blocks change places, as they are in the model between two passes.
    copy: Option<Decoder>,
}

impl Permutation {
    pub(crate) fn new(decoder: &Decoder) -> Self {
        let blocks = decoder.config().n_layers;
        let exchange = Exchange::of(decoder);
        let (mut pairs, mut refused) = (Vec::new(), Vec::new());
        for (i, j) in (0..blocks).flat_map(|i| (i + 1..blocks).map(move |j| (i, j))) {
            match exchange.names(i, j) {
                Ok(_) => pairs.push((i, j)),
                Err(why) => refused.push((i, j, why)),
            }
        }
        let sums = Sums { losses: vec![0.0; pairs.len()], ..Sums::default() };
        Self { blocks, pairs, refused, sums, copy: None }
    }

    /// `P(i,j)` for i < j.
    pub(crate) fn score(&self, i: usize, j: usize) -> Option<f64> {
        let pair = self.pairs.iter().position(|pair| *pair == (i, j))?;
        let whole = self.sums.whole;
        (whole > 0.0).then(|| (self.sums.losses[pair] - whole).abs() / whole)
    }

    fn summary(&self) -> PermutationSummary {
        let row = |i: usize| (0..self.blocks).map(|j| self.score(i, j)).collect();
        PermutationSummary {
            loss: self.sums.whole / self.sums.positions.max(1) as f64,
            scores: (0..self.blocks).map(row).collect(),
            share: share_above(MATTERS, self.blocks, |i, j| self.score(i, j)),
            refused: self.refused.clone(),
        }
    }
}

impl Diagnostic for Permutation {
    fn passes(&self) -> usize {
        1 + self.pairs.len()
    }

    fn pass(&mut self, index: usize, models: Models, batch: &Batch) -> Result<(), DiagnoseError> {
        let Models { plain, variant, .. } = models;
        let count = batch.positions();
        if index == 0 {
            self.sums.measures = self.sums.positions < POSITIONS;
        }
        if !self.sums.measures {
            return Ok(());
        }
        let Some(pair) = index.checked_sub(1) else {
            self.sums.positions += count;
            self.sums.whole += mean_loss(plain, batch, variant.pass())? * count as f64;
            return Ok(());
        };
        let (i, j) = self.pairs[pair];
        let exchange = Exchange::of(plain);
        let copy = self.copy.get_or_insert_with(|| plain.clone());
        exchange.place(copy, (i, j), true);
        let loss = mean_loss(copy, batch, variant.pass());
        exchange.place(copy, (i, j), false);
        self.sums.losses[pair] += loss? * count as f64;
        Ok(())
    }

    fn save(&self) -> Option<Value> {
        serde_json::to_value(&self.sums).ok()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let Ok(saved) = Sums::deserialize(saved) else { return false };
        let fits = saved.losses.len() == self.pairs.len();
        if fits {
            self.sums = saved;
        }
        fits
    }

    fn figures(&self) -> Vec<Figure> {
        let PermutationSummary { scores, share, refused, .. } = self.summary();
        if scores.iter().flatten().all(Option::is_none) {
            return Vec::new();
        }
        let share = share.map_or(String::new(), |share| {
            format!(" Above {MATTERS} in the last three quarters: {:.0} % of pairs.", 100.0 * share)
        });
        let gaps = refused.first().map_or(String::new(), |(i, j, why)| {
            format!(
                " {} of the pairs cannot change places (blocks {i} and {j}: {why}).",
                refused.len()
            )
        });
        let caption = format!(
            "How far the loss moves, relative to it, when the weights of two blocks change places.{share} Near zero the order \
             of the two carries nothing.{gaps}"
        );
        let names = || (0..self.blocks).map(|block| block.to_string());
        vec![
            Words {
                name: "permutation-score",
                title: "Blocks that change places",
                caption: &caption,
            }
            .with(
                Axis::new("block").categories(names()),
                Axis::new("exchanged with block").categories(names()),
                Marks::Heat { values: both(&scores), legend: "|change of the loss| / loss".into() },
            ),
        ]
    }

    fn tell(&self, summary: &mut Summary) {
        if self.sums.positions > 0 && !self.pairs.is_empty() {
            summary.permutation = Some(self.summary());
        } else if let Some((i, j, why)) = self.refused.first() {
            let reason =
                format!("no two of its blocks can change places, such as {i} and {j}: {why}");
            summary.refuse(Kind::Permutation, reason);
        }
    }
}

/// A pair stands at both of its places.
fn both(scores: &[Vec<Option<f64>>]) -> Vec<Vec<Option<f64>>> {
    let at = |i: usize, j: usize| scores[i.min(j)][i.max(j)];
    (0..scores.len()).map(|i| (0..scores.len()).map(|j| at(i, j)).collect()).collect()
}
