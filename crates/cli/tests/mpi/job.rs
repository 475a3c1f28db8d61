//! Several processes of the real binary.

use crate::support::*;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Whether there is an mpirun; if not, the test is skipped.
pub(crate) fn has_mpirun() -> bool {
    let found = Command::new("mpirun").arg("--version").output().is_ok();
    if !found {
        hadal_files::testing::skip("mpi", "there is no mpirun");
    }
    found
}

/// What Open MPI 4 and 5 need in a container with few cores, as root; other libraries know none of these.
const ALLOWED: [(&str, &str); 9] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
    ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
];

/// Seconds after which a silent rank is lost.
pub(crate) const PATIENCE: &str = "6";

/// The command on so many ranks.
pub(crate) fn mpirun(ranks: usize, command: &Command) -> Command {
    apart(&[(ranks, command)])
}

/// Commands, each on so many ranks, as one job.
pub(crate) fn apart(commands: &[(usize, &Command)]) -> Command {
    let mut all = Command::new("mpirun");
    for (at, (ranks, command)) in commands.iter().enumerate() {
        if at > 0 {
            all.arg(":");
        }
        all.args(["-n", &ranks.to_string()]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => all.env(name, value),
                None => all.env_remove(name),
            };
        }
    }
    all.envs(ALLOWED).env("HADAL_PATIENCE", PATIENCE).stdin(Stdio::null());
    all
}

/// Losses and norms of all steps. What only several ranks have, and times, are left out.
pub(crate) fn losses(run: &Path) -> Vec<Value> {
    let mut curve = curve(run);
    for line in &mut curve {
        line.as_object_mut().unwrap().remove("communication");
    }
    curve
}

/// The process of a rank of this job.
pub(crate) fn process_of(job: &Child, rank: usize) -> Option<u32> {
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    let pmi = format!("PMI_RANK={rank}");
    let processes = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.into_iter().find(|process| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let is_rank = environment
            .split(|&byte| byte == 0)
            .any(|variable| variable == wanted.as_bytes() || variable == pmi.as_bytes());
        is_rank && is_below(*process, job.id())
    })
}

/// Whether a process was started by another one, or by one that was.
fn is_below(process: u32, ancestor: u32) -> bool {
    let mut at = process;
    while at > 1 {
        if at == ancestor {
            return true;
        }
        let stat = fs::read_to_string(format!("/proc/{at}/stat")).unwrap_or_default();
        // Behind the name, which may hold anything: state, parent.
        let parent =
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        at = parent.unwrap_or(0);
    }
    false
}

/// Sends a signal to a rank once the run has this many lines of metrics, and waits for the end of the job.
pub(crate) fn signal_rank(
    job: &mut Command,
    rank: usize,
    signal: &str,
    run: &Path,
    count: usize,
) -> Ended {
    let metrics = run.join("metrics.jsonl");
    let mut child = started(job);
    wait_until(&mut child, || lines(&metrics) >= count);
    let process = process_of(&child, rank).expect("the rank is still at work");
    let status =
        Command::new("kill").args([OsStr::new(signal), process.to_string().as_ref()]).status();
    assert!(status.unwrap().success());
    ended(child)
}
