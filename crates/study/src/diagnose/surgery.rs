//! Mixer surgery: what it costs to take from a model with streams what its mixers compute for each token.
//!
//! R becomes the identity, or its mean over tokens, at one sub-layer, in the early or the late half, or everywhere; and of
//! the weights that read (pre) and write (post) only the largest k stay. Everything else runs as it does, with what flows
//! then. As for DeepSeek-V4-Flash in arXiv 2609.05309, where late mixers cost 1.9 % of perplexity and early ones 41 %.

use super::diagnostic::{Diagnostic, Models};
use super::draw::{Words, bars, line, site_axis};
use super::error::DiagnoseError;
use super::steer::{Steer, Steerable, everywhere, top};
use super::summary::Summary;
use super::sums::slot;
use super::values::Values;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_model::{Pass, PassError};
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_residual::{Place, Signal, Site};
use hadal_train::quality::mean_loss;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Positions that are measured, in whole batches.
pub(crate) const POSITIONS: usize = 16384;
/// A change of perplexity that stands out.
const DEAR: f64 = 0.05;

/// What stands in for a mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandIn {
    /// Streams stay apart.
    Identity,
    /// The mean over tokens.
    Mean,
}

/// What an operation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Nothing,
    Mixers { by: StandIn, from: usize, to: usize },
    Top { k: usize, pre: bool, post: bool },
}

/// What it costs to fix mixers: changes of the loss in nats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MixersSummary {
    /// At every sub-layer.
    pub all: f64,
    /// In the first half of the sub-layers.
    pub early: f64,
    /// In the second half.
    pub late: f64,
    /// At each sub-layer alone.
    pub sites: Vec<f64>,
}

/// What surgery costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SurgerySummary {
    /// Loss of the model as it is, on the same data.
    pub loss: f64,
    /// Mixers replaced by the identity.
    pub identity: Option<MixersSummary>,
    /// Mixers replaced by their mean over tokens.
    pub mean: Option<MixersSummary>,
    /// Change of the loss with the largest k = 1, 2, .. weights of pre, of post, and of both.
    pub top: Vec<[f64; 3]>,
}

impl SurgerySummary {
    /// A sentence without its full stop, and whether it stands out.
    pub(crate) fn sentence(&self) -> Option<(String, bool)> {
        let percent = |change: f64| rounded(100.0 * change.exp_m1(), 1);
        if let (Some(identity), Some(mean)) = (&self.identity, &self.mean) {
            let words = format!(
                "Mixers at the identity cost {:+.1} % of perplexity (early half {:+.1} %, late half {:+.1} %), fixed to \
                 their means {:+.1} %",
                percent(identity.all),
                percent(identity.early),
                percent(identity.late),
                percent(mean.all)
            );
            return Some((words, identity.all.exp_m1().abs() < DEAR || mean.all.exp_m1() > DEAR));
        }
        let best = self.top.last()?;
        let words = format!(
            "Reading and writing all streams but the weakest costs {:+.1} % of perplexity",
            percent(best[2])
        );
        Some((words, false))
    }
}

/// What is summed over passes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Losses {
    /// Sums over positions, in the order of the operations.
    losses: Vec<f64>,
    positions: usize,
    /// Whether this batch is measured.
    measures: bool,
}

/// Losses after each operation.
pub(crate) struct Surgery {
    sites: usize,
    streams: usize,
    operations: Vec<Operation>,
    found: Losses,
    /// Sums of mixers by sub-layer, and how many tokens.
    sums: Vec<(Vec<f64>, u64)>,
}

impl Surgery {
    pub(crate) fn new(blocks: usize, steerable: Steerable) -> Self {
        let sites = 2 * blocks;
        let mut operations = vec![Operation::Nothing];
        if steerable.mixes {
            for by in [StandIn::Identity, StandIn::Mean] {
                let ranges = [(0, sites), (0, sites / 2), (sites / 2, sites)];
                let each = (0..sites).map(|site| (site, site + 1));
                operations.extend(
                    ranges.into_iter().chain(each).map(|(from, to)| Operation::Mixers {
                        by,
                        from,
                        to,
                    }),
                );
            }
        }
        for k in 1..steerable.streams {
            for (pre, post) in [(true, false), (false, true), (true, true)] {
                operations.push(Operation::Top { k, pre, post });
            }
        }
        let found = Losses { losses: vec![0.0; operations.len()], ..Losses::default() };
        Self { sites, streams: steerable.streams, operations, found, sums: Vec::new() }
    }

    /// The mean mixer of a sub-layer, `[n, n]`.
    fn mean(&self, site: usize) -> Option<Vec<f64>> {
        let (sum, count) = self.sums.get(site).filter(|(_, count)| *count > 0)?;
        Some(sum.iter().map(|value| value / *count as f64).collect())
    }

    fn stand_in(&self, by: StandIn, site: usize, n: usize) -> Option<Vec<f64>> {
        match by {
            StandIn::Identity => {
                Some((0..n * n).map(|k| f64::from(u8::from(k / n == k % n))).collect())
            }
            StandIn::Mean => self.mean(site),
        }
    }

    /// What an operation makes of a signal.
    fn operate(
        &self,
        operation: Operation,
        place: Place,
        signal: Signal,
        value: Tensor<4>,
    ) -> Result<Tensor<4>, PassError> {
        let Place::Site(Site { index }) = place else { return Ok(value) };
        Ok(match (operation, signal) {
            (Operation::Mixers { by, from, to }, Signal::Mixing) if (from..to).contains(&index) => {
                match self.stand_in(by, index, value.dims()[2]) {
                    Some(matrix) => everywhere(&matrix, &value),
                    None => value,
                }
            }
            (Operation::Top { k, pre: true, .. }, Signal::PoolWeights)
            | (Operation::Top { k, post: true, .. }, Signal::Gates) => top(value, k)?,
            _ => value,
        })
    }

    /// Change of the loss by an operation.
    fn change(&self, operation: Operation) -> Option<f64> {
        let place = self.operations.iter().position(|other| *other == operation)?;
        let mean = |i: usize| self.found.losses[i] / self.found.positions as f64;
        (self.found.positions > 0).then(|| mean(place) - mean(0))
    }

    fn mixers(&self, by: StandIn) -> Option<MixersSummary> {
        let change = |from, to| self.change(Operation::Mixers { by, from, to });
        let sites: Option<Vec<f64>> = (0..self.sites).map(|site| change(site, site + 1)).collect();
        Some(MixersSummary {
            all: change(0, self.sites)?,
            early: change(0, self.sites / 2)?,
            late: change(self.sites / 2, self.sites)?,
            sites: sites?,
        })
    }

    fn summary(&self) -> Option<SurgerySummary> {
        let kept = |k: usize| -> Option<[f64; 3]> {
            let change = |pre, post| self.change(Operation::Top { k, pre, post });
            Some([change(true, false)?, change(false, true)?, change(true, true)?])
        };
        (self.found.positions > 0).then(|| SurgerySummary {
            loss: self.found.losses[0] / self.found.positions as f64,
            identity: self.mixers(StandIn::Identity),
            mean: self.mixers(StandIn::Mean),
            top: (1..self.streams).filter_map(kept).collect(),
        })
    }
}

impl Diagnostic for Surgery {
    fn wants(&self, signal: Signal) -> bool {
        signal == Signal::Mixing
    }

    fn see(&mut self, place: Place, _: Signal, values: &Values) {
        let Place::Site(Site { index }) = place else { return };
        let (sum, count) = slot(&mut self.sums, index);
        let entries = values.streams() * values.features();
        sum.resize(entries, 0.0);
        for token in values.all().chunks(entries) {
            sum.iter_mut().zip(token).for_each(|(sum, &value)| *sum += f64::from(value));
            *count += 1;
        }
    }

    fn passes(&self) -> usize {
        self.operations.len()
    }

    fn pass(&mut self, index: usize, models: Models, batch: &Batch) -> Result<(), DiagnoseError> {
        let Models { plain: decoder, variant, .. } = models;
        if index == 0 {
            self.found.measures = self.found.positions < POSITIONS;
            self.found.positions += if self.found.measures { batch.positions() } else { 0 };
        }
        if !self.found.measures {
            return Ok(());
        }
        let operation = self.operations[index];
        let mut failed = None;
        let mut probe = Steer(|place, signal, value: Tensor<4>| {
            let kept = value.clone();
            self.operate(operation, place, signal, value).unwrap_or_else(|error| {
                failed = Some(error);
                kept
            })
        });
        let loss = mean_loss(decoder, batch, Pass { probe: Some(&mut probe), ..variant.pass() })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        self.found.losses[index] += loss * batch.positions() as f64;
        Ok(())
    }

    fn save(&self) -> Option<Value> {
        serde_json::to_value(&self.found).ok()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let Ok(saved) = Losses::deserialize(saved) else { return false };
        let fits = saved.losses.len() == self.operations.len();
        if fits {
            self.found = saved;
        }
        fits
    }

    fn figures(&self) -> Vec<Figure> {
        let Some(SurgerySummary { identity, mean, top, .. }) = self.summary() else {
            return Vec::new();
        };
        let mut figures = Vec::new();
        if let (Some(identity), Some(mean)) = (identity, mean) {
            let caption = format!(
                "How much the loss rises when one sub-layer's mixer R becomes the identity, or its mean over tokens. All \
                 at once: {:+.4} and {:+.4} nats; the early half: {:+.4} and {:+.4}; the late half: {:+.4} and {:+.4}. \
                 Mixers near zero compute nothing that a constant would not do; `hadal prune mixers` can fix them.",
                rounded(identity.all, 4),
                rounded(mean.all, 4),
                rounded(identity.early, 4),
                rounded(mean.early, 4),
                rounded(identity.late, 4),
                rounded(mean.late, 4)
            );
            let curve = |name: &str, found: &MixersSummary| {
                line(name, found.sites.iter().copied().map(Some))
            };
            figures.push(
                Words {
                    name: "surgery-mixers",
                    title: "Loss with a mixer replaced",
                    caption: &caption,
                }
                .lines(
                    site_axis(),
                    Axis::new("change of the loss").unit("nats"),
                    vec![curve("by the identity", &identity), curve("by its mean", &mean)],
                ),
            );
        }
        if !top.is_empty() {
            let series = ["read (pre)", "write (post)", "both"].into_iter().enumerate();
            let series = series
                .map(|(i, name)| bars(name, top.iter().map(|changes| Some(changes[i]))))
                .collect();
            figures.push(
                Words {
                    name: "surgery-top",
                    title: "Loss with only the largest weights",
                    caption: "How much the loss rises when each token reads from, or writes to, only the k streams with \
                              the largest weights, at every sub-layer; weights that stay are not changed. Bars near \
                              zero are streams that need not be touched.",
                }
                .with(
                    Axis::new("weights that stay").categories((1..self.streams).map(|k| k.to_string())),
                    Axis::new("change of the loss").unit("nats"),
                    Marks::Bars { series },
                ),
            );
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        summary.surgery = self.summary();
    }
}

/// With so many digits, and never a zero below zero.
fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale + 0.0
}
