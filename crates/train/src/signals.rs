//! Stopping politely.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The signal that asked a process to stop.
#[derive(Debug, Default)]
pub struct StopSignal(Arc<AtomicUsize>);

impl StopSignal {
    /// What a process that was asked to stop ends with: 128 and the number of the signal, or of SIGINT if it was not a
    /// signal that asked.
    pub fn exit_code(&self) -> u8 {
        match u8::try_from(self.0.load(Ordering::Relaxed)) {
            Ok(signal @ 1..128) => 128 + signal,
            _ => 128 + SIGINT as u8,
        }
    }
}

/// Sets the flag on the first SIGINT, SIGTERM or SIGHUP; a second SIGINT or SIGTERM ends the process at once.
///
/// A second SIGHUP does not: when a terminal is closed, the shell and the system send one each. A process that was
/// started to outlive its terminal (`nohup`) ignores SIGHUP, and goes on doing so.
pub fn stop_on_signals(stop: &Arc<AtomicBool>) -> io::Result<StopSignal> {
    let asked = Arc::new(AtomicBool::new(false));
    let came = StopSignal::default();
    let listen = |signal| {
        flag::register_usize(signal, Arc::clone(&came.0), signal as usize)?;
        // The last: whoever sees the flag knows the signal.
        flag::register(signal, Arc::clone(stop))
    };
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and only sets it.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
        listen(signal)?;
    }
    #[cfg(unix)]
    if !is_ignored(signal_hook::consts::SIGHUP) {
        listen(signal_hook::consts::SIGHUP)?;
    }
    Ok(came)
}

/// Whether the process was started with a signal switched off.
#[cfg(unix)]
fn is_ignored(signal: std::ffi::c_int) -> bool {
    // SAFETY: plain data, for which zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action the call changes nothing but `action`.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
    known && action.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_signal() {
        for (signal, code) in [(0, 130), (1, 129), (2, 130), (15, 143), (500, 130)] {
            assert_eq!(StopSignal(Arc::new(AtomicUsize::new(signal))).exit_code(), code);
        }
    }
}
