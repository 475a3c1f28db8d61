//! What the list shows of a suite.

use crate::files;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// A suite, as far as the list shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Suite {
    pub(crate) path: PathBuf,
    /// Its runs' names begin with this.
    pub(crate) prefix: String,
    /// The answer in one sentence, once there is one.
    pub(crate) headline: Option<String>,
    /// Runs that it will have; 0 if it does not say.
    pub(crate) planned: usize,
    pub(crate) has_report: bool,
    /// The catalogue's revision at which it changed last.
    pub(crate) revision: u64,
    pub(crate) stamp: String,
}

/// The part of `table.json` that the list shows.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Table {
    headline: String,
    verdict: Vec<String>,
}

impl Suite {
    /// Reads a suite that is called `id`, unless nothing has changed since `before`.
    pub(crate) fn read(id: &str, path: &Path, root: &Path, before: Option<&Self>) -> Self {
        let prefix = if path == root { "runs/".into() } else { format!("{id}/runs/") };
        let stamp = files::stamps(path, &["table.json", "settings", "report.html"]);
        if let Some(before) = before.filter(|before| before.stamp == stamp && before.path == path) {
            return before.clone();
        }
        let table: Table =
            files::json(path, "table.json", files::TABLE).ok().flatten().unwrap_or_default();
        let headline = match table.headline.is_empty() {
            true => table.verdict.into_iter().next(),
            false => Some(table.headline),
        };
        let settings = fs::read_dir(path.join("settings")).into_iter().flatten().flatten();
        let is_run =
            |name: std::ffi::OsString| Path::new(&name).extension().is_some_and(|e| e == "toml");
        Self {
            path: path.into(),
            prefix,
            headline: headline.map(|text| answer_first(&text).0.to_owned()),
            planned: settings.filter(|entry| is_run(entry.file_name())).count(),
            has_report: files::open(path, "report.html").is_ok(),
            revision: 0,
            stamp,
        }
    }
}

/// The answer without the method, and the method: `By loss against a, over 6 seeds: b is better.`
pub(crate) fn answer_first(sentence: &str) -> (&str, &str) {
    let parts = sentence.strip_prefix("By ").and_then(|rest| rest.split_once(": "));
    parts.map_or((sentence, ""), |(method, found)| (found, method))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_comes_before_the_method() {
        let both = answer_first("By loss against a, over 6 seeds: b is better; c is not.");
        assert_eq!(both, ("b is better; c is not.", "loss against a, over 6 seeds"));
        assert_eq!(answer_first("b learns faster: 1.5x").0, "b learns faster: 1.5x");
    }
}
