//! Runs of an earlier choice make room for those of the new one.

use super::section::Tune;
use crate::error::CompareError;
use crate::execute::{Watch, Work};
use crate::folder::{SuiteFolder, differing};
use crate::halt::Halt;
use crate::plan::PlannedRun;
use crate::suite::Suite;
use hadal_files::{Action, create_directory, file_error, read_text};
use hadal_report::run::{Status, status};
use hadal_report::suite::SuiteTable;
use hadal_train::RunConfig;
use std::fs;
use std::path::Path;

/// Where they go, in a suite's folder.
const REPLACED: &str = "replaced";

impl SuiteFolder {
    /// A grid that grew can have another best point. Runs of the table that were made with the old one are moved away,
    /// never removed. Runs that differ in anything else are left for the check that refuses them.
    pub(crate) fn set_aside(
        &self,
        suite: &Suite,
        plan: &[PlannedRun],
        work: &Work<'_>,
        watch: &mut dyn Watch,
    ) -> Result<(), Halt> {
        for planned in plan {
            let path = self.run(&planned.name);
            if of_other_choice(suite, planned, &path)?.is_empty() {
                continue;
            }
            let name = format!("{}/{}", SuiteTable::RUNS, planned.name);
            let moved = self.alone(&name, work, watch, |watch| {
                let keys = of_other_choice(suite, planned, &path)?;
                // Another process may have moved it meanwhile.
                if keys.is_empty() {
                    return Ok(());
                }
                if status(&path) == Status::Running {
                    return Err(Halt::from(CompareError::AtWork { path: path.clone() }));
                }
                let to = self.free(&planned.name)?;
                fs::rename(&path, &to).map_err(file_error(Action::Rename, &to))?;
                watch.said(&format!(
                    "{} was made with other tuned settings ({}); it is now {}",
                    planned.name,
                    keys.join(", "),
                    to.display()
                ));
                Ok(())
            })?;
            if moved.is_none() {
                return Err(Halt::Stopped);
            }
        }
        Ok(())
    }

    fn free(&self, name: &str) -> Result<std::path::PathBuf, CompareError> {
        let folder = self.path().join(REPLACED);
        create_directory(&folder)?;
        let numbered = (2..).map(|number| folder.join(format!("{name}-{number}")));
        let mut names = std::iter::once(folder.join(name)).chain(numbered);
        let free = names.find(|path| path.symlink_metadata().is_err());
        Ok(free.unwrap_or_else(|| folder.join(name)))
    }
}

/// The tuned settings in which a run differs from the planned one, if nothing else does.
fn of_other_choice(
    suite: &Suite,
    planned: &PlannedRun,
    path: &Path,
) -> Result<Vec<String>, CompareError> {
    let file = path.join("config.toml");
    if !file.exists() {
        return Ok(Vec::new());
    }
    let Ok(there) = RunConfig::parse(&read_text(&file)?, &file.display().to_string()) else {
        return Ok(Vec::new());
    };
    let mut keys = differing(&there, &planned.config);
    if !keys.iter().all(|key| Tune::may_change(key, suite.budget)) {
        keys.clear();
    }
    Ok(keys)
}
