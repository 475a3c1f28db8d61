//! Causal score: how much of what a later block does hangs on an earlier one.
//!
//! `C(s,l) = mean_t ||(z_(l+1) - z_l) - (z'_(l+1) - z'_l)|| / mean_t ||z_(l+1) - z_l||` for l > s, where z is what blocks hand
//! on, and z' the same with block s left out. Blocks that hang on each other make a model deep; where they do not, they could
//! as well stand side by side. As in DepthBench (2609.32534), which counts pairs above 0.45 in the last three quarters.
//!
//! z is what the policy says that stands between blocks ([`Signal::Between`]), or else what the next attention reads before its
//! norm: the stream of a policy with one, all n streams side by side, a pool over depth, a block's running sum inside it.

use super::diagnostic::{Diagnostic, Models};
use super::draw::{Words, place_index};
use super::error::DiagnoseError;
use super::summary::Summary;
use super::values::Values;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_kernels::ReadBackError;
use hadal_model::{Decoder, Pass, PassError, Variant};
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_residual::{Place, Probe, Signal, Site};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Batches that are looked at, and tokens of each: what every block hands on is kept for them.
const BATCHES: usize = 4;
const TOKENS: usize = 512;
/// Tokens of all.
pub(crate) const MOST: usize = BATCHES * TOKENS;
/// A pair counts from this score on.
pub(crate) const HANGS: f64 = 0.45;

/// Which later blocks hang on which earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CausalSummary {
    /// `C[s][l]`: block s is left out, and block l does otherwise; none where l is not behind s, or s cannot be left out.
    pub scores: Vec<Vec<Option<f64>>>,
    /// Share of pairs above 0.45 in the last three quarters of the blocks.
    pub share: Option<f64>,
    /// Blocks that cannot be left out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(usize, String)>,
}

impl CausalSummary {
    /// A sentence without its full stop.
    pub(crate) fn sentence(&self) -> Option<String> {
        let share = self.share?;
        Some(format!(
            "{:.0} % of pairs of blocks in the last three quarters hang on each other (causal score above {HANGS})",
            100.0 * share
        ))
    }
}

/// Share of the pairs in the last three quarters of the blocks that are above a limit.
pub(super) fn share_above(
    limit: f64,
    blocks: usize,
    score: impl Fn(usize, usize) -> Option<f64>,
) -> Option<f64> {
    let first = blocks / 4;
    let pairs = (first..blocks).flat_map(|a| (a + 1..blocks).map(move |b| (a, b)));
    let scores: Vec<f64> = pairs.filter_map(|(a, b)| score(a, b)).collect();
    let above = scores.iter().filter(|score| **score > limit).count();
    (!scores.is_empty()).then(|| above as f64 / scores.len() as f64)
}

/// What the blocks of one pass hand on: `[boundary]`, from before the first block to behind the last one.
#[derive(Debug)]
pub(crate) struct Handed {
    states: Vec<Option<Values>>,
    unread: Option<ReadBackError>,
}

impl Handed {
    fn put(&mut self, boundary: usize, value: Tensor<4>) {
        match Values::of(value) {
            Ok(values) => self.states[boundary] = Some(values),
            Err(error) => self.unread = Some(error),
        }
    }

    /// What a pass of the model hands on.
    pub(crate) fn of(
        decoder: &Decoder,
        batch: &Batch,
        variant: Variant,
    ) -> Result<Self, PassError> {
        let states = vec![None; decoder.config().n_layers + 1];
        let mut handed = Self { states, unread: None };
        let pass = Pass { probe: Some(&mut handed), only_last: true, ..variant.pass() };
        decoder.logits(&batch.input, pass)?;
        match handed.unread.take() {
            Some(error) => Err(error.into()),
            None => Ok(handed),
        }
    }

    /// What stands at a boundary of blocks.
    #[cfg(test)]
    pub(crate) fn at(&self, boundary: usize) -> Option<&Values> {
        self.states[boundary].as_ref()
    }

    /// What a block adds at a token.
    fn step(&self, block: usize, token: usize) -> Option<Vec<f64>> {
        let (from, to) = (self.states[block].as_ref()?, self.states[block + 1].as_ref()?);
        // Streams that are not filled yet are nothing.
        let (from, mut to) = (from.token(token), to.token(token));
        to.resize(to.len().max(from.len()), 0.0);
        to.iter_mut().zip(from).for_each(|(to, from)| *to -= from);
        Some(to)
    }
}

impl Probe for Handed {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Between | Signal::Reading)
    }

    fn record(&mut self, place: Place, signal: Signal, value: Tensor<4>) {
        let sites = 2 * (self.states.len() - 1);
        let index = place_index(place, sites);
        match signal {
            Signal::Between => self.put(index / 2, value),
            // Where an attention is absent, what comes next reads the same.
            _ => {
                let unknown = (0..=index / 2).filter(|&i| self.states[i].is_none());
                for boundary in unknown.collect::<Vec<_>>() {
                    self.put(boundary, value.clone());
                }
            }
        }
    }
}

/// Sums over tokens.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Sums {
    /// `[s][l]`
    moved: Vec<Vec<f64>>,
    /// `[l]`
    whole: Vec<f64>,
    refused: Vec<(usize, String)>,
    batches: usize,
}

/// Scores of every pair of blocks.
pub(crate) struct Causal {
    blocks: usize,
    sums: Sums,
    clean: Option<(Batch, Handed)>,
}

impl Causal {
    pub(crate) fn new(blocks: usize) -> Self {
        let moved = vec![vec![0.0; blocks]; blocks];
        let sums = Sums { moved, whole: vec![0.0; blocks], ..Sums::default() };
        Self { blocks, sums, clean: None }
    }

    fn clean(batch: &Batch, models: Models) -> Result<(Batch, Handed), DiagnoseError> {
        let rows = (TOKENS / batch.input.time().max(1)).clamp(1, batch.input.batch());
        let batch = batch.rows(0..rows);
        let handed = Handed::of(models.plain, &batch, models.variant)?;
        Ok((batch, handed))
    }

    /// `C(s,l)`
    pub(crate) fn score(&self, without: usize, later: usize) -> Option<f64> {
        let refused = self.sums.refused.iter().any(|(block, _)| *block == without);
        let whole = self.sums.whole[later];
        (later > without && !refused && whole > 0.0)
            .then(|| self.sums.moved[without][later] / whole)
    }

    fn summary(&self) -> CausalSummary {
        let row = |s: usize| (0..self.blocks).map(|l| self.score(s, l)).collect();
        CausalSummary {
            scores: (0..self.blocks).map(row).collect(),
            share: share_above(HANGS, self.blocks, |s, l| self.score(s, l)),
            refused: self.sums.refused.clone(),
        }
    }
}

impl Diagnostic for Causal {
    fn passes(&self) -> usize {
        // One for the whole model, and one without each block but the last, behind which there is none.
        self.blocks
    }

    fn pass(&mut self, index: usize, models: Models, batch: &Batch) -> Result<(), DiagnoseError> {
        if index == 0 {
            self.sums.batches += 1;
            self.clean = None;
        }
        if self.sums.batches > BATCHES {
            return Ok(());
        }
        // An interrupted batch goes on without it.
        if self.clean.is_none() {
            self.clean = Some(Self::clean(batch, models)?);
        }
        let Some((batch, clean)) = &self.clean else { return Ok(()) };
        let tokens = 0..batch.input.ids().len();
        let Some(without) = index.checked_sub(1) else {
            for block in 0..self.blocks {
                let sizes =
                    tokens.clone().filter_map(|token| Some(norm(&clean.step(block, token)?)));
                self.sums.whole[block] += sizes.sum::<f64>();
            }
            return Ok(());
        };
        let absent = [Site::new(2 * without), Site::new(2 * without + 1)];
        let absent = [models.variant.absent, &absent].concat();
        let variant = Variant { absent: &absent, ..models.variant };
        let other = match Handed::of(models.plain, batch, variant) {
            Ok(other) => other,
            Err(PassError::NotAbsent { reason, .. }) => {
                if self.sums.refused.iter().all(|(block, _)| *block != without) {
                    self.sums.refused.push((without, reason.to_owned()));
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        for later in without + 1..self.blocks {
            for token in tokens.clone() {
                let (Some(mut a), Some(b)) = (clean.step(later, token), other.step(later, token))
                else {
                    continue;
                };
                a.resize(a.len().max(b.len()), 0.0);
                a.iter_mut().zip(b).for_each(|(a, b)| *a -= b);
                self.sums.moved[without][later] += norm(&a);
            }
        }
        Ok(())
    }

    fn save(&self) -> Option<Value> {
        serde_json::to_value(&self.sums).ok()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let Ok(saved) = Sums::deserialize(saved) else { return false };
        let fits = saved.moved.len() == self.blocks && saved.whole.len() == self.blocks;
        if fits {
            self.sums = saved;
        }
        fits
    }

    fn figures(&self) -> Vec<Figure> {
        let CausalSummary { scores, share, refused } = self.summary();
        if scores.iter().flatten().all(Option::is_none) {
            return Vec::new();
        }
        let share = share.map_or(String::new(), |share| {
            format!(" Above {HANGS} in the last three quarters: {:.0} % of pairs.", 100.0 * share)
        });
        let gaps = refused.first().map_or(String::new(), |(block, why)| {
            format!(" Blocks that cannot be left out are missing (block {block}: {why}).")
        });
        let caption = format!(
            "How much of what a later block adds changes when an earlier block is left out: ||change|| / ||what it adds||, \
             means over tokens.{share} Near zero a block does what it does whether the other is there or not.{gaps}"
        );
        let names = || (0..self.blocks).map(|block| block.to_string());
        vec![
            Words { name: "causal-score", title: "Which blocks hang on which", caption: &caption }
                .with(
                    Axis::new("later block").categories(names()),
                    Axis::new("block that is left out").categories(names()),
                    Marks::Heat { values: scores, legend: "causal score".into() },
                ),
        ]
    }

    fn tell(&self, summary: &mut Summary) {
        let found = self.summary();
        if found.scores.iter().flatten().any(Option::is_some) {
            summary.causal = Some(found);
        }
    }
}

fn norm(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum::<f64>().sqrt()
}
