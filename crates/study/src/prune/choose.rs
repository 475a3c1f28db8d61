//! Which parts go: a budget, a score, and one look or many.

use super::error::PruneError;
use super::measure::{Cost, Costs};
use super::scores::{PartScore, Scores};
use hadal_model::Part;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// How much may go. Every limit that is given holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// This many blocks, or sub-layers if those are cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<usize>,
    /// This share of them, in per cent, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// As long as perplexity rises by no more than this percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_perplexity_rise: Option<f64>,
    /// As long as KL(whole || cut) is no more than this, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_kl: Option<f64>,
}

impl Budget {
    /// The most parts that may go, or all candidates if costs alone decide.
    pub(super) fn count(&self, all: usize, candidates: usize) -> Result<usize, PruneError> {
        for (name, value) in [
            ("--percent", self.percent),
            ("--max-ppl-rise", self.max_perplexity_rise),
            ("--max-kl", self.max_kl),
        ] {
            let Some(value) = value else { continue };
            if !(value.is_finite() && value >= 0.0) {
                return Err(PruneError::Limit {
                    name,
                    value,
                    reason: "it must be zero or a positive number",
                });
            }
        }
        if let Some(value) = self.percent.filter(|&percent| percent >= 100.0) {
            return Err(PruneError::Limit {
                name: "--percent",
                value,
                reason: "it must be below 100",
            });
        }
        let share = self.percent.map(|percent| (percent / 100.0 * all as f64).floor() as usize);
        match (self.blocks, share) {
            (Some(blocks), Some(share)) => Ok(blocks.min(share)),
            (Some(count), None) | (None, Some(count)) => Ok(count),
            (None, None) if self.limits_cost() => Ok(candidates),
            (None, None) => Err(PruneError::NoBudget),
        }
    }

    pub(super) fn limits_cost(&self) -> bool {
        self.max_perplexity_rise.is_some() || self.max_kl.is_some()
    }

    fn allows(&self, whole: &Cost, cut: &Cost) -> bool {
        let most = |percent: f64| whole.perplexity * (1.0 + percent / 100.0);
        self.max_perplexity_rise.is_none_or(|percent| cut.perplexity <= most(percent))
            && self.max_kl.is_none_or(|kl| cut.kl <= kl)
    }
}

/// What parts are ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Angular distance (Gromov).
    Distance,
    /// Block Influence (ShortGPT).
    Influence,
    /// The loss without the part.
    Loss,
    /// KL to the whole model.
    Kl,
}

impl Score {
    /// Every score.
    pub const ALL: [Self; 4] = [Self::Distance, Self::Influence, Self::Loss, Self::Kl];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Distance => "distance",
            Self::Influence => "influence",
            Self::Loss => "loss",
            Self::Kl => "kl",
        }
    }

    fn of(self, score: &PartScore) -> Option<f64> {
        match self {
            Self::Distance => score.distance,
            Self::Influence => score.influence,
            Self::Loss => score.loss_change,
            Self::Kl => score.kl,
        }
    }

    fn of_cost(self, cost: &Cost) -> f64 {
        if self == Self::Kl { cost.kl } else { cost.loss }
    }

    pub(super) fn is_measured(self) -> bool {
        matches!(self, Self::Loss | Self::Kl)
    }
}

impl FromStr for Score {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|score| score.name() == name)
            .ok_or_else(|| hadal_residual::unknown("score", name, &Self::ALL.map(Self::name)))
    }
}

/// How parts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The lowest scores of the whole model.
    OneShot,
    /// One after another; after each, everything that is left is measured again without the parts that are gone.
    Greedy,
}

/// What to choose from, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// How much may go.
    pub budget: Budget,
    /// What parts are ranked by.
    pub score: Score,
    /// How they are chosen.
    pub method: Method,
    /// Whether blocks must follow each other.
    pub contiguous: bool,
    /// Whether attention and MLPs go separately.
    pub sub_layers: bool,
    /// Blocks that stay; negative ones are counted from the end.
    pub protect: Vec<i64>,
}

/// The first, the second and the last: what every published ablation found to be dear.
pub(crate) const PROTECTED: [i64; 3] = [0, 1, -1];

impl Default for Options {
    fn default() -> Self {
        Self {
            budget: Budget::default(),
            score: Score::Loss,
            method: Method::Greedy,
            contiguous: false,
            sub_layers: false,
            protect: PROTECTED.to_vec(),
        }
    }
}

impl Options {
    pub(super) fn check(&self) -> Result<(), PruneError> {
        if self.contiguous && self.sub_layers {
            return Err(PruneError::Method(
                "sub-layers are chosen one by one; leave out --contiguous or --sub-layers",
            ));
        }
        if self.method == Method::Greedy && !self.score.is_measured() {
            return Err(PruneError::Method(
                "greedy choice measures what is left after each cut; choose --score loss or kl, or --method one-shot",
            ));
        }
        // Refused before anything is measured.
        self.budget.count(1, 1).map(drop)
    }

    pub(super) fn protects(&self, block: usize, blocks: usize) -> bool {
        let index = block as i64;
        self.protect.iter().any(|&wanted| wanted == index || wanted == index - blocks as i64)
    }
}

/// Measures cuts.
pub(super) type Measure<'a> = &'a mut dyn FnMut(&[Vec<Part>]) -> Result<Costs, PruneError>;

/// Chooses the parts that go, in the order in which they were chosen.
pub(super) fn choose(
    scores: &Scores,
    options: &Options,
    measure: Measure,
) -> Result<Vec<Part>, PruneError> {
    options.check()?;
    let blocks = scores.distances.len();
    let wanted = |part: Part| matches!(part, Part::Block(_)) != options.sub_layers;
    let kinds = scores.parts.iter().filter(|score| wanted(score.part));
    let all = kinds.clone().count();
    let refused = kinds.clone().filter(|score| score.refused.is_some()).count();
    let free = |score: &&PartScore| {
        score.refused.is_none() && !options.protects(score.part.block(), blocks)
    };
    let candidates: Vec<&PartScore> = kinds.filter(free).collect();
    let count = options.budget.count(all, candidates.len())?;
    if count > candidates.len() {
        return Err(PruneError::TooMany {
            wanted: count,
            candidates: candidates.len(),
            protected: (0..blocks).filter(|&block| options.protects(block, blocks)).count(),
            blocks,
            refused,
        });
    }
    let chooser = Chooser { scores, options, candidates, count };
    match (options.method, options.contiguous) {
        (Method::Greedy, _) => chooser.greedy(measure),
        (Method::OneShot, false) => chooser.one_shot(measure),
        (Method::OneShot, true) => chooser.window(measure),
    }
}

struct Chooser<'a> {
    scores: &'a Scores,
    options: &'a Options,
    candidates: Vec<&'a PartScore>,
    count: usize,
}

impl Chooser<'_> {
    /// The lowest scores first; among equal scores the deeper part, which is likelier to be redundant.
    fn one_shot(&self, measure: Measure) -> Result<Vec<Part>, PruneError> {
        let rank = |score: &PartScore| self.options.score.of(score).unwrap_or(f64::INFINITY);
        let mut order = self.candidates.clone();
        order.sort_by(|a, b| rank(a).total_cmp(&rank(b)).then(b.part.cmp(&a.part)));
        let order: Vec<Part> = order.iter().map(|score| score.part).collect();
        if !self.options.budget.limits_cost() {
            return Ok(order[..self.count].to_vec());
        }
        self.longest(measure, |length, _| Ok(order[..length].to_vec()))
    }

    /// The longest choice within the budget; lengths are tried from one on.
    fn longest(
        &self,
        measure: Measure,
        choice: impl Fn(usize, Measure) -> Result<Vec<Part>, PruneError>,
    ) -> Result<Vec<Part>, PruneError> {
        let mut kept = Vec::new();
        for length in 1..=self.count {
            let parts = match choice(length, measure) {
                // A shorter window was free, this one is not.
                Err(PruneError::TooMany { .. }) if !kept.is_empty() => break,
                other => other?,
            };
            let costs = measure(std::slice::from_ref(&parts))?;
            match costs.cuts.first() {
                Some(Ok(cut)) if self.options.budget.allows(&costs.whole, cut) => kept = parts,
                Some(Ok(cut)) if kept.is_empty() => return Err(nothing_fits(&parts, &costs, cut)),
                _ => break,
            }
        }
        Ok(kept)
    }

    /// The blocks that follow each other and score lowest together.
    fn window(&self, measure: Measure) -> Result<Vec<Part>, PruneError> {
        if !self.options.budget.limits_cost() {
            return self.best_window(self.count, measure);
        }
        self.longest(measure, |length, measure| self.best_window(length, measure))
    }

    fn best_window(&self, length: usize, measure: Measure) -> Result<Vec<Part>, PruneError> {
        if length == 0 {
            return Ok(Vec::new());
        }
        let blocks = self.scores.distances.len();
        let free =
            |block: usize| self.candidates.iter().any(|score| score.part == Part::Block(block));
        let fits = |&first: &usize| (first..first + length).all(free);
        let firsts: Vec<usize> = (0..(blocks + 1).saturating_sub(length)).filter(fits).collect();
        let parts = |first: usize| (first..first + length).map(Part::Block).collect::<Vec<_>>();
        let windows: Vec<Vec<Part>> = firsts.iter().map(|&first| parts(first)).collect();
        let values: Vec<f64> = match self.options.score {
            Score::Distance => {
                let distance = |&first: &usize| {
                    self.scores.distances[first].get(length - 1).copied().flatten()
                };
                firsts.iter().map(|first| distance(first).unwrap_or(f64::INFINITY)).collect()
            }
            Score::Influence => {
                let sum = |window: &Vec<Part>| {
                    window.iter().filter_map(|&part| self.scores.of(part)?.influence).sum()
                };
                windows.iter().map(sum).collect()
            }
            Score::Loss | Score::Kl => {
                let costs = measure(&windows)?;
                let value = |cost: &Result<Cost, String>| match cost {
                    Ok(cost) => self.options.score.of_cost(cost),
                    Err(_) => f64::INFINITY,
                };
                costs.cuts.iter().map(value).collect()
            }
        };
        let best = (0..windows.len()).rev().min_by(|&a, &b| values[a].total_cmp(&values[b]));
        best.map(|best| windows[best].clone()).ok_or(PruneError::TooMany {
            wanted: length,
            candidates: self.candidates.len(),
            protected: blocks - self.candidates.len(),
            blocks,
            refused: 0,
        })
    }

    fn greedy(&self, measure: Measure) -> Result<Vec<Part>, PruneError> {
        let mut gone: Vec<Part> = Vec::new();
        while gone.len() < self.count {
            let beside = |part: Part| {
                gone.is_empty()
                    || gone.iter().any(|other| other.block().abs_diff(part.block()) == 1)
            };
            let left = self.candidates.iter().map(|score| score.part);
            let left: Vec<Part> = left
                .filter(|part| !gone.contains(part))
                .filter(|&part| !self.options.contiguous || beside(part))
                .collect();
            let trials: Vec<Vec<Part>> =
                left.iter().map(|&part| [gone.as_slice(), &[part]].concat()).collect();
            let costs = measure(&trials)?;
            let measured = costs.cuts.iter().enumerate();
            let measured = measured.filter_map(|(i, cost)| Some((i, cost.as_ref().ok()?)));
            let value = |cost: &Cost| self.options.score.of_cost(cost);
            // Among equal values, the deeper part.
            let best = measured.rev().min_by(|(_, a), (_, b)| value(a).total_cmp(&value(b)));
            let Some((best, cost)) = best else { break };
            if !self.options.budget.allows(&costs.whole, cost) {
                if gone.is_empty() {
                    return Err(nothing_fits(&trials[best], &costs, cost));
                }
                break;
            }
            gone.push(left[best]);
        }
        Ok(gone)
    }
}

fn nothing_fits(parts: &[Part], costs: &Costs, cut: &Cost) -> PruneError {
    PruneError::NothingFits {
        part: Part::list(parts),
        before: costs.whole.perplexity,
        after: cut.perplexity,
        kl: cut.kl,
    }
}
