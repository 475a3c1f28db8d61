//! Why a suite comes to no table now, although nothing is wrong.

use super::error::CompareError;
use super::execute::End;
use super::plan::PlannedRun;
use hadal_files::FileError;
use hadal_report::run::RunError;

/// A run without which a suite cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What it is called.
    pub name: String,
    /// The process that has it, if there is one.
    pub by: Option<String>,
}

/// What ends a suite before there is a table.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Somebody asked for it.
    Stopped,
    /// These have to be made first, and not by this process.
    Missing(Vec<Missing>),
    Error(CompareError),
}

impl Halt {
    /// Something that another process does, or somebody has to.
    pub(crate) fn waiting_for(name: &str, by: Option<String>) -> Self {
        Self::Missing(vec![Missing { name: name.into(), by }])
    }

    /// The runs that were left to others.
    pub(crate) fn left(plan: &[PlannedRun], ends: &[End]) -> Vec<Missing> {
        let missing = |(run, end): (&PlannedRun, &End)| match end {
            End::Elsewhere(by) => Some(Missing { name: run.name.clone(), by: Some(by.clone()) }),
            End::Stopped => Some(Missing { name: run.name.clone(), by: None }),
            _ => None,
        };
        plan.iter().zip(ends).filter_map(missing).collect()
    }
}

impl From<CompareError> for Halt {
    fn from(error: CompareError) -> Self {
        Self::Error(error)
    }
}

impl From<FileError> for Halt {
    fn from(error: FileError) -> Self {
        Self::Error(error.into())
    }
}

impl From<RunError> for Halt {
    fn from(error: RunError) -> Self {
        Self::Error(error.into())
    }
}
