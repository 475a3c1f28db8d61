//! What the machine and a training process use, from `/proc`. Where that does not exist, nothing is known.

use serde::Serialize;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// Folders with more files than this are not measured to the end.
const FILES: usize = 20_000;

/// The whole machine, in bytes and shares of 1.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Resources {
    pub(crate) cores: usize,
    pub(crate) cpu: Option<f64>,
    pub(crate) load: Option<f64>,
    pub(crate) memory_used: Option<u64>,
    pub(crate) memory_total: Option<u64>,
    pub(crate) disk_free: Option<u64>,
    pub(crate) disk_total: Option<u64>,
}

/// The process that trains a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Process {
    pub(crate) id: u32,
    /// Resident set in bytes.
    pub(crate) memory: Option<u64>,
    /// Cores in use since the last request; unknown at the first.
    pub(crate) cores: Option<f64>,
}

/// Remembers counters, since shares are differences.
#[derive(Default)]
pub(crate) struct Machine {
    cpu: Option<(u64, u64)>,
    processes: HashMap<u32, (u64, Instant)>,
}

impl Machine {
    /// The machine's resources; `folder` selects the disk.
    pub(crate) fn resources(&mut self, folder: &Path) -> Resources {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = kilobytes(&memory, "MemTotal:");
        let available = kilobytes(&memory, "MemAvailable:");
        let disk = rustix::fs::statvfs(folder).ok();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Resources {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: self.cpu_share(),
            load: load.split_whitespace().next().and_then(|word| word.parse().ok()),
            memory_used: total.zip(available).map(|(total, rest)| total.saturating_sub(rest)),
            memory_total: total,
            disk_free: disk.as_ref().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
            disk_total: disk.as_ref().map(|disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
        }
    }

    /// The share of time that was not idle since the last request, or since the machine started.
    fn cpu_share(&mut self) -> Option<f64> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let (busy, total) = cpu_times(&text)?;
        let (busy_before, total_before) = self.cpu.replace((busy, total)).unwrap_or((0, 0));
        let (busy, total) = (busy.checked_sub(busy_before)?, total.checked_sub(total_before)?);
        (total > 0).then(|| busy as f64 / total as f64)
    }

    /// The process that holds a run's lock.
    pub(crate) fn process(&mut self, run: &Path) -> Option<Process> {
        let inode = fs::metadata(run.join("lock")).ok()?.ino();
        let id = holder(&fs::read_to_string("/proc/locks").ok()?, inode)?;
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let ticks = ticks(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?);
        let cores = ticks.and_then(|ticks| {
            let (before, then) = self.processes.insert(id, (ticks, Instant::now()))?;
            let spent = ticks.checked_sub(before)? as f64;
            let time = then.elapsed().as_secs_f64();
            let share = spent / rustix::param::clock_ticks_per_second() as f64 / time;
            (time > 0.05).then_some(share)
        });
        Some(Process { id, memory: kilobytes(&status, "VmRSS:"), cores })
    }
}

/// Bytes below a folder, links not followed.
pub(crate) fn size(folder: &Path) -> u64 {
    let (mut bytes, mut left) = (0, FILES);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let Ok(about) = entry.metadata() else { continue };
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                bytes += about.len();
            }
            left -= 1;
            if left == 0 {
                return bytes;
            }
        }
    }
    bytes
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Busy and total time of all cores, from the first line of `/proc/stat`.
fn cpu_times(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // Guests are already counted in the first columns.
    let times: Vec<u64> = line.split_whitespace().take(8).filter_map(|t| t.parse().ok()).collect();
    let total = times.iter().sum();
    let idle = times.get(3)? + times.get(4)?;
    Some((total - idle, total))
}

/// Time of a process, from `/proc/N/stat`; its name may hold spaces and brackets.
fn ticks(text: &str) -> Option<u64> {
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// The process with an exclusive lock on a file, from `/proc/locks`.
fn holder(text: &str, inode: u64) -> Option<u32> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", process, file, ..] = fields[..] else { return None };
        (file.rsplit(':').next()?.parse() == Ok(inode)).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let stat = "cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(cpu_times(stat), Some((150, 1000)));
        let process = "42 (a ) odd (name) R 1 1 1 0 -1 0 1 2 3 4 500 70 0 0 20 0 2 0 99";
        assert_eq!(ticks(process), Some(570));
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:99 0 EOF\n2: FLOCK  ADVISORY  WRITE 31 08:01:99 0 EOF\n";
        assert_eq!(holder(locks, 99), Some(31));
        assert_eq!(holder(locks, 9), None);
        assert_eq!(kilobytes("MemTotal:   12 kB\n", "MemTotal:"), Some(12 * 1024));
        for nonsense in ["", "cpu", "cpu  1 2", ") x"] {
            assert_eq!(cpu_times(nonsense), None);
            assert_eq!(ticks(nonsense), None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_that_holds_a_lock_is_found() {
        let run = tempfile::tempdir().unwrap();
        let lock = fs::File::create(run.path().join("lock")).unwrap();
        let mut machine = Machine::default();
        assert!(machine.process(run.path()).is_none());
        lock.try_lock().unwrap();
        let process = machine.process(run.path()).unwrap();
        assert_eq!(process.id, std::process::id());
        assert!(process.memory.unwrap() > 100_000);
    }
}
