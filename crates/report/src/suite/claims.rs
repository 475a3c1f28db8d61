//! Which process has which run of a suite, as comparisons write it down.
//!
//! `claims/runs/NAME/3/holder` names the process of the third claim of a run, and `end.json` beside it says how that
//! ended. `claims/processes/PROCESS.json` says what a process is.

use crate::run::small_json;
use hadal_files::read_text_at_most;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of claims in a suite's folder.
pub const FOLDER: &str = "claims";
/// Who has a claim: a process, and behind a space which of its claims it is.
pub const HOLDER: &str = "holder";
/// How what was claimed ended.
pub const END: &str = "end.json";
/// The folder of processes beside the claims.
const PROCESSES: &str = "processes";
/// No file here is larger.
const SMALL: u64 = 1 << 20;

/// A process that takes part in a suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// The name of its machine.
    pub host: String,
    /// Its number there.
    pub process: u32,
    /// Changes when the machine starts: processes with the same one see each other's locks.
    pub machine: String,
    /// Seconds between signs of life.
    pub beat_seconds: f64,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, process {}", self.host, self.process)
    }
}

impl Process {
    /// Where a process of a suite says what it is.
    pub fn file(suite: &Path, name: &str) -> PathBuf {
        // It may come from a file of anybody.
        let name = if name.contains(['/', '\\', '\0']) { "" } else { name };
        suite.join(FOLDER).join(PROCESSES).join(format!("{name}.json"))
    }

    /// What a process of a suite says of itself.
    pub fn read(suite: &Path, name: &str) -> Option<Self> {
        small_json(&Self::file(suite, name)).ok().flatten()
    }

    /// The names of the processes that have left their traces.
    pub fn names(suite: &Path) -> Vec<String> {
        let names = names_in(&suite.join(FOLDER).join(PROCESSES)).into_iter();
        names.filter_map(|name| Some(name.strip_suffix(".json")?.to_owned())).collect()
    }
}

/// The claim that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The highest number.
    pub number: u64,
    /// The process that has it; empty if that cannot be read.
    pub process: String,
    /// How it ended, as it was written.
    pub end: Option<String>,
}

impl Claim {
    /// The last claim in a folder of claims.
    pub fn latest(place: &Path) -> Option<Self> {
        let number = numbers(place).max()?;
        let claim = place.join(number.to_string());
        let read = |name: &str| read_text_at_most(&claim.join(name), SMALL).ok();
        let holder = read(HOLDER).unwrap_or_default();
        let process = holder.split(' ').next().unwrap_or_default().to_owned();
        Some(Self { number, process, end: read(END) })
    }
}

/// The numbers of the claims in a folder of claims.
pub fn numbers(place: &Path) -> impl Iterator<Item = u64> + use<> {
    // A larger one was not counted up to.
    names_in(place).into_iter().filter_map(|name| name.parse::<u32>().ok()).map(u64::from)
}

/// The names in a folder; none if it is not there.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// The process that has claimed a run of a suite and has not come to an end with it. Whether it still lives cannot be seen
/// at once.
pub fn claimed_by(run: &Path) -> Option<Process> {
    let kind = run.parent()?;
    let suite = kind.parent()?;
    let place = suite.join(FOLDER).join(kind.file_name()?).join(run.file_name()?);
    let claim = Claim::latest(&place).filter(|claim| claim.end.is_none())?;
    Process::read(suite, &claim.process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_with_the_process_of_its_last_claim_until_that_ends() {
        let suite = tempfile::tempdir().unwrap();
        let run = suite.path().join("runs/a");
        assert_eq!(claimed_by(&run), None);
        assert_eq!(claimed_by(Path::new("/")), None);
        let file = Process::file(suite.path(), "node7-12-ab");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let about = "{\"host\":\"node7\",\"process\":12,\"machine\":\"x\",\"beat_seconds\":15.0}";
        fs::write(&file, about).unwrap();
        for (number, holder) in [(9, "gone-1-cd 4"), (10, "node7-12-ab 3")] {
            let claim = suite.path().join(format!("claims/runs/a/{number}"));
            fs::create_dir_all(&claim).unwrap();
            fs::write(claim.join(HOLDER), holder).unwrap();
        }
        // Neither a part nor a name is a number.
        fs::create_dir_all(suite.path().join("claims/runs/a/.node-1")).unwrap();
        assert_eq!(claimed_by(&run).unwrap().to_string(), "node7, process 12");
        assert_eq!(Process::names(suite.path()), ["node7-12-ab"]);
        fs::write(suite.path().join("claims/runs/a/10").join(END), "{\"state\": \"done\"}")
            .unwrap();
        assert_eq!(claimed_by(&run), None);
    }

    #[test]
    fn a_hostile_holder_names_no_file_elsewhere() {
        let file = Process::file(Path::new("suite"), "../../secret");
        assert_eq!(file, Path::new("suite/claims/processes/.json"));
    }
}
