//! Runs of an earlier choice make room for those of the new one.

use super::section::Tune;
use crate::error::CompareError;
use crate::execute::Watch;
use crate::folder::{SuiteFolder, differing};
use crate::plan::PlannedRun;
use crate::suite::Suite;
use hadal_files::{Action, create_directory, file_error, read_text};
use hadal_report::run::{Status, status};
use hadal_train::RunConfig;
use std::fs;

/// Where they go, in a suite's folder.
const REPLACED: &str = "replaced";

impl SuiteFolder {
    /// A grid that grew can have another best point. Runs of the table that were made with the old one are moved away,
    /// never removed. Runs that differ in anything else are left for the check that refuses them.
    pub(crate) fn set_aside(
        &self,
        suite: &Suite,
        plan: &[PlannedRun],
        watch: &mut dyn Watch,
    ) -> Result<(), CompareError> {
        for planned in plan {
            let path = self.run(&planned.name);
            let file = path.join("config.toml");
            if !file.exists() {
                continue;
            }
            let Ok(there) = RunConfig::parse(&read_text(&file)?, &file.display().to_string())
            else {
                continue;
            };
            let keys = differing(&there, &planned.config);
            if keys.is_empty() || !keys.iter().all(|key| Tune::may_change(key, suite.budget)) {
                continue;
            }
            if status(&path) == Status::Running {
                return Err(CompareError::AtWork { path });
            }
            let to = self.free(&planned.name)?;
            fs::rename(&path, &to).map_err(file_error(Action::Rename, &to))?;
            let keys = keys.join(", ");
            watch.said(&format!(
                "{} was made with other tuned settings ({keys}); it is now {}",
                planned.name,
                to.display()
            ));
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
