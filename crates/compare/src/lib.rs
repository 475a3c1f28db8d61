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
mod claim;
mod earlier;
mod error;
mod estimate;
mod execute;
mod figures;
mod folder;
mod follow;
mod halt;
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
pub use execute::{End, Lanes, Progress, Start, Task, Watch, Work};
pub use folder::SuiteFolder;
pub use halt::Missing;
pub use plan::{Pace, PlannedRun};
pub use ranking::Ranked;
pub use results::{Against, Cell, Point, Results, RunResult, RunState};
pub use shape::Shape;
pub use suite::{Budget, Suite, Variant};
pub use tune::{
    Edge, GridPoint, Per, Side, Spent, Tune, TunedPoint, TunedVariant, Tuning, TuningRound,
};

use hadal_report::suite::SuiteTable;
use halt::Halt;

/// What a suite came to.
#[derive(Clone, Debug)]
pub enum Compared {
    /// A table, of what is done.
    Table(Box<(Results, SuiteTable)>),
    /// Nothing yet: these have to be made first, and other processes do that, or somebody has to.
    Missing(Vec<Missing>),
    /// It was stopped before there was a plan.
    Stopped,
}

/// Makes all runs of a suite that are not done yet, together with other processes that do the same, and writes
/// `table.json`, `table.csv` and `results.json`, however the runs ended. Everybody who comes to the end writes the same.
///
/// Of a folder that is only looked at ([`SuiteFolder::look`]) nothing is made or written: the table is that of what is
/// done.
pub fn compare(
    suite: &Suite,
    folder: &SuiteFolder,
    work: &Work<'_>,
    watch: &mut dyn Watch,
) -> Result<Compared, CompareError> {
    match compared(suite, folder, work, watch) {
        Ok(table) => Ok(Compared::Table(Box::new(table))),
        Err(Halt::Missing(runs)) => Ok(Compared::Missing(runs)),
        Err(Halt::Stopped) => Ok(Compared::Stopped),
        Err(Halt::Error(error)) => Err(error),
    }
}

fn compared(
    suite: &Suite,
    folder: &SuiteFolder,
    work: &Work<'_>,
    watch: &mut dyn Watch,
) -> Result<(Results, SuiteTable), Halt> {
    let found = tune::tuned(suite, folder, work, watch)?;
    let (suite, tuning) = (&found.suite, found.tuning);
    let watch: &mut dyn Watch = &mut tune::Whole { watch, part: found.rest };
    let plan = folder.plan(suite, work, watch)?;
    let now = earlier::now(suite, &plan)?;
    let there = || SuiteTable::runs(folder.path());
    let mut earlier = earlier::earlier(there()?, &plan, &now)?;
    earlier.warnings.extend(seen::warning(folder, suite)?);
    earlier.runs = looks::needed(suite, &plan, earlier.done);
    watch.earlier(&earlier);
    let (ends, looks) = looks::make(suite, folder, &plan, work, watch)?;
    // Data may have been replaced while the suite went on.
    earlier::earlier(there()?, &plan, &now)?;
    // Seeds that no look needed are no runs of this suite.
    let plan = &plan[..ends.len()];
    let elsewhere = ends.iter().any(|end| matches!(end, End::Elsewhere(_)));
    // Those who have them write the table: this one would be in their way.
    if elsewhere && !folder.only_looks() {
        return Err(Halt::Missing(Halt::left(plan, &ends)));
    }
    (earlier.runs, earlier.done) = (plan.len(), earlier.done.min(plan.len()));
    let results = Results { earlier, ..Results::read(suite, folder, plan, &ends, looks) };
    let results = results.with_tuning(tuning);
    let table = results.table(suite);
    let others_write = work.is_stopped() && folder.claims.has_others();
    if !folder.only_looks() && !others_write {
        folder.write_alone(work, watch, |_| {
            folder::write_json(&folder.path().join(SuiteTable::FILE), &table)?;
            folder::write_json(&folder.path().join("results.json"), &results)?;
            hadal_files::write_whole(&folder.path().join("table.csv"), results.csv())?;
            Ok::<_, Halt>(seen::remember(folder, &results)?)
        })?;
    }
    Ok((results, table))
}
