//! Variants in the order in which people look for them, and the answer in one sentence.

use super::results::{Cell, Results};
use super::table::difference;
use hadal_report::statistics::{SpeedUp, Verdict};

/// More names than this make no headline.
const MANY_NAMES: usize = 4;

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

    /// The answer: which variants are better, worse, or neither.
    pub(super) fn headline(&self) -> String {
        let seeds = match self.seeds.len() {
            1 => "1 seed".into(),
            seeds => format!("{seeds} seeds"),
        };
        let (baseline, metric) = (&self.baseline, self.metric);
        // The largest differences are named first.
        let mut cells: Vec<&Cell> = self.cells.iter().collect();
        let gain = |cell: &Cell| cell.against.as_ref().map_or(0.0, |a| a.paired.mean_difference);
        cells.sort_by(|a, b| gain(a).total_cmp(&gain(b)));
        let mut parts: Vec<String> = Vec::new();
        for verdict in [
            Verdict::Better,
            Verdict::NotDistinguishable,
            Verdict::Worse,
            Verdict::OneSeed,
            Verdict::NothingToCompare,
        ] {
            let mut of: Vec<&Cell> =
                cells.iter().copied().filter(|cell| cell.verdict() == Some(verdict)).collect();
            if verdict == Verdict::Worse {
                of.reverse();
            }
            let Some((first, others)) = of.split_first() else { continue };
            let leads = parts.is_empty();
            let all = names(&of, if leads { "" } else { "others" });
            parts.push(match (verdict, leads) {
                (Verdict::Better | Verdict::Worse, true) => {
                    let so = match others {
                        [] => String::new(),
                        [other] => format!(" (so is {})", other.name()),
                        others => format!(" (so are {})", names(others, "others")),
                    };
                    let name = first.name();
                    format!("{name} is {verdict} than {baseline}: {metric} {}{so}", gained(first))
                }
                (Verdict::NotDistinguishable, true) => {
                    format!("No difference to {baseline} was seen in {metric}: {all}")
                }
                (Verdict::NotDistinguishable, false) => format!("no difference seen: {all}"),
                (Verdict::OneSeed, _) => format!("undecided, one seed is not enough: {all}"),
                (Verdict::NothingToCompare, _) => format!("without a run to compare: {all}"),
                (verdict, _) => format!("{verdict}: {all}"),
            });
        }
        match parts.is_empty() {
            true => format!("Only {baseline} was run ({seeds})."),
            false => format!("{} ({seeds}).", parts.join("; ")),
        }
    }
}

impl Cell {
    fn verdict(&self) -> Option<Verdict> {
        Some(self.against.as_ref()?.verdict)
    }
}

/// Names, or how many there are.
fn names(cells: &[&Cell], what: &str) -> String {
    if cells.len() > MANY_NAMES {
        return format!("{} {what}", cells.len()).trim_end().to_owned();
    }
    cells.iter().map(|cell| cell.name()).collect::<Vec<_>>().join(", ")
}

/// `-0.0380, 1.52 times fewer tokens`
fn gained(cell: &Cell) -> String {
    let Some(against) = &cell.against else { return String::new() };
    let mut text = difference(against);
    // A ratio of means that differ by luck alone says nothing.
    if against.verdict == Verdict::Better
        && let SpeedUp::Times(times) = against.speed_up_tokens
    {
        text += &format!(", {times:.2} times fewer tokens");
    }
    text
}
