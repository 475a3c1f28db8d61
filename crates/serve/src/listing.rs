//! The runs of a folder as a list, for `hadal runs`.

use crate::catalogue::{Summary, found};
use hadal_report::suite::claims::claimed_by;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A run, as the list shows it. Unknown values are `None`.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The path below the folder of runs.
    pub run: String,
    /// Its folder.
    pub path: PathBuf,
    /// `done`, `running`, `failed`, `stopped` or `broken`.
    pub state: &'static str,
    /// Why it is broken, or what is left out.
    pub reason: Option<String>,
    /// The kind of residual stream.
    pub policy: String,
    /// The seed.
    pub seed: Option<i64>,
    /// Steps done.
    pub step: u64,
    /// Steps planned.
    pub steps: Option<u64>,
    /// Tokens learnt from.
    pub tokens: u64,
    /// The last loss of training.
    pub train_loss: Option<f64>,
    /// The last loss on held-out data.
    pub held_out_loss: Option<f64>,
    /// The last share of right answers.
    pub accuracy: Option<f64>,
    /// Median of the last steps.
    pub tokens_per_second: Option<f64>,
    /// Seconds until it is done, if it is running.
    pub seconds_left: Option<f64>,
    /// When metrics were last written, in seconds since 1970.
    pub written: u64,
    /// The process of a suite that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<String>,
    /// What people have written to it.
    pub note: String,
    /// What people have called it.
    pub tags: Vec<String>,
}

/// All runs below a folder, the newest first. No index is read or written.
pub fn list(root: &Path) -> Vec<Listed> {
    let all = found(root).into_iter().map(|(id, path)| {
        let (run, _) = Summary::read(&id, &path);
        Listed {
            run: id,
            claimed_by: claimed_by(&path).map(|process| process.to_string()),
            path,
            state: run.status.word(),
            seconds_left: run.left(),
            reason: run.reason,
            policy: run.residual,
            seed: run.seed,
            step: run.step,
            steps: run.steps,
            tokens: run.tokens,
            train_loss: run.train_loss,
            held_out_loss: run.held_out_loss,
            accuracy: run.accuracy,
            tokens_per_second: run.tokens_per_second,
            written: run.changed,
            note: run.note,
            tags: run.tags,
        }
    });
    let mut all: Vec<Listed> = all.collect();
    all.sort_by(|a, b| (b.written, &a.run).cmp(&(a.written, &b.run)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::{Duration, SystemTime};

    #[test]
    fn the_newest_run_is_first() {
        let root = tempfile::tempdir().unwrap();
        for (name, age) in [("a", 30), ("suite/runs/b", 10), ("c", 20)] {
            let folder = root.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("config.toml"), "seed = 2\n[residual]\nkind = \"mgr\"\n")
                .unwrap();
            let file = fs::File::create(folder.join("metrics.jsonl")).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        fs::write(root.path().join("suite/suite.json"), "{}").unwrap();
        let runs = list(root.path());
        let names: Vec<&str> = runs.iter().map(|run| run.run.as_str()).collect();
        assert_eq!(names, ["suite/runs/b", "c", "a"]);
        assert_eq!((runs[0].state, runs[0].seed), ("stopped", Some(2)));
        assert!(!root.path().join(".hadal-index.sqlite").exists());
    }
}
