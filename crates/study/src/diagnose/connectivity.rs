//! Depth connectivity: how much of the embedding and of every earlier output is in what each sub-layer reads.
//!
//! `h_l = sum_s c[l,s] y_s`, where y_0 is the embedding, y_s the output of sub-layer s - 1, and h_l what sub-layer l (or
//! the head) reads before its norm. Every policy whose weights are numbers has such a c for each token, and least squares
//! find it from what flows by, whatever the policy is called: `sum` all ones (PreNorm), a softmax (attention residuals),
//! `pre_l . R_l-1 .. R_s post_s` (hyper-connections). Where weights differ by channel, c is the nearest numbers, and the
//! share of `|h|^2` that they do not explain is shown.

use super::diagnostic::Diagnostic;
use super::draw::{Words, line, place_at, place_index, site_axis};
use super::least_squares::{Fit, LeastSquares};
use super::summary::Summary;
use super::sums::Mean;
use super::values::Values;
use hadal_data::Batch;
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_residual::{Place, Signal, Site, SubLayerKind};
use serde::{Deserialize, Serialize};

/// Groups of tokens that are looked at in a batch, evenly.
const GROUPS: usize = 64;
/// Batches that are looked at: a mean needs no more.
const BATCHES: usize = 8;
/// Numbers for each unknown, so that rounding is not blown up. One token has them unless a model is deep and narrow.
const SPARE: f64 = 1.25;
/// From this share of `|h|^2` on, a weighted sum does not explain what is read.
const INEXACT: f64 = 1e-6;
/// Weights below this are rounding.
const NOTHING: f64 = 1e-5;

/// What each place reads, in numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectivitySummary {
    /// `c[l][s]`, mean over tokens: readers from the first sub-layer to the head; sources from the embedding on. None
    /// where it cannot be told.
    pub weights: Vec<Vec<Option<f64>>>,
    /// Share of `|h_l|^2` that a weighted sum of the sources does not explain, by reader.
    pub unexplained: Vec<Option<f64>>,
}

impl ConnectivitySummary {
    /// The largest unexplained share.
    pub fn most_unexplained(&self) -> f64 {
        self.unexplained.iter().copied().flatten().fold(0.0, f64::max)
    }

    /// What the head reads, in a sentence without its full stop.
    pub(crate) fn sentence(&self) -> Option<String> {
        let head = self.weights.last()?;
        let mean = |sources: &[Option<f64>]| {
            let known: Vec<f64> = sources.iter().copied().flatten().collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let (embedding, first, last) =
            (head.first().copied()??, mean(head.get(1..3)?)?, mean(&head[head.len() - 2..])?);
        let rest = match self.most_unexplained() {
            share if share > INEXACT => format!(
                ", as far as numbers can say: up to {:.1} % of what is read is weighted by channel",
                100.0 * share
            ),
            _ => String::new(),
        };
        Some(format!(
            "The head reads the embedding with weight {embedding:.2}, the first block's outputs with {first:.2} and the \
             last block's with {last:.2}{rest}"
        ))
    }
}

/// Sums of what was found.
pub(crate) struct Connectivity {
    /// The policy's name, for the title.
    kind: &'static str,
    sites: usize,
    batches: usize,
    /// `[reader][source]`
    weights: Vec<Vec<Mean>>,
    shares: Vec<Vec<Mean>>,
    unexplained: Vec<Mean>,
    /// Tokens that share their weights in a fit.
    group: usize,
    tokens: u64,
    /// The groups of this batch.
    groups: Vec<(Vec<usize>, LeastSquares)>,
    /// Tokens that skip the present sub-layer: what is returned for them means nothing.
    skipped: Vec<bool>,
}

impl Connectivity {
    pub(crate) fn new(kind: &'static str, blocks: usize) -> Self {
        let sites = 2 * blocks;
        Self {
            kind,
            sites,
            batches: 0,
            weights: vec![vec![Mean::default(); sites + 1]; sites + 1],
            shares: vec![vec![Mean::default(); sites + 1]; sites + 1],
            unexplained: vec![Mean::default(); sites + 1],
            group: 1,
            tokens: 0,
            groups: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// `c[l,s]`, mean over tokens.
    pub(crate) fn weight(&self, reader: usize, source: usize) -> Option<f64> {
        let mean = self.weights[reader][source].get()?;
        Some(if mean.abs() < NOTHING { 0.0 } else { mean })
    }

    fn begin_groups(&mut self, values: &Values) {
        let width = values.features().max(1);
        let unknowns = (self.sites + 1) as f64;
        self.group = (SPARE * unknowns / width as f64).ceil().max(1.0) as usize;
        let whole = values.tokens() / self.group;
        let step = whole.div_ceil(GROUPS).max(1);
        let group = self.group;
        self.groups = (0..whole)
            .step_by(step)
            .map(|i| ((i * group..(i + 1) * group).collect(), LeastSquares::default()))
            .collect();
        self.tokens += (self.groups.len() * group) as u64;
    }

    fn add_source(&mut self, source: usize, values: &Values) {
        let skipped = std::mem::take(&mut self.skipped);
        for (tokens, fit) in &mut self.groups {
            let mut rows = Vec::with_capacity(tokens.len() * values.features());
            for &token in &*tokens {
                let row = values.row(token, 0);
                match skipped.get(token) {
                    Some(true) => rows.resize(rows.len() + row.len(), 0.0),
                    _ => rows.extend_from_slice(row),
                }
            }
            fit.add(source, rows);
        }
    }

    fn fit(&mut self, reader: usize, values: &Values) {
        for (tokens, squares) in &self.groups {
            let rows: Vec<f32> =
                tokens.iter().flat_map(|&token| values.row(token, 0)).copied().collect();
            let Some(Fit { terms, unexplained }) = squares.fit(&rows) else { continue };
            self.unexplained[reader].add(unexplained);
            // A source that returns nothing for these tokens has no part in what they read.
            let mut shares = vec![0.0; reader + 1];
            for term in terms {
                shares[term.source] = term.share;
                if term.is_certain {
                    self.weights[reader][term.source].add(term.weight);
                }
            }
            self.shares[reader].iter_mut().zip(shares).for_each(|(mean, share)| mean.add(share));
        }
    }

    fn summary(&self) -> ConnectivitySummary {
        let row = |reader: usize| (0..=reader).map(|source| self.weight(reader, source)).collect();
        ConnectivitySummary {
            weights: (0..=self.sites).map(row).collect(),
            unexplained: self.unexplained.iter().map(Mean::get).collect(),
        }
    }

    /// Readers from top to bottom, sources from left to right, parted by blocks.
    fn map(
        &self,
        words: &Words,
        legend: &str,
        cell: impl Fn(usize, usize) -> Option<f64>,
    ) -> Figure {
        let (readers, sources) = (self.sites + 1, self.sites + 1);
        // A heat map's rows begin at the bottom.
        let values = (0..readers)
            .rev()
            .map(|reader| {
                (0..sources)
                    .map(|source| cell(reader, source).filter(|_| source <= reader))
                    .collect()
            })
            .collect();
        let parted = (1..readers).step_by(2);
        let sources = std::iter::once("emb".to_owned()).chain((0..self.sites).map(short));
        let readers = std::iter::once("out".to_owned()).chain((0..self.sites).rev().map(short));
        words.with(
            Axis::new("source: embedding, then attention (a) and MLP (m) of each block")
                .categories(sources)
                .groups(parted.clone()),
            Axis::new("reader").categories(readers).groups(parted),
            Marks::Heat { values, legend: legend.into() },
        )
    }
}

/// `3a` or `3m`.
fn short(site: usize) -> String {
    let site = Site::new(site);
    let kind = match site.kind() {
        SubLayerKind::Attention => 'a',
        SubLayerKind::Mlp => 'm',
    };
    format!("{}{kind}", site.block())
}

impl Diagnostic for Connectivity {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Embedding | Signal::Reading | Signal::Write | Signal::Skipped)
    }

    fn begin(&mut self, _: &Batch) {
        self.batches += 1;
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        if self.batches > BATCHES {
            return;
        }
        match (signal, place) {
            (Signal::Embedding, _) => {
                self.begin_groups(values);
                self.add_source(0, values);
            }
            (Signal::Reading, place) => self.fit(place_index(place, self.sites), values),
            (Signal::Skipped, Place::Site(_)) => {
                self.skipped = (0..values.tokens()).map(|t| values.number(t) > 0.5).collect();
            }
            (Signal::Write, Place::Site(Site { index })) => self.add_source(index + 1, values),
            _ => {}
        }
    }

    fn end(&mut self) {
        self.groups.clear();
    }

    fn figures(&self) -> Vec<Figure> {
        let ConnectivitySummary { unexplained, weights } = self.summary();
        if weights.iter().flatten().all(Option::is_none) {
            return Vec::new();
        }
        let (worst, most) = (unexplained.iter().enumerate())
            .filter_map(|(reader, share)| Some((reader, (*share)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or_default();
        let exact = match most {
            share if share > INEXACT => format!(
                "Weights by channel or by a norm's gains are not numbers: the nearest ones leave up to {:.2} % of |h|^2 \
                 unexplained (at {}).",
                100.0 * share,
                super::draw::label(place_at(worst, self.sites))
            ),
            _ => "They explain all of it, to rounding.".to_owned(),
        };
        let grouped = match self.group {
            1 => String::new(),
            group => format!(
                " There are more sources than channels, so {group} tokens share their weights in a fit."
            ),
        };
        let caption = format!(
            "Weight c[l,s] of each source in what each reader gets before its norm, h_l = sum_s c[l,s] y_s: mean over {} \
             tokens, by least squares. {exact}{grouped} An empty cell below the diagonal is a source that returns nothing \
             of its own.",
            self.tokens
        );
        let title = format!("Depth connectivity c[l,s]: {}", self.kind);
        let weights = self.map(
            &Words { name: "connectivity", title: &title, caption: &caption },
            "weight c[l,s]",
            |reader, source| self.weight(reader, source),
        );
        let title = format!("What each reading is made of: {}", self.kind);
        let shares = self.map(
            &Words {
                name: "connectivity-share",
                title: &title,
                caption: "Share (c[l,s] y_s . h_l) / |h_l|^2 of each source in what a reader gets, mean over tokens: \
                          weights and sizes together. A row adds up to one, less what is unexplained; a source against \
                          the sum counts below zero.",
            },
            "share of |h|^2",
            |reader, source| self.shares[reader][source].get(),
        );
        let mut figures = vec![weights, shares];
        if most > INEXACT {
            figures.push(
                Words {
                    name: "connectivity-unexplained",
                    title: "What no weighted sum of the sources explains",
                    caption: "Share of |h|^2 that is left when numbers weight the embedding and the outputs: zero for \
                              policies with a weight per token, and above it where channels have weights of their own.",
                }
                .lines(
                    site_axis(),
                    Axis::new("unexplained share of |h|^2"),
                    vec![line("unexplained", unexplained)],
                ),
            );
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        let found = self.summary();
        if found.weights.iter().flatten().any(Option::is_some) {
            summary.connectivity = Some(found);
        }
    }
}
