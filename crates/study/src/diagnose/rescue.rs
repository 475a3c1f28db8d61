//! Ablate and rescue: which streams the predictions hang on, and what can stand in for a lost one.
//!
//! Reading, writing and mixing weights are those of the clean run, so that only what flows changes. From a sub-layer on,
//! stream i is held at zero (or at its mean over tokens): `KL(clean, ablated)` of the next-token predictions. Rescue: the
//! same with stream j held at its clean values; the share of the divergence that goes away. The difference between (i, j)
//! and (j, i) says which stream feeds the other. Two streams at once against the sum of both alone: more means that each
//! backs up the other. As in arXiv 2603.14833.

use super::diagnostic::{Diagnostic, Models};
use super::draw::{Words, bars};
use super::error::DiagnoseError;
use super::steer::{Steer, Steerable};
use super::summary::Summary;
use crate::prune::Whole;
use burn::tensor::Tensor;
use hadal_data::Batch;
use hadal_kernels::read_back;
use hadal_model::{Decoder, Pass, Variant};
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_residual::{Place, Signal, Site};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;

/// Batches that are looked at, and tokens of each: every stream of every sub-layer is kept for them.
const BATCHES: usize = 4;
const TOKENS: usize = 512;
/// Tokens of all.
pub(crate) const MOST: usize = BATCHES * TOKENS;
/// With more streams than this, pairs of them are left out.
const PAIRED: usize = 8;
/// A stream is idle if the predictions move by less than this share of what the strongest does.
const IDLE: f64 = 0.01;

/// What an ablated stream is held at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Zero,
    Mean,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Job {
    Clean,
    Ablate { streams: Vec<usize>, at: Held, from: usize, rescued: Option<usize> },
}

/// Two streams without each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairSummary {
    /// Which two.
    pub streams: (usize, usize),
    /// Divergence without both, in nats.
    pub together: f64,
    /// Sum of the divergences without each.
    pub apart: f64,
}

/// What the predictions hang on: divergences in nats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RescueSummary {
    /// The sub-layer from which on streams are held.
    pub from: usize,
    /// With each stream at zero.
    pub zero: Vec<f64>,
    /// With each stream at its mean over tokens.
    pub mean: Vec<f64>,
    /// `[ablated][rescued]`: share of the divergence that clean values of another stream take away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rescued: Vec<Vec<Option<f64>>>,
    /// Largest difference between `[i][j]` and `[j][i]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asymmetry: Option<f64>,
    /// Every two streams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairSummary>,
}

impl RescueSummary {
    /// A sentence without its full stop, and whether it stands out.
    pub(crate) fn sentence(&self) -> Option<(String, bool)> {
        let by = |a: &(usize, &f64), b: &(usize, &f64)| a.1.total_cmp(b.1);
        let (most, high) = self.zero.iter().enumerate().max_by(by)?;
        let (least, low) = self.zero.iter().enumerate().min_by(by)?;
        let best = self.rescued.iter().flatten().copied().flatten().reduce(f64::max);
        let rescue = best.filter(|share| *share > 0.0).map_or(String::new(), |share| {
            format!("; clean values of another stream take away up to {:.0} % of it", 100.0 * share)
        });
        let words = format!(
            "Predictions hang most on stream {most} (KL {high:.3} nats without it from sub-layer {} on) and least on \
             stream {least} ({low:.3}){rescue}",
            self.from
        );
        Some((words, *low < IDLE * high))
    }
}

/// What flowed in the clean run.
struct Clean {
    batch: Batch,
    whole: Whole,
    signals: HashMap<(Place, Signal), Tensor<4>>,
}

/// What is summed over passes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Divergences {
    /// Of each job, summed over positions.
    sums: Vec<f64>,
    positions: usize,
    batches: usize,
}

/// Divergences of each job.
pub(crate) struct Rescue {
    streams: usize,
    /// Where streams begin to be held; the middle one is looked at closely.
    depths: Vec<usize>,
    jobs: Vec<Job>,
    found: Divergences,
    clean: Option<Clean>,
}

impl Rescue {
    pub(crate) fn new(blocks: usize, steerable: Steerable) -> Self {
        let (sites, n) = (2 * blocks, steerable.streams);
        let mut depths: Vec<usize> =
            [sites / 4, sites / 2, 3 * sites / 4].map(|d| d.max(1)).to_vec();
        depths.dedup();
        let middle = sites / 2;
        let mut jobs = vec![Job::Clean];
        for at in [Held::Zero, Held::Mean] {
            for &from in &depths {
                jobs.extend((0..n).map(|i| Job::Ablate {
                    streams: vec![i],
                    at,
                    from,
                    rescued: None,
                }));
            }
        }
        if n <= PAIRED {
            for i in 0..n {
                for j in (0..n).filter(|&j| j != i) {
                    jobs.push(single(i, middle, Some(j)));
                }
                for j in i + 1..n {
                    jobs.push(pair(i, j, middle));
                }
            }
        }
        let found = Divergences { sums: vec![0.0; jobs.len()], ..Divergences::default() };
        Self { streams: n, depths, jobs, found, clean: None }
    }

    fn middle(&self) -> usize {
        self.depths[self.depths.len() / 2]
    }

    /// Mean divergence of a job.
    fn divergence(&self, job: &Job) -> Option<f64> {
        let place = self.jobs.iter().position(|other| other == job)?;
        // Rounding can leave a hair below zero where nothing moved.
        let Divergences { sums, positions, .. } = &self.found;
        (*positions > 0).then(|| (sums[place] / *positions as f64).max(0.0))
    }

    fn summary(&self) -> Option<RescueSummary> {
        let from = self.middle();
        let each = |at: Held| -> Option<Vec<f64>> {
            let job = |i| Job::Ablate { streams: vec![i], at, from, rescued: None };
            (0..self.streams).map(|i| self.divergence(&job(i))).collect()
        };
        let (zero, mean) = (each(Held::Zero)?, each(Held::Mean)?);
        let share = |i: usize, j: usize| -> Option<f64> {
            let left = self.divergence(&single(i, from, Some(j)))?;
            (zero[i] > 0.0).then(|| 1.0 - left / zero[i])
        };
        let paired = self.streams <= PAIRED;
        let all = |i: usize| (0..self.streams).map(|j| share(i, j)).collect();
        let rescued: Vec<Vec<Option<f64>>> =
            if paired { (0..self.streams).map(all).collect() } else { Vec::new() };
        let pairs = || (0..self.streams).flat_map(|i| (i + 1..self.streams).map(move |j| (i, j)));
        let apart = |(i, j): (usize, usize)| Some((share(i, j)? - share(j, i)?).abs());
        let together = |(i, j): (usize, usize)| {
            let together = self.divergence(&pair(i, j, from))?;
            Some(PairSummary { streams: (i, j), together, apart: zero[i] + zero[j] })
        };
        Some(RescueSummary {
            from,
            asymmetry: pairs().filter(|_| paired).filter_map(apart).reduce(f64::max),
            pairs: pairs().filter_map(together).collect(),
            rescued,
            zero,
            mean,
        })
    }

    /// Predictions when streams are held.
    fn run(
        clean: &Clean,
        job: &Job,
        decoder: &Decoder,
        variant: Variant,
    ) -> Result<Vec<f32>, DiagnoseError> {
        let Job::Ablate { streams, at, from, rescued } = job else {
            return Ok(clean.whole.logits().to_vec());
        };
        let mut probe = Steer(|place, signal, value: Tensor<4>| {
            let Some(kept) = clean.signals.get(&(place, signal)) else { return value };
            match (signal, place) {
                // What sub-layer `from` reads is what the one before it left.
                (Signal::Streams, Place::Site(Site { index })) if index + 1 >= *from => {
                    held(value, kept, streams, *at, *rescued)
                }
                (Signal::Streams, _) => value,
                _ => kept.clone(),
            }
        });
        let pass = Pass { probe: Some(&mut probe), ..variant.pass() };
        let logits = decoder.logits(&clean.batch.input, pass)?;
        Ok(read_back(logits).map_err(hadal_model::PassError::from)?)
    }
}

fn single(i: usize, from: usize, rescued: Option<usize>) -> Job {
    Job::Ablate { streams: vec![i], at: Held::Zero, from, rescued }
}

fn pair(i: usize, j: usize, from: usize) -> Job {
    Job::Ablate { streams: vec![i, j], at: Held::Zero, from, rescued: None }
}

/// Streams of which some are held, and one may have its clean values.
///
/// # Shapes
/// - `value`, `clean` and output: `[B, T, n, d]`
fn held(
    value: Tensor<4>,
    clean: &Tensor<4>,
    streams: &[usize],
    at: Held,
    rescued: Option<usize>,
) -> Tensor<4> {
    let parts = (0..value.dims()[2]).map(|i| {
        let own = || clean.clone().narrow(2, i, 1);
        match (streams.contains(&i), at) {
            (true, Held::Zero) => own().zeros_like(),
            (true, Held::Mean) => own().mean_dim(0).mean_dim(1).expand(own().dims()),
            _ if rescued == Some(i) => own(),
            _ => value.clone().narrow(2, i, 1),
        }
    });
    Tensor::cat(parts.collect(), 2)
}

/// The clean run of some rows, and everything that flowed in it.
fn clean(batch: &Batch, decoder: &Decoder, variant: Variant) -> Result<Clean, DiagnoseError> {
    let rows = (TOKENS / batch.input.time().max(1)).clamp(1, batch.input.batch());
    let batch = batch.rows(0..rows);
    let mut signals = HashMap::new();
    let mut probe = Steer(|place, signal, value: Tensor<4>| {
        signals.insert((place, signal), value.clone());
        value
    });
    let pass = Pass { probe: Some(&mut probe), ..variant.pass() };
    let logits = decoder.logits(&batch.input, pass)?;
    let logits = read_back(logits).map_err(hadal_model::PassError::from)?;
    Ok(Clean { whole: Whole::of(logits, decoder.config().vocab_size), batch, signals })
}

impl Diagnostic for Rescue {
    fn passes(&self) -> usize {
        self.jobs.len()
    }

    fn pass(&mut self, index: usize, models: Models, batch: &Batch) -> Result<(), DiagnoseError> {
        let Models { plain: decoder, variant, .. } = models;
        if index == 0 {
            self.found.batches += 1;
            self.clean = None;
        }
        if self.found.batches > BATCHES {
            return Ok(());
        }
        // An interrupted batch goes on without it.
        if self.clean.is_none() {
            self.clean = Some(clean(batch, decoder, variant)?);
        }
        let Some(clean) = &self.clean else { return Ok(()) };
        if index == 0 {
            self.found.positions += clean.batch.positions();
            return Ok(());
        }
        let logits = Self::run(clean, &self.jobs[index], decoder, variant)?;
        self.found.sums[index] += clean.whole.divergence(&logits, &clean.batch);
        if index + 1 == self.jobs.len() {
            self.clean = None;
        }
        Ok(())
    }

    fn save(&self) -> Option<Value> {
        serde_json::to_value(&self.found).ok()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let Ok(saved) = Divergences::deserialize(saved) else { return false };
        let fits = saved.sums.len() == self.jobs.len();
        if fits {
            self.found = saved;
        }
        fits
    }

    fn figures(&self) -> Vec<Figure> {
        let Some(RescueSummary { from, rescued, pairs, .. }) = self.summary() else {
            return Vec::new();
        };
        let names = || (0..self.streams).map(|i| format!("stream {i}"));
        let mut series = Vec::new();
        for (at, name) in [(Held::Zero, "0"), (Held::Mean, "its mean")] {
            for &from in &self.depths {
                let job = |i| Job::Ablate { streams: vec![i], at, from, rescued: None };
                let values = (0..self.streams).map(|i| self.divergence(&job(i)));
                series.push(bars(format!("at {name} from sub-layer {from} on"), values));
            }
        }
        let mut figures = vec![
            Words {
                name: "streams-ablated",
                title: "Predictions without a stream",
                caption: "How far the next-token predictions move, KL(clean, ablated), when one stream is held at zero or \
                          at its mean over tokens from a sub-layer on, with all reading, writing and mixing weights those \
                          of the clean run. A stream near zero carries nothing that counts.",
            }
            .with(
                Axis::new("stream that is held").categories(names()),
                Axis::new("KL").unit("nats"),
                Marks::Bars { series },
            ),
        ];
        if rescued.iter().flatten().any(Option::is_some) {
            let caption = format!(
                "A stream is held at zero from sub-layer {from} on, and another one at its clean values: the share of the \
                 divergence that this takes away. One means that the loss was felt through that stream alone; differences \
                 between (i, j) and (j, i) say which feeds the other; below zero it makes things worse."
            );
            figures.push(
                Words {
                    name: "streams-rescued",
                    title: "Rescue by another stream",
                    caption: &caption,
                }
                .with(
                    Axis::new("stream with clean values").categories(names()),
                    Axis::new("stream that is held at zero").categories(names()),
                    Marks::Heat {
                        values: rescued,
                        legend: "share of the divergence taken away".into(),
                    },
                ),
            );
        }
        if !pairs.is_empty() {
            let caption = format!(
                "KL without two streams (held at zero from sub-layer {from} on) beside the sum of what each costs alone. \
                 Together dearer than apart: each backs up the other. Cheaper: both carry the same thing to the end."
            );
            let places =
                pairs.iter().map(|pair| format!("{} and {}", pair.streams.0, pair.streams.1));
            figures.push(
                Words {
                    name: "streams-pairs",
                    title: "Predictions without two streams",
                    caption: &caption,
                }
                .with(
                    Axis::new("streams").categories(places),
                    Axis::new("KL").unit("nats"),
                    Marks::Bars {
                        series: vec![
                            bars("together", pairs.iter().map(|pair| Some(pair.together))),
                            bars("sum of both alone", pairs.iter().map(|pair| Some(pair.apart))),
                        ],
                    },
                ),
            );
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        summary.rescue = self.summary();
    }
}
