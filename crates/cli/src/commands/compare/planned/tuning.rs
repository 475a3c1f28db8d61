//! What tuning will run.

use crate::failure::Failure;
use crate::output::{Table, duration, grouped, scaled};
use crate::screen::Screen;
use crate::standard::Stdout;
use hadal_compare::{Lanes, PlannedRun, Suite, TuningRound, estimate};
use hadal_cpu::machine::cores;
use std::collections::BTreeMap;
use std::io::Write;

/// Prints every run that is known before, the number of those that follow from them, and the time of all. Returns the
/// seconds.
pub(super) fn show(
    suite: &Suite,
    rounds: &[TuningRound],
    lanes: Lanes,
    screen: &Screen,
    out: &mut Stdout,
) -> Result<f64, Failure> {
    if rounds.is_empty() {
        return Ok(0.0);
    }
    let mut table = Table::new(&["tuning run", ">parameters", ">steps", ">tokens", ">FLOPs"]);
    let mut seconds = 0.0;
    for round in rounds {
        let rows = match round.is_certain {
            true => round.runs.iter().map(|run| (run.name.clone(), vec![run])).collect(),
            false => together(round),
        };
        let colours = screen.policies(rows.iter().map(|(_, runs)| runs[0].variant.as_str()));
        for ((name, runs), colour) in rows.iter().zip(colours) {
            let sum = |of: fn(&PlannedRun) -> f64| runs.iter().map(|run| of(run)).sum::<f64>();
            table.row([
                name.clone(),
                grouped(runs[0].parameters.into()),
                grouped(runs[0].steps.into()),
                scaled(sum(|run| run.tokens() as f64)),
                scaled(sum(PlannedRun::flops)),
            ]);
            table.paint(0, colour);
        }
        seconds += estimate(suite, &round.runs, lanes, cores())?.seconds;
    }
    table.show(out);
    let runs = rounds.iter().flat_map(|round| &round.runs);
    let flops: f64 = runs.clone().map(PlannedRun::flops).sum();
    let text = format!(
        "Tuning: {} runs, {}FLOPs, about {} here; then the table's runs, each at its variant's best:",
        runs.count(),
        scaled(flops),
        duration(seconds),
    );
    writeln!(out, "{}\n", screen.wrapped(&text, 0))?;
    Ok(seconds)
}

/// Later rounds by variant: which points they have is not known before.
fn together(round: &TuningRound) -> Vec<(String, Vec<&PlannedRun>)> {
    let mut cells: BTreeMap<String, Vec<&PlannedRun>> = BTreeMap::new();
    for run in &round.runs {
        cells.entry(run.cell()).or_default().push(run);
    }
    let named = |(cell, runs): (String, Vec<_>)| {
        (format!("{cell}, round {}: the best, {} runs", round.round, runs.len()), runs)
    };
    cells.into_iter().map(named).collect()
}
