//! Whether another process lives.
//!
//! On this machine the system knows: a process holds a lock on its file until it ends. For other machines nothing is
//! asked of locks or clocks. What counts is whether a process's beat changes while this process looks on.

use super::presence::{beat_file, machine};
use hadal_report::suite::claims::Process;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Alive,
    /// It has not been looked at for long enough.
    Unknown,
    Dead,
}

/// Looks at other processes.
#[derive(Debug)]
pub(super) struct Judge {
    suite: PathBuf,
    machine: String,
    lost_after: Duration,
    watched: BTreeMap<String, Watched>,
}

#[derive(Debug)]
struct Watched {
    beat: Option<Vec<u8>>,
    looked: Instant,
    /// How long it has been seen without a change.
    still: Duration,
    /// Whether it was seen alive.
    met: bool,
}

/// How often a process has to be looked at.
pub(super) fn every(lost_after: Duration) -> Duration {
    (lost_after / 10).min(Duration::from_millis(500))
}

impl Judge {
    pub(super) fn new(suite: &Path, lost_after: Duration) -> Self {
        Self { suite: suite.into(), machine: machine(), lost_after, watched: BTreeMap::new() }
    }

    /// Looks at a process once more.
    pub(super) fn verdict(&mut self, name: &str) -> Verdict {
        let about = Process::read(&self.suite, name);
        let here = about.as_ref().is_some_and(|about| about.machine == self.machine);
        let locked = here.then(|| is_locked(&Process::file(&self.suite, name))).flatten();
        let beat = std::fs::read(beat_file(&self.suite, name)).ok();
        let now = Instant::now();
        let watched = self.watched.entry(name.to_owned()).or_insert_with(|| Watched {
            beat: beat.clone(),
            looked: now,
            still: Duration::ZERO,
            met: false,
        });
        // Both processes may have slept, together with their machine: time in which nobody looked does not count.
        let since = (now - watched.looked).min(self.lost_after / 8);
        watched.looked = now;
        if watched.beat == beat {
            watched.still += since;
        } else {
            (watched.beat, watched.still, watched.met) = (beat, Duration::ZERO, true);
        }
        if let Some(locked) = locked {
            watched.met |= locked;
            return if locked { Verdict::Alive } else { Verdict::Dead };
        }
        // Another process may be told to be slower.
        let between = about.map_or(0.0, |about| about.beat_seconds);
        let slow = Duration::try_from_secs_f64(6.0 * between).unwrap_or(self.lost_after);
        match watched.still >= self.lost_after.max(slow) {
            true => Verdict::Dead,
            false if watched.met => Verdict::Alive,
            false => Verdict::Unknown,
        }
    }

    /// Whether a process was ever seen alive.
    pub(super) fn has_met(&self, name: &str) -> bool {
        self.watched.get(name).is_some_and(|watched| watched.met)
    }
}

/// Whether somebody holds the lock of a file; nothing where there are no locks.
fn is_locked(path: &Path) -> Option<bool> {
    match File::open(path).ok()?.try_lock_shared() {
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}
