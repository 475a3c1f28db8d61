//! The files that a comparison leaves in its folder: `table.json` beside `runs/`.

pub mod claims;

use crate::figure::Figure;
use crate::palette::{self, Look};
use crate::run::{RunError, json};
use crate::statistics::Taken;
use hadal_files::{Action, file_error};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The result of `hadal compare`, ready to be shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteTable {
    /// The policy that the others are compared with.
    pub baseline: String,
    /// What is compared: `held-out loss`.
    pub metric: String,
    /// The results in sentences, the most important first.
    pub verdict: Vec<String>,
    /// Names of the columns, the first being the policy.
    pub columns: Vec<String>,
    /// A row for each policy, a text for each column.
    pub rows: Vec<Vec<String>>,
    /// The kind of stream of each row, for its colour; empty in tables of earlier versions.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// Charts of the whole suite.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// The looks at its results, if they were planned and more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks: Option<Taken>,
    /// Further tables, such as what each policy was tuned to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<SideTable>,
    /// What readers must know before they believe it, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A table beside that of the results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideTable {
    /// What it is about, in one word: figures whose names begin with it stand beside it.
    pub name: String,
    /// A headline.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// Names of the columns, the first being the policy.
    pub columns: Vec<String>,
    /// A row for each policy, a text for each column.
    pub rows: Vec<Vec<String>>,
}

impl SuiteTable {
    /// Its file in a suite's folder.
    pub const FILE: &str = "table.json";
    /// The folder of the runs in a suite's folder.
    pub const RUNS: &str = "runs";

    /// Whether a folder is a suite's: it has runs, even if it has no table yet.
    pub fn is_suite(path: &Path) -> bool {
        path.join(Self::RUNS).is_dir()
    }

    /// Reads a suite's table, if there is one yet.
    pub fn read(suite: &Path) -> Result<Option<Self>, RunError> {
        /// With all its figures.
        const LARGEST: u64 = 256 << 20;
        json(&suite.join(Self::FILE), LARGEST)
    }

    /// Its policies with their looks, for its figures ([`crate::figure::with_looks`]) and its table.
    pub fn looks(&self) -> Vec<(String, Look)> {
        let mut names: Vec<(&str, &str)> = Vec::new();
        for (place, row) in self.rows.iter().enumerate() {
            let Some(name) = row.first() else { continue };
            let kind = self.kinds.get(place).unwrap_or(name);
            if names.iter().all(|(other, _)| other != name) {
                names.push((name, kind));
            }
        }
        palette::named(names)
    }

    /// Folders of a suite's runs, by name.
    pub fn runs(suite: &Path) -> Result<Vec<PathBuf>, RunError> {
        Self::runs_in(&suite.join(Self::RUNS))
    }

    /// Folders of runs in a folder, by name.
    pub fn runs_in(path: &Path) -> Result<Vec<PathBuf>, RunError> {
        let entries = fs::read_dir(path).map_err(file_error(Action::Read, path))?;
        let mut runs: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        runs.retain(|path| crate::run::Run::is_run(path));
        runs.sort();
        Ok(runs)
    }
}
