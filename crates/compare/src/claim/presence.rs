//! Signs of life of the processes that share a suite: `claims/processes/NAME.json` says what a process is, and is locked
//! while it lives; `NAME.beat` is written again and again.

use hadal_files::{Action, FileError, create_directory, file_error, pretty_json};
use hadal_report::suite::claims::Process;
use std::collections::hash_map::RandomState;
#[cfg(unix)]
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// This machine, since it was started.
pub(super) fn machine() -> String {
    let booted = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    booted.map_or_else(|_| host(), |id| id.trim().to_owned())
}

#[cfg(unix)]
fn host() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the pointer and the length are those of one buffer, whose last byte stays zero.
    let known = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } == 0;
    let text = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy();
    if known && !text.is_empty() { text.into_owned() } else { "this machine".into() }
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "this machine".into())
}

/// A process at work, which is this one.
#[derive(Debug)]
pub(super) struct Presence {
    name: String,
    suite: PathBuf,
    _lock: File,
    /// Gone, it ends the thread.
    alive: Option<Sender<()>>,
    beats: Option<JoinHandle<()>>,
}

impl Presence {
    pub(super) fn begin(suite: &Path, lost_after: Duration) -> Result<Self, FileError> {
        let every = lost_after / 8;
        let (host, process) = (host(), std::process::id());
        let about = Process {
            process,
            machine: machine(),
            beat_seconds: every.as_secs_f64(),
            host: host.clone(),
        };
        // Two containers have the same numbers, and perhaps the same names.
        let random = RandomState::new().hash_one(process) as u32;
        let fits = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '-' };
        let host: String = host.chars().map(fits).take(64).collect();
        let name = format!("{host}-{process}-{random:08x}");
        let (file, beat) = (Process::file(suite, &name), beat_file(suite, &name));
        create_directory(file.parent().unwrap_or(suite))?;
        let write = file_error(Action::Write, &file);
        let mut lock = File::create_new(&file).map_err(&write)?;
        // Where there are no locks, the beat has to do.
        let _ = lock.lock();
        lock.write_all(pretty_json(&file, &about)?.as_bytes()).map_err(&write)?;
        strike(&beat, 0).map_err(file_error(Action::Write, &beat))?;
        let (alive, ends) = channel();
        let beats = thread::spawn(move || {
            let mut count = 0;
            while ends.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                count += 1;
                // A disk may be full or away for a while; if it stays so, others take over, which does no harm.
                let _ = strike(&beat, count);
            }
        });
        Ok(Self { name, suite: suite.into(), _lock: lock, alive: Some(alive), beats: Some(beats) })
    }

    /// No other process has this name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// In place: whoever opens a file on a network disk sees what was written before it was closed, but may not see for a
/// minute that a name belongs to another file now.
fn strike(beat: &Path, count: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(beat)?;
    file.write_all(format!("{count:020}\n").as_bytes())
}

/// All claims have an end by now, so nobody needs to know this process any more.
impl Drop for Presence {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(beats) = self.beats.take() {
            let _ = beats.join();
        }
        let _ = fs::remove_file(Process::file(&self.suite, &self.name));
        let _ = fs::remove_file(beat_file(&self.suite, &self.name));
    }
}

/// What is written again and again.
pub(super) fn beat_file(suite: &Path, name: &str) -> PathBuf {
    Process::file(suite, name).with_extension("beat")
}
