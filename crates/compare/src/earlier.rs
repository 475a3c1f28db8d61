//! What earlier calls have left in a suite's folder: whose runs they are, and whether they belong into its table.

use super::error::CompareError;
use super::plan::PlannedRun;
use super::suite::Suite;
use hadal_data::DataConfig;
use hadal_report::provenance::{Provenance, differences, names, short};
use hadal_report::run::{Status, status};
use hadal_train::{TrainError, provenance};
use serde::Serialize;
use std::path::PathBuf;

/// Runs of earlier calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Earlier {
    /// How many of the suite's runs were done before.
    pub done: usize,
    /// All runs of the suite.
    pub runs: usize,
    /// The programs that made those that were done, and how many each.
    pub by: Vec<(String, usize)>,
    /// Runs that were made in another way than a run would be made now, in sentences.
    pub warnings: Vec<String>,
}

impl Earlier {
    /// `4 of 6 runs were done before (by hadal 0.1.0, commit 05b66661, executable 1a2b3c4d).`
    pub fn sentence(&self) -> String {
        let by = match &self.by[..] {
            [] => String::new(),
            [(build, _)] => format!(" (by {build})"),
            several => {
                let parts: Vec<String> =
                    several.iter().map(|(build, runs)| format!("{runs} by {build}")).collect();
                format!(" ({})", parts.join("; "))
            }
        };
        format!("{} of {} runs were done before{by}.", self.done, self.runs)
    }
}

/// What makes the suite's runs now. Its runs share their data; so does what opening it costs.
pub(crate) fn now(suite: &Suite, plan: &[PlannedRun]) -> Result<Vec<Provenance>, CompareError> {
    let mut known: Vec<(&DataConfig, Provenance)> = Vec::new();
    let mut all = Vec::new();
    for planned in plan {
        let data = &planned.config.data;
        if !known.iter().any(|(other, _)| *other == data) {
            let made = provenance::of(&planned.config).map_err(|error| {
                let reason = Box::new(TrainError::from(error));
                let (origin, run) = (suite.origin().into(), planned.name.clone());
                CompareError::Unplanned { origin, run, reason }
            })?;
            known.push((data, Provenance { threads: Some(suite.threads), ..made }));
        }
        let made = known.iter().find(|(other, _)| *other == data);
        all.extend(made.map(|(_, made)| made.clone()));
    }
    Ok(all)
}

/// Looks at the runs that are there, those that the suite has no longer as well: they are in its report. Refuses those of
/// other data, be they finished or not.
pub(crate) fn earlier(
    there: Vec<PathBuf>,
    plan: &[PlannedRun],
    now: &[Provenance],
) -> Result<Earlier, CompareError> {
    let mut earlier = Earlier { runs: plan.len(), ..Earlier::default() };
    let mut others: Vec<(String, Vec<String>)> = Vec::new();
    for path in there {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let planned = plan.iter().position(|planned| planned.name == name);
        let Some(now) = planned.and_then(|at| now.get(at)).or(now.first()) else { continue };
        let made = Provenance::read(&path);
        for made in made.all() {
            if let (Some(there), Some(here)) = (made.task_generator, now.task_generator)
                && there != here
            {
                return Err(CompareError::OtherGenerator { path, there, here });
            }
            if let (Some(there), Some(here)) = (&made.data, &now.data)
                && there != here
            {
                let (there, here) = (short(there), short(here));
                return Err(CompareError::OtherData { path, there, here });
            }
        }
        if planned.is_none() {
            continue;
        }
        if status(&path) == Status::Done {
            earlier.done += 1;
            count(&mut earlier.by, made.build());
        }
        let mut differ: Vec<String> = made.all().flat_map(|made| differences(made, now)).collect();
        differ.dedup();
        if !differ.is_empty() {
            let differ = differ.join(", ");
            match others.iter_mut().find(|(other, _)| *other == differ) {
                Some((_, names)) => names.push(name),
                None => others.push((differ, vec![name])),
            }
        }
    }
    earlier.warnings = others
        .iter()
        .map(|(differ, runs)| {
            let were = if runs.len() == 1 { "was" } else { "were" };
            format!("{} {were} made by another build or in another way ({differ}).", names(runs))
        })
        .collect();
    Ok(earlier)
}

fn count(counts: &mut Vec<(String, usize)>, key: String) {
    match counts.iter_mut().find(|(other, _)| *other == key) {
        Some((_, count)) => *count += 1,
        None => counts.push((key, 1)),
    }
}
