//! What tuning found, in words and as a table.

use super::choice::{Edge, Side};
use super::grid::LR_SCALE;
use super::results::{TunedVariant, Tuning};
use super::section::Per;
use crate::results::{RunResult, RunState};
use hadal_report::suite::SideTable;

/// More names than these are not read.
const ENOUGH: usize = 4;
const DASH: &str = "–";

impl Tuning {
    /// What was done and what must be known of it, in sentences.
    pub(crate) fn sentences(&self) -> Vec<String> {
        std::iter::once(self.summary()).chain(self.warnings()).collect()
    }

    /// `Every variant is at its own best of 5 points (lr_scale), by mean held-out loss over 2 seeds that the table does
    /// not use. Tuning took 50 runs, 1.2e13 FLOPs, ..`
    fn summary(&self) -> String {
        let mut sizes: Vec<usize> = self.variants.iter().map(TunedVariant::size).collect();
        sizes.sort_unstable();
        let points = match (sizes.first(), sizes.last()) {
            (Some(few), Some(most)) if few != most => format!("{few} to {most} points"),
            (Some(1), _) => "1 point".into(),
            (Some(all), _) => format!("{all} points"),
            _ => "no point".into(),
        };
        let keys = self.keys().join(", ");
        let percent = 100.0 * self.keep;
        let halving = match self.rounds {
            1 => String::new(),
            rounds => format!(
                ", in {rounds} rounds, each with more steps for the best {percent:.0} % of the points"
            ),
        };
        let share = match self.share {
            share if share < 1.0 => format!(", with {share} of the steps"),
            _ => String::new(),
        };
        let place = match (self.per, self.depth) {
            (Per::Cell, _) => " at each depth".into(),
            (Per::Variant, Some(depth)) => format!(" (found at {depth} blocks, used at all)"),
            (Per::Variant, None) => String::new(),
        };
        let spent = &self.spent;
        format!(
            "Every variant is at its own best{place} of {points} ({keys}), by mean held-out loss over {} that the table does not use{share}{halving}. Tuning took {} runs, {:.1e} FLOPs, {:.1e} tokens and {} of training steps.",
            counted(self.seeds.len(), "seed"),
            self.runs,
            spent.flops,
            spent.tokens as f64,
            time(spent.seconds),
        )
    }

    /// Keys that are searched, in the order of the suite.
    pub(crate) fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = Vec::new();
        for axis in self.variants.iter().flat_map(|tuned| &tuned.grid) {
            if !keys.contains(&axis.key.as_str()) {
                keys.push(&axis.key);
            }
        }
        keys
    }

    /// What stands in the way of believing it.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self
            .variants
            .iter()
            .flat_map(|tuned| tuned.edges.iter().map(move |edge| widen(tuned, edge)))
            .collect();
        for tuned in self.variants.iter().filter(|tuned| tuned.chosen.is_none()) {
            warnings.push(format!(
                "{}: no point of its grid came to an end on every seed, so it runs with the suite's own settings; give it smaller values in [variant.tune].",
                tuned.name()
            ));
        }
        warnings.extend(self.failures());
        if !self.untuned.is_empty() {
            warnings.push(format!(
                "{} is not tuned and runs with the suite's settings.",
                listed(&self.untuned)
            ));
        }
        let damage = self.all_runs().flat_map(|run| run.damage.iter().cloned());
        warnings.extend(damage);
        warnings.extend(self.earlier.warnings.iter().cloned());
        warnings
    }

    fn failures(&self) -> Option<String> {
        let said = |run: &RunResult| {
            let (how, said) = match &run.state {
                RunState::Done => return None,
                RunState::Diverged(said) => ("diverged", said.as_str()),
                RunState::Failed(said) => ("failed", said.as_str()),
                RunState::Damaged(said) => ("is damaged", said.as_str()),
                RunState::Stopped => ("was stopped", ""),
            };
            let why = said.split(';').next().unwrap_or_default().trim_end_matches('.');
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            Some(format!("{} {how}{why}", run.name))
        };
        let failed: Vec<String> = self.all_runs().filter_map(said).collect();
        (!failed.is_empty()).then(|| {
            format!(
                "{} of {} tuning runs came to no result, which counts as the worst: {}.",
                failed.len(),
                self.runs,
                listed(&failed)
            )
        })
    }

    /// A sentence for each choice.
    pub(crate) fn choices(&self) -> Vec<String> {
        let of = |tuned: &TunedVariant| match tuned.loss {
            Some(loss) => format!("{} is tuned to {}: loss {loss:.4}", tuned.name(), tuned.text()),
            None => format!("{} is not tuned: every point failed", tuned.name()),
        };
        self.variants.iter().map(of).collect()
    }

    /// What was chosen, a row for each variant.
    pub(crate) fn table(&self) -> SideTable {
        let keys = self.keys();
        let by_depth = self.variants.iter().any(|tuned| tuned.depth.is_some());
        let mut columns = vec!["policy".to_owned()];
        columns.extend(by_depth.then(|| "blocks".to_owned()));
        columns.extend(keys.iter().map(|key| (*key).to_owned()));
        let more =
            ["rate, AdamW", "rate, Muon", "held-out loss", "tried", "edge", "points", "runs"];
        columns.extend(more.map(str::to_owned));
        columns.push("FLOPs".into());
        let row = |tuned: &TunedVariant| {
            let mut row = vec![tuned.variant.clone()];
            if by_depth {
                row.push(tuned.depth.map_or_else(|| DASH.into(), |depth| depth.to_string()));
            }
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| DASH.into());
            let chosen = tuned.chosen.as_ref();
            row.extend(keys.iter().map(|key| or_dash(chosen.and_then(|point| point.text(key)))));
            row.push(or_dash(tuned.rates.map(|(adamw, _)| short(adamw))));
            row.push(or_dash(tuned.rates.map(|(_, muon)| short(muon))));
            row.push(or_dash(tuned.loss.map(|loss| format!("{loss:.4}"))));
            row.push(tuned.tried());
            row.push(tuned.edges.iter().map(Edge::text).collect::<Vec<_>>().join("; "));
            row.push(tuned.size().to_string());
            row.push(tuned.runs().count().to_string());
            row.push(format!("{:.2e}", tuned.spent.flops));
            row
        };
        SideTable {
            name: "tuning".into(),
            title: "What each policy was tuned to".into(),
            caption: self.summary(),
            rows: self.variants.iter().map(row).collect(),
            columns,
        }
    }
}

impl TunedVariant {
    /// `lr_scale 2`, with a word where the grid ends.
    pub fn text(&self) -> String {
        let Some(chosen) = &self.chosen else { return "not tuned: every point failed".into() };
        let part = |key: &str| {
            let edge = self.edges.iter().find(|edge| edge.key == key);
            let edge = edge.map_or_else(String::new, |_| " (edge)".into());
            Some(format!("{key} {}{edge}", chosen.text(key)?))
        };
        let parts: Vec<String> = self.grid.iter().filter_map(|axis| part(&axis.key)).collect();
        parts.join(", ")
    }

    /// The range of each key's values: `0.25 to 4`.
    fn tried(&self) -> String {
        let range = |axis: &super::grid::Axis| match axis.numbers() {
            Some(numbers) if numbers.len() > 1 => {
                let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
                let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                format!("{} {low} to {high}", axis.key)
            }
            _ => {
                let values: Vec<String> = axis.values.iter().map(super::grid::text).collect();
                format!("{} {}", axis.key, values.join(", "))
            }
        };
        self.grid.iter().map(range).collect::<Vec<_>>().join("; ")
    }
}

impl Edge {
    /// `lr_scale 4 is the highest tried`.
    fn text(&self) -> String {
        let end = match self.side {
            Side::Lowest => "lowest",
            Side::Highest => "highest",
        };
        format!("{} {} is the {end}", self.key, self.value)
    }
}

/// What to do about a best value at the end of its grid.
fn widen(tuned: &TunedVariant, edge: &Edge) -> String {
    let what = if edge.key == LR_SCALE { "learning rate" } else { "value" };
    format!(
        "{}: {} of its grid, so a better {what} may lie beyond; add {} to {} in [tune] or its [variant.tune] and start again (what was trained is kept).",
        tuned.name(),
        edge.text(),
        edge.next,
        edge.key
    )
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn listed(names: &[String]) -> String {
    match names.len() {
        more if more > ENOUGH => {
            format!("{} and {} more", names[..ENOUGH].join(", "), more - ENOUGH)
        }
        _ => names.join(", "),
    }
}

fn short(rate: f64) -> String {
    if rate == 0.0 || (1e-3..1e3).contains(&rate) { rate.to_string() } else { format!("{rate:e}") }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
