//! Fair comparison: policies under one budget, seed by seed.
//!
//! A [`Suite`] says what is compared. Its runs are ordinary run folders, each made by a process of its own
//! ([`compare()`]), and all results are computed from the files that they leave ([`Results`]). So a suite can be killed
//! at any moment: running it again makes the missing runs and gives the same table.
//!
//! With `[tune]` in the suite every variant finds its own best settings first, on seeds of their own ([`Tuning`]).
//!
//! All variants see the same tokens in the same order per seed, and start from the same draws: fresh
//! values depend on the seed and the parameter's name alone (a policy may prescribe another scale),
//! batches on the seed and the step. [`mod@bench`] measures how fast they are.

pub mod bench;
mod earlier;
mod error;
mod estimate;
mod execute;
mod figures;
mod folder;
mod follow;
mod looks;
mod matching;
mod plan;
mod ranking;
mod results;
mod seen;
mod shape;
mod shape_table;
mod suite;
mod table;
#[cfg(test)]
mod tests;
mod tune;

pub use earlier::Earlier;
pub use error::CompareError;
pub use estimate::{Estimate, estimate};
pub use execute::{End, Lanes, Progress, Start, Task, Watch};
pub use folder::SuiteFolder;
pub use plan::{Pace, PlannedRun};
pub use ranking::Ranked;
pub use results::{Against, Cell, Point, Results, RunResult, RunState};
pub use shape::Shape;
pub use suite::{Budget, Suite, Variant};
pub use tune::{
    Edge, GridPoint, Per, Side, Spent, Tune, TunedPoint, TunedVariant, Tuning, TuningRound,
};

use hadal_report::suite::SuiteTable;
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// Makes all runs of a suite that are not done yet and writes `table.json`, `table.csv` and `results.json`, however the
/// runs ended. `None` if it was stopped before there was a plan.
pub fn compare(
    suite: &Suite,
    folder: &SuiteFolder,
    lanes: Lanes,
    command: &dyn Fn(Start<'_>) -> Command,
    watch: &mut dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<(Results, SuiteTable)>, CompareError> {
    let Some(found) = tune::tuned(suite, folder, lanes, command, watch, stop)? else {
        return Ok(None);
    };
    let (suite, tuning) = (&found.suite, found.tuning);
    let watch: &mut dyn Watch = &mut tune::Whole { watch, part: found.rest };
    let Some(plan) = folder.plan(suite, lanes, command, watch, stop)? else { return Ok(None) };
    let now = earlier::now(suite, &plan)?;
    let there = || SuiteTable::runs(folder.path());
    let mut earlier = earlier::earlier(there()?, &plan, &now)?;
    earlier.warnings.extend(seen::warning(folder, suite)?);
    earlier.runs = looks::needed(suite, &plan, earlier.done);
    watch.earlier(&earlier);
    let (ends, looks) = looks::make(suite, folder, &plan, lanes, command, watch, stop)?;
    // Data may have been replaced while the suite went on.
    earlier::earlier(there()?, &plan, &now)?;
    // Seeds that no look needed are no runs of this suite.
    let plan = &plan[..ends.len()];
    (earlier.runs, earlier.done) = (plan.len(), earlier.done.min(plan.len()));
    let results = Results { earlier, ..Results::read(suite, folder, plan, &ends, looks) };
    let results = results.with_tuning(tuning);
    let table = results.table(suite);
    folder::write_json(&folder.path().join(SuiteTable::FILE), &table)?;
    folder::write_json(&folder.path().join("results.json"), &results)?;
    hadal_files::write_whole(&folder.path().join("table.csv"), results.csv())?;
    seen::remember(folder, &results)?;
    Ok(Some((results, table)))
}
