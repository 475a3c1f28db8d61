//! Scripts that run a suite on a cluster.
//!
//! Tasks of a job array need no part of the suite of their own: each is `hadal compare` on one folder, and they divide
//! the runs among themselves. So one array does for all stages of tuning and all looks, tasks can begin and end at any
//! time, and a script can be submitted again.

use crate::failure::Failure;
use crate::output::bytes;
use crate::word::whole;
use clap::{Args, ValueEnum};
use hadal_compare::{Budget, Lanes, Pace, Suite, estimate};
use std::path::Path;

#[derive(Args)]
pub(super) struct Options {
    /// Print a script that makes the suite elsewhere: `sbatch` takes it, or a shell on each machine that shares DIR
    #[arg(long = "emit", value_name = "KIND", conflicts_with_all = ["dry_run", "table", "json", "all_columns"])]
    pub(super) kind: Option<Kind>,
    /// With --emit: tasks of the array, or processes on each machine [default: 4, or 1 for shell]
    #[arg(long, value_name = "N", requires = "kind", value_parser = whole::<1, 100_000>)]
    tasks: Option<usize>,
    /// With --emit slurm: cores of a task [default: those of --jobs runs, or of one]
    #[arg(long, value_name = "N", requires = "kind", value_parser = whole::<1, 4096>)]
    cpus_per_task: Option<usize>,
    /// With --emit slurm: time limit of a task, such as 8:00:00 or 2-00 [default: the cluster's]
    #[arg(long, value_name = "D-HH:MM:SS", requires = "kind", value_parser = time)]
    time: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(super) enum Kind {
    /// A job array of Slurm
    Slurm,
    /// A shell script
    Shell,
}

/// A time as Slurm reads it: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.
fn time(text: &str) -> Result<String, String> {
    let (days, rest) = text.split_once('-').map_or((None, text), |(days, rest)| (Some(days), rest));
    let is_number =
        |part: &str| (1..=6).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = rest.split(':').collect();
    match days.is_none_or(is_number) && parts.len() <= 3 && parts.iter().all(|part| is_number(part))
    {
        true => Ok(text.to_owned()),
        false => Err("write it as Slurm does: minutes, H:MM:SS, D-HH or D-HH:MM:SS".into()),
    }
}

/// What a process of the script is told.
pub(super) struct Words<'a> {
    pub(super) suite: Option<&'a Path>,
    pub(super) out: &'a Path,
    /// Further words of the command line.
    pub(super) more: Vec<String>,
    pub(super) jobs: Option<usize>,
    pub(super) no_wait: bool,
}

impl Options {
    /// The script.
    pub(super) fn script(
        &self,
        kind: Kind,
        words: &Words<'_>,
        suite: &Suite,
    ) -> Result<String, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
        let here = std::env::current_dir()
            .map_err(|error| Failure::failed(format!("cannot tell the current folder: {error}")))?;
        let mut command = vec![path(&program)?, "compare".to_owned()];
        command.extend(words.suite.map(path).transpose()?);
        command.extend(["--out".to_owned(), path(words.out)?]);
        command.extend(words.more.iter().map(|word| quoted(word)));
        let look = format!("{} --table", command.join(" "));
        let name = words.out.file_name().map_or("compare".into(), |name| name.to_string_lossy());
        match kind {
            Kind::Shell => {
                if self.time.is_some() || self.cpus_per_task.is_some() {
                    return Err(Failure::usage(
                        "--time and --cpus-per-task are Slurm's; write --emit slurm, or leave them out",
                    ));
                }
                command.extend(words.jobs.map(|jobs| format!("--jobs {jobs}")));
                command.extend(words.no_wait.then(|| "--no-wait".to_owned()));
                Ok(SHELL
                    .replace("@LOOK@", &look)
                    .replace("@HERE@", &path(&here)?)
                    .replace("@TASKS@", &self.tasks.unwrap_or(1).to_string())
                    .replace("@COMMAND@", &command.join(" ")))
            }
            Kind::Slurm => {
                let threads = suite.threads;
                let given = self.cpus_per_task.unwrap_or(threads * words.jobs.unwrap_or(1));
                let jobs = words.jobs.unwrap_or(given / threads).max(1);
                if given < jobs * threads {
                    return Err(Failure::usage(format!(
                        "--cpus-per-task is {given}, but {jobs} runs at a time on {threads} threads each need {}",
                        jobs * threads
                    )));
                }
                command.push(format!("--jobs {jobs}"));
                // A task that waits holds its cores. Where later runs follow from earlier ones it will be needed.
                let in_stages = suite.tune.is_some() || suite.rule.is_some();
                command.extend((words.no_wait || !in_stages).then(|| "--no-wait".to_owned()));
                let time = self
                    .time
                    .as_ref()
                    .map_or(String::new(), |time| format!("#SBATCH --time={time}\n"));
                Ok(SLURM
                    .replace("@LOOK@", &look)
                    .replace("@NAME@", &fit(&name))
                    .replace("@TASKS@", &self.tasks.unwrap_or(4).to_string())
                    .replace("@CPUS@", &given.to_string())
                    .replace("@TIME@", &time)
                    .replace("@MEMORY@", &memory(suite, Lanes { jobs, threads })?)
                    .replace("@HERE@", &path(&here)?)
                    .replace("@COMMAND@", &command.join(" ")))
            }
        }
    }
}

/// What a task takes, as a comment.
fn memory(suite: &Suite, lanes: Lanes) -> Result<String, Failure> {
    // Steps of a budget of minutes are not known here, and no memory depends on them.
    if matches!(suite.budget, Budget::Minutes(_)) {
        return Ok("Partition, account and memory are your cluster's".into());
    }
    let mut plan = suite.plan(&Pace::new())?;
    plan.extend(suite.tuning(&Pace::new())?.into_iter().flat_map(|round| round.runs));
    let memory = estimate(suite, &plan, lanes, lanes.jobs * lanes.threads)?.memory;
    Ok(format!(
        "Partition, account and memory (a task takes {} at most, by a guess) are your cluster's",
        bytes(memory)
    ))
}

/// Letters that a job's name may have.
fn fit(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .collect()
}

fn path(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains(['\n', '\r']));
    text.map(quoted).ok_or_else(|| {
        let shown = path.display();
        Failure::usage(format!("{shown} cannot stand in a script; give it a name of plain text"))
    })
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+%@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

const SLURM: &str = include_str!("emit/slurm.sh");
const SHELL: &str = include_str!("emit/shell.sh");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_word_for_a_shell_whatever_it_holds() {
        for (word, expected) in [
            ("runs/a-1.toml", "runs/a-1.toml"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("$(rm x)`y`", "'$(rm x)`y`'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn times_are_those_of_slurm() {
        for good in ["90", "90:00", "8:00:00", "2-00", "2-12:30", "1-00:00:00"] {
            assert_eq!(time(good), Ok(good.to_owned()));
        }
        for bad in ["", "8h", "1:2:3:4", "-1", "1-", "8:00:00\n#SBATCH --x", "a-00"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
