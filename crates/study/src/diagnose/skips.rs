//! Which tokens skip what: by depth, by kind, by position and by token.

use super::diagnostic::Diagnostic;
use super::draw::{Words, bars, line};
use super::summary::{SkipsSummary, Summary, TokenSkips};
use super::sums::{Mean, slot};
use super::values::Values;
use hadal_data::Batch;
use hadal_model::{ModelConfig, Saving, Tokenizer};
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_residual::{Place, Signal, Site, SubLayerKind};
use std::collections::BTreeMap;

/// A token that occurs less often says little.
const LEAST_SEEN: u64 = 5;
/// Tokens at either end of the order that are shown.
const SHOWN: usize = 15;
/// The number of these that the summary names.
const TOLD: usize = 5;

/// What was seen of the tokens' decisions.
pub(crate) struct Skips {
    /// FLOPs that a token saves at each sub-layer.
    weights: Vec<Saving>,
    tokenizer: Option<Tokenizer>,
    /// The tokens of this batch.
    ids: Vec<u32>,
    sites: Vec<Mean>,
    /// `[kind][position]`
    positions: [Vec<Mean>; 2],
    /// Runs that each token could have made, and those that it skipped.
    tokens: BTreeMap<u32, (u64, u64)>,
    /// FLOPs that were skipped, and FLOPs that could have been.
    saved: f64,
    skippable: f64,
}

impl Skips {
    pub(crate) fn new(config: &ModelConfig, tokenizer: Option<Tokenizer>) -> Self {
        let sites = 2 * config.n_layers;
        Self {
            weights: (0..sites).map(|site| Saving::of(config, Site::new(site))).collect(),
            tokenizer,
            ids: Vec::new(),
            sites: vec![Mean::default(); sites],
            positions: Default::default(),
            tokens: BTreeMap::new(),
            saved: 0.0,
            skippable: 0.0,
        }
    }

    /// The share of tokens that skip a sub-layer.
    pub(crate) fn at(&self, site: usize) -> Option<f64> {
        self.sites[site].get()
    }

    fn of_kind(&self, kind: SubLayerKind) -> Option<f64> {
        let sites = (0..self.sites.len()).filter(|&site| Site::new(site).kind() == kind);
        let shares: Vec<f64> = sites.filter_map(|site| self.at(site)).collect();
        (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    }

    /// Tokens that occur often enough, those that skip most first.
    fn by_token(&self) -> Vec<TokenSkips> {
        let seen = self.sites.iter().filter(|mean| mean.get().is_some()).count().max(1) as u64;
        let often = self.tokens.iter().filter(|(_, (runs, _))| runs / seen >= LEAST_SEEN);
        let mut tokens: Vec<TokenSkips> = often
            .map(|(&id, &(runs, skipped))| TokenSkips {
                id,
                text: self.text(id),
                count: runs / seen,
                skipped: skipped as f64 / runs as f64,
            })
            .collect();
        tokens.sort_by(|a, b| b.skipped.total_cmp(&a.skipped).then(a.id.cmp(&b.id)));
        tokens
    }

    /// The token's text, if it has one of its own.
    fn text(&self, id: u32) -> Option<String> {
        let text = self.tokenizer.as_ref()?.decode(&[id]).ok()?;
        (!text.is_empty() && !text.contains('\u{fffd}')).then_some(text)
    }

    fn depth_figure(&self) -> Figure {
        let kind = |first: usize| (first..self.sites.len()).step_by(2).map(|site| self.at(site));
        Words {
            name: "skip-by-depth",
            title: "Skipped tokens by depth",
            caption: "Share of tokens whose gate is below the threshold, so that they pass the sub-layer unchanged. A \
                      sub-layer that everybody skips could go; gaps are sub-layers that cannot be skipped.",
        }
        .lines(
            Axis::new("block"),
            Axis::new("share of tokens skipped"),
            vec![line("attention", kind(0)), line("MLP", kind(1))],
        )
    }

    fn position_figure(&self) -> Figure {
        let kind = |kind: usize| self.positions[kind].iter().map(Mean::get);
        Words {
            name: "skip-by-position",
            title: "Skipped sub-layers by position",
            caption: "Share of the attention and MLP sub-layers that tokens skip, by their place in the sequence. The first \
                      tokens have little context to attend to.",
        }
        .lines(
            Axis::new("position"),
            Axis::new("share of sub-layers skipped"),
            vec![line("attention", kind(0)), line("MLP", kind(1))],
        )
    }

    fn token_figure(&self) -> Option<Figure> {
        let mut tokens = self.by_token();
        if tokens.is_empty() {
            return None;
        }
        if tokens.len() > 2 * SHOWN {
            tokens.drain(SHOWN..tokens.len() - SHOWN);
        }
        let caption = format!(
            "Share of the sub-layers that a token skips on average: the tokens that skip most, then those that skip least, with \
             their count, among tokens that occur at least {LEAST_SEEN} times."
        );
        let words = Words {
            name: "skip-by-token",
            title: "Skipped sub-layers by token",
            caption: &caption,
        };
        let names = tokens.iter().map(|token| format!("{} x{}", token.name(), token.count));
        let axis = Axis::new("token").categories(names);
        let series = vec![bars("skipped", tokens.iter().map(|token| Some(token.skipped)))];
        Some(words.with(axis, Axis::new("share of sub-layers skipped"), Marks::Bars { series }))
    }
}

impl Diagnostic for Skips {
    fn wants(&self, signal: Signal) -> bool {
        signal == Signal::Skipped
    }

    fn begin(&mut self, batch: &Batch) {
        self.ids = batch.input.ids().to_vec();
    }

    fn see(&mut self, place: Place, _: Signal, values: &Values) {
        let Place::Site(site) = place else { return };
        let kind = usize::from(site.kind() == SubLayerKind::Mlp);
        let Saving { token, key, own_key } = self.weights[site.index];
        for (place, &id) in self.ids.iter().enumerate().take(values.tokens()) {
            let (skipped, position) = (values.number(place), place % values.time());
            self.sites[site.index].add(skipped);
            slot(&mut self.positions[kind], position).add(skipped);
            let entry = self.tokens.entry(id).or_default();
            entry.0 += 1;
            entry.1 += u64::from(skipped > 0.5);
            let weight = (token + own_key + key * (position + 1) as u64) as f64;
            self.skippable += weight;
            self.saved += weight * skipped;
        }
    }

    fn figures(&self) -> Vec<Figure> {
        if self.skippable == 0.0 {
            return Vec::new();
        }
        let mut figures = vec![self.depth_figure(), self.position_figure()];
        figures.extend(self.token_figure());
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        if self.skippable == 0.0 {
            return;
        }
        let tokens = self.by_token();
        // No token is in both lists.
        let told = TOLD.min(tokens.len().div_ceil(2));
        summary.skips = Some(SkipsSummary {
            flops: self.saved / self.skippable,
            attention: self.of_kind(SubLayerKind::Attention),
            mlp: self.of_kind(SubLayerKind::Mlp),
            most: tokens.iter().take(told).cloned().collect(),
            least: tokens.iter().rev().take(told).cloned().collect(),
        });
    }
}
