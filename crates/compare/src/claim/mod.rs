//! Several processes share the runs of a suite without a coordinator: each is claimed before it is made.
//!
//! `DIR/claims/runs/NAME/3/` is the third claim of the run `runs/NAME`. A claim is a directory that is filled beside its
//! place and renamed to it, which fails if another one is there: file systems of clusters can do that, whatever they do
//! about locks. Numbers only grow, nothing is removed, and the highest number counts. So whoever wakes up after its claim
//! was taken over cannot touch the new one, and sees it.
//!
//! A claim lives as long as its process ([`judge`]), or until it has an end. [`way`] keeps those that have lost a claim
//! out of the run's folder.

mod judge;
mod presence;
#[cfg(test)]
mod tests;
mod way;

use hadal_files::{
    Action, FileError, create_directory, file_error, pretty_json, read_text_at_most,
    remove_directory, write_whole,
};
use hadal_report::suite::claims::{
    Claim as Latest, END, FOLDER, HOLDER, Process, names_in, numbers,
};
use judge::{Judge, Verdict};
use presence::Presence;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A name and a number.
const SMALL: u64 = 1 << 16;

/// The claims in a suite's folder, as one process sees them.
#[derive(Debug)]
pub(crate) struct Claims {
    suite: PathBuf,
    /// None for a process that only looks.
    me: Option<Presence>,
    judge: RefCell<Judge>,
    /// Failures of processes that were gone before this one began: they are tried again.
    old: BTreeSet<(String, u64)>,
    taken: Cell<u64>,
    every: Duration,
    longest: Duration,
}

/// How something that was claimed ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "said", rename_all = "snake_case")]
pub(crate) enum Ended {
    /// As it should.
    Done,
    /// Before its end; anybody may go on.
    Stopped,
    /// Its process failed.
    Failed(String),
    /// Its numbers stopped being numbers.
    Diverged(String),
}

/// What is known of a claim's place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Look {
    /// It can be taken.
    Free(Free),
    /// Another process has it.
    Held(Holder),
    /// Another process came to this end while this one is at work, so there is no need to try again.
    Ended(Ended, Free),
}

/// A process that has a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// How it is called.
    pub(crate) shown: String,
    /// Whether it was seen alive. Else it may be gone, and this process has to go on looking.
    pub(crate) is_alive: bool,
}

/// A claim that can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    /// The claim before it; zero if there was none.
    after: u64,
    /// Whether that one's process has died.
    lost: bool,
}

impl Claims {
    /// The claims of a suite for a process that takes part. Whose process on another machine shows no sign of life for
    /// this long has lost its claims.
    pub(crate) fn open(suite: &Path, lost_after: Duration) -> Result<Self, FileError> {
        let me = Presence::begin(suite, lost_after)?;
        let mut claims = Self { me: Some(me), ..Self::visiting(suite, lost_after) };
        claims.old = claims.failures_of_the_gone();
        Ok(claims)
    }

    /// The claims of a suite for a process that only looks, and writes nothing.
    pub(crate) fn visiting(suite: &Path, lost_after: Duration) -> Self {
        Self {
            suite: suite.into(),
            me: None,
            judge: RefCell::new(Judge::new(suite, lost_after)),
            old: BTreeSet::new(),
            taken: Cell::new(0),
            every: judge::every(lost_after),
            longest: lost_after / 10,
        }
    }

    /// Whether this process only looks.
    pub(crate) fn only_looks(&self) -> bool {
        self.me.is_none()
    }

    /// How often it is worth looking at what others have.
    pub(crate) fn every(&self) -> Duration {
        self.every
    }

    /// When to look again after a look that took so long: the disk is there for all processes. Whoever has no room for
    /// another run has time, but nobody may look so seldom that it cannot tell who is alive.
    pub(crate) fn pause(&self, took: Duration, has_room: bool) -> Duration {
        let least = if has_room { self.every } else { 8 * self.every };
        least.max(20 * took).min(self.longest.max(self.every))
    }

    /// Whether any other process may be at work in the suite.
    pub(crate) fn has_others(&self) -> bool {
        let mine = self.me.as_ref().map(Presence::name);
        let others = Process::names(&self.suite);
        let mut others = others.iter().filter(|name| Some(name.as_str()) != mine);
        others.any(|name| self.verdict(name) != Verdict::Dead)
    }

    /// What a name's latest claim says. The name is the path of what is claimed, below the suite's folder.
    pub(crate) fn look(&self, name: &str) -> Look {
        let Some(latest) = Latest::latest(&self.place(name)) else {
            return Look::Free(Free { after: 0, lost: false });
        };
        let (number, holder) = (latest.number, &latest.process);
        let free = |lost| Look::Free(Free { after: number, lost });
        match end_of(&latest) {
            Some(Ended::Done | Ended::Stopped) => free(false),
            Some(_) if self.old.contains(&(name.to_owned(), number)) => free(false),
            Some(end) => match self.was_met(holder) {
                Some(true) => Look::Ended(end, Free { after: number, lost: false }),
                Some(false) => free(false),
                None => Look::Held(Holder { shown: self.shown(holder), is_alive: false }),
            },
            None => match self.verdict(holder) {
                Verdict::Dead => free(true),
                verdict => Look::Held(Holder {
                    shown: self.shown(holder),
                    is_alive: verdict == Verdict::Alive,
                }),
            },
        }
    }

    /// Takes a claim that was free, unless another process is faster.
    pub(crate) fn take(&self, name: &str, free: Free) -> Result<Option<Claim>, FileError> {
        let Some(me) = &self.me else { return Ok(None) };
        let place = self.place(name);
        let number = self.taken.replace(self.taken.get() + 1);
        let holder = format!("{} {number}", me.name());
        let beside = place.join(format!(".{}-{number}", me.name()));
        create_directory(&beside)?;
        let write = |error| file_error(Action::Write, &beside)(error);
        fs::write(beside.join(HOLDER), &holder).map_err(write)?;
        way::make(&beside, name);
        let claim = place.join((free.after + 1).to_string());
        hadal_files::point(Action::Rename, &claim)?;
        let renamed = fs::rename(&beside, &claim);
        // The answer of a server can be lost, so the file says whose it is.
        if read_text_at_most(&claim.join(HOLDER), SMALL).is_ok_and(|text| text == holder) {
            let next = place.join((free.after + 2).to_string());
            let run = self.suite.join(name);
            let way = way::through(&claim, name).unwrap_or_else(|| run.clone());
            return Ok(Some(Claim { place, claim, next, run, way, free, has_ended: false }));
        }
        remove_directory(&beside)?;
        match renamed {
            // Something is in the way that is no claim.
            Err(error) if !claim.is_dir() => Err(file_error(Action::Rename, &claim)(error)),
            _ => Ok(None),
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.suite.join(FOLDER).join(name)
    }

    fn verdict(&self, process: &str) -> Verdict {
        if self.me.as_ref().is_some_and(|me| me.name() == process) {
            return Verdict::Alive;
        }
        self.judge.borrow_mut().verdict(process)
    }

    /// Whether a process was at work at the same time as this one, as far as is known yet. One that ends in order takes
    /// its traces with it.
    fn was_met(&self, process: &str) -> Option<bool> {
        if !Process::file(&self.suite, process).exists() {
            return Some(true);
        }
        match self.verdict(process) {
            Verdict::Alive => Some(true),
            Verdict::Unknown => None,
            Verdict::Dead => Some(self.judge.borrow().has_met(process)),
        }
    }

    /// How a process is called.
    fn shown(&self, process: &str) -> String {
        let about = Process::read(&self.suite, process);
        about.map_or_else(|| "another process".into(), |about| about.to_string())
    }

    fn failures_of_the_gone(&self) -> BTreeSet<(String, u64)> {
        let root = self.suite.join(FOLDER);
        let mut old = BTreeSet::new();
        for kind in names_in(&root) {
            for name in names_in(&root.join(&kind)) {
                let name = format!("{kind}/{name}");
                let Some(latest) = Latest::latest(&self.place(&name)) else { continue };
                let has_failed =
                    matches!(end_of(&latest), Some(Ended::Failed(_) | Ended::Diverged(_)));
                let is_there = || Process::file(&self.suite, &latest.process).exists();
                let is_gone = || !is_there() || self.verdict(&latest.process) == Verdict::Dead;
                if has_failed && is_gone() {
                    old.insert((name, latest.number));
                }
            }
        }
        old
    }
}

/// The end of a claim, if it can be read.
fn end_of(claim: &Latest) -> Option<Ended> {
    serde_json::from_str(claim.end.as_ref()?).ok()
}

/// What this process has claimed. If it is dropped, others may go on with it.
#[derive(Debug)]
pub(crate) struct Claim {
    place: PathBuf,
    claim: PathBuf,
    next: PathBuf,
    run: PathBuf,
    way: PathBuf,
    free: Free,
    has_ended: bool,
}

impl Claim {
    /// Whether another process has taken it over meanwhile.
    pub(crate) fn is_lost(&self) -> bool {
        self.next.symlink_metadata().is_ok()
    }

    /// The path by which a process goes into what is claimed, as long as the claim is not lost.
    pub(crate) fn way(&self) -> &Path {
        &self.way
    }

    /// Keeps everybody out who had a claim before, and makes the folder that is claimed.
    pub(crate) fn enter(&self) -> Result<(), FileError> {
        for number in numbers(&self.place).filter(|number| *number <= self.free.after) {
            way::close(&self.place.join(number.to_string()), &self.run)?;
        }
        if self.free.lost {
            way::renew(&self.run)?;
        }
        // Something may be in the way, which the process of the run says in its words.
        let _ = fs::create_dir(&self.run);
        Ok(())
    }

    /// Says how it ended.
    pub(crate) fn end(mut self, end: &Ended) -> Result<(), FileError> {
        self.write(end)
    }

    fn write(&mut self, end: &Ended) -> Result<(), FileError> {
        self.has_ended = true;
        let path = self.claim.join(END);
        write_whole(&path, pretty_json(&path, end)? + "\n")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.has_ended {
            // If it cannot be written, others have to wait until this process has ended.
            let _ = self.write(&Ended::Stopped);
        }
    }
}
