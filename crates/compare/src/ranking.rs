//! Variants in the order in which people look for them, and the answer in one sentence.

use super::results::{Cell, Results};
use hadal_report::comparison::{Comparison, Found};
use hadal_report::statistics::Verdict;

/// A place in the ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The number of the cell.
    pub cell: usize,
    /// Whether it is the lowest of those at its depth that are better than the baseline. If none is, none is the best:
    /// the lowest mean alone is luck.
    pub best: bool,
}

impl Results {
    /// Cells depth by depth, the lowest loss first and those without any last.
    pub fn ranking(&self) -> Vec<Ranked> {
        let mut depths: Vec<Option<usize>> = Vec::new();
        for cell in &self.cells {
            if !depths.contains(&cell.depth) {
                depths.push(cell.depth);
            }
        }
        let mut all = Vec::new();
        for depth in depths {
            let of_depth = (0..self.cells.len()).filter(|&at| self.cells[at].depth == depth);
            let loss = |at: usize| match self.cells[at].validation_loss.mean {
                loss if loss.is_nan() => f64::INFINITY,
                loss => loss,
            };
            let mut order: Vec<usize> = of_depth.collect();
            order.sort_by(|&a, &b| loss(a).total_cmp(&loss(b)));
            let is_better = |&at: &usize| self.cells[at].verdict() == Some(Verdict::Better);
            let best = order.iter().copied().find(is_better);
            all.extend(order.iter().map(|&cell| Ranked { cell, best: Some(cell) == best }));
        }
        all
    }

    /// All that words need.
    fn comparison(&self) -> Comparison {
        let found = |cell: &Cell| {
            let against = cell.against.as_ref()?;
            Some(Found {
                policy: cell.variant.clone(),
                depth: cell.depth,
                baseline: self.baseline.clone(),
                paired: against.paired,
                p: against.p_holm,
                verdict: against.verdict,
                power: against.power,
                tokens: against.speed_up_tokens,
                seconds: against.speed_up_seconds,
                by_seed: against.by_seed.clone(),
            })
        };
        Comparison {
            metric: self.metric.into(),
            task: self.task.clone(),
            baseline: self.baseline.clone(),
            found: self.cells.iter().filter_map(found).collect(),
            looks: self.looks.clone(),
        }
    }

    /// The answer, then each comparison in a sentence, then what they are worth.
    pub(super) fn answer(&self) -> Vec<String> {
        let comparison = self.comparison();
        let done = self.runs.iter().filter(|run| run.counts()).count();
        let nothing = || match self.cells.iter().any(|cell| cell.against.is_some()) {
            true => format!("No comparison: {done} of {} runs are done and whole", self.runs.len()),
            false => format!("Only {} was run", self.baseline),
        };
        let headline = comparison.headline().unwrap_or_else(nothing);
        let evidence = comparison.sentences().into_iter().chain(comparison.beside());
        std::iter::once(headline).chain(evidence).collect()
    }
}

impl Cell {
    fn verdict(&self) -> Option<Verdict> {
        Some(self.against.as_ref()?.verdict)
    }
}
