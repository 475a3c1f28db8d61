//! A table of how restless training was.

use super::comparable::section;
use super::group::Group;
use super::html::{Cell, Html};
use crate::palette::Look;
use crate::run::Run;
use crate::statistics::{RISE, Spikes, WINDOW};

/// What gradients are clipped to unless a run says otherwise.
const CLIP: f64 = 1.0;

/// A run's clipping.
pub(super) fn clip(run: &Run) -> f64 {
    let clip = section(run, "optimizer").get("clip").cloned();
    clip.and_then(|clip| clip.as_f64()).unwrap_or(CLIP)
}

fn of(group: &Group) -> Option<Spikes> {
    let runs = group.runs.iter().map(|run| run.steps.as_slice());
    Spikes::together(runs, clip(group.first()))
}

/// Writes the table: a row for each group, its seeds together.
pub(super) fn write(html: &mut Html, groups: &[Group], looks: &[(String, Look)]) {
    let row = |group: &Group| -> Option<Vec<Cell>> {
        let spikes = of(group)?;
        let look = looks.iter().find(|(name, _)| *name == group.policy).map(|(_, look)| *look);
        let clipped = spikes.clip.map_or_else(String::new, |_| spikes.clipped.to_string());
        Some(vec![
            Cell::Name { text: group.label.clone(), look, is_best: false },
            Cell::Number(spikes.steps.to_string()),
            Cell::Number(spikes.spikes.to_string()),
            Cell::Number(format!("{:.1}", spikes.in_ten_thousand())),
            Cell::Number(spikes.gradient.map_or_else(String::new, |norm| format!("{norm:.2}"))),
            Cell::Number(clipped),
        ])
    };
    let rows: Vec<Vec<Cell>> = groups.iter().filter_map(row).collect();
    if rows.is_empty() {
        return;
    }
    let head = ["run", "steps", "spikes", "in 10,000 steps", "gradient, 99.9 %", "clipped steps"];
    html.markup("<h3>Spikes</h3><p class=\"soft\">Steps whose loss is more than ");
    html.text(format!("{RISE} nats above the median of up to {WINDOW} steps around it"));
    html.markup(", the gradient norm before clipping that 99.9 % of steps stay below, and steps that were clipped; seeds together.</p>");
    html.table(&head.map(str::to_owned), &rows);
}
