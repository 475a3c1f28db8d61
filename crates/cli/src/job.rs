//! This process among those that mpirun or srun have started with it.
//!
//! Rank 0 speaks for all. Others only say what went wrong for them alone, and name themselves.

use crate::commands::Command;
use crate::failure::{FAILED, Failure};
use crate::output::warn;
use crate::standard::be_silent;
use hadal_ranks::{Launch, RankError, Ranks, depart, farewell, launch};
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;

/// Joins the others, if there are some.
pub(crate) fn join() -> Result<Arc<dyn Ranks>, RankError> {
    let ranks = hadal_ranks::job()?;
    if ranks.rank() > 0 {
        be_silent();
    }
    Ok(ranks)
}

/// `rank 2: `, for messages of another rank than the first.
pub(crate) fn rank_name() -> String {
    let other = launch().filter(|launch| launch.rank > 0);
    other.map_or_else(String::new, |launch| format!("rank {}: ", launch.rank))
}

/// Help, the version or what is wrong with the command line, from one process.
pub(crate) fn say_once(said: &clap::Error) -> ! {
    let code = said.exit_code();
    if farewell((code != 0).then_some("")) {
        said.exit();
    }
    std::process::exit(code)
}

/// Refuses to do the same work several times.
pub(crate) fn check(command: Option<&Command>) -> Result<(), Failure> {
    match launch() {
        Some(Launch { size, .. }) if size > 1 && !command.is_some_and(Command::knows_ranks) => {
            Err(Failure::usage(format!(
                "{size} processes were launched together, and only `hadal train` works on several; launch one process \
                 for this command"
            )))
        }
        _ => Ok(()),
    }
}

/// Threads for this rank: its share of the cores that it may use. `None` if it is alone, or if RAYON_NUM_THREADS says it.
pub(crate) fn threads(ranks: &dyn Ranks) -> Result<Option<usize>, RankError> {
    if ranks.size() == 1 {
        return Ok(None);
    }
    let place = Place::here();
    let all: Vec<Place> =
        ranks.gather(&place.bytes())?.iter().map(|bytes| Place::of(bytes)).collect();
    let (here, sharing) = (
        all.iter().filter(|other| other.machine == place.machine).count(),
        all.iter().filter(|other| **other == place).count(),
    );
    let said = std::env::var_os("RAYON_NUM_THREADS").is_some_and(|said| !said.is_empty());
    let cores = hadal_cpu::machine::cores();
    let share = (cores / sharing.max(1)).max(1);
    let processors = online().unwrap_or(0);
    // Half of the cores are idle, even if a core counts as two processors.
    if !said && ranks.rank() == 0 && share * here * 4 <= processors {
        warn(&format!(
            "{here} ranks here may use {} of {processors} processors: the launcher has bound them; `mpirun --bind-to none` \
             lets them use all",
            share * here
        ));
    }
    Ok((!said).then_some(share))
}

/// Where a rank computes.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    machine: String,
    /// The processors that it was allowed, as Linux lists them.
    processors: String,
}

impl Place {
    fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // Two containers on a machine share its cores.
        let machine = read("/proc/sys/kernel/random/boot_id").trim().to_owned();
        let status = read("/proc/self/status");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Self { machine, processors: allowed.unwrap_or_default().trim().to_owned() }
    }

    fn bytes(&self) -> Vec<u8> {
        format!("{}\n{}", self.machine, self.processors).into_bytes()
    }

    fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (machine, processors) = text.split_once('\n').unwrap_or((&text, ""));
        Self { machine: machine.into(), processors: processors.into() }
    }
}

/// Processors of this machine, whoever may use them.
fn online() -> Option<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(last.parse::<usize>().ok()?.saturating_sub(first.parse().ok()?) + 1)
    };
    list.trim().split(',').map(count).sum()
}

/// Ends this process's part in the job, which went well.
pub(crate) fn end(code: ExitCode) -> ExitCode {
    farewell(None);
    // Whoever was asked to stop has saved, as all have.
    match depart(0) {
        Ok(()) => code,
        Err(error) => {
            Failure::from(error).report();
            leave(FAILED)
        }
    }
}

/// Ends this process's part in the job, which failed: says why, unless another rank does.
pub(crate) fn fail(failure: &Failure) -> ExitCode {
    if farewell(Some(failure.message())) {
        failure.report();
    }
    leave(failure.code())
}

/// Ends this process after it has said why.
pub(crate) fn give_up(code: u8) -> ExitCode {
    farewell(Some("it gives up"));
    leave(code)
}

fn leave(code: u8) -> ExitCode {
    match depart(code) {
        Ok(()) => ExitCode::from(code),
        // MPI hangs, and would do so when the process ends as usual. All is said.
        #[cfg(unix)]
        Err(_) => {
            // SAFETY: it ends the process, and nothing that would have to be done before is left.
            unsafe { libc::_exit(code.into()) }
        }
        #[cfg(not(unix))]
        Err(_) => std::process::exit(code.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_ranks::Threads;

    #[test]
    fn a_place_arrives_as_it_was_sent() {
        let place = Place { machine: "a".into(), processors: "0-3,8".into() };
        assert_eq!(Place::of(&place.bytes()), place);
    }

    #[test]
    fn ranks_share_cores() {
        let cores = hadal_cpu::machine::cores();
        for count in [1, 2, 3] {
            let shares = Threads::run(count, |ranks| threads(&*ranks).unwrap());
            let expected = (count > 1 && std::env::var_os("RAYON_NUM_THREADS").is_none())
                .then(|| (cores / count).max(1));
            assert_eq!(shares, vec![expected; count]);
        }
    }
}
