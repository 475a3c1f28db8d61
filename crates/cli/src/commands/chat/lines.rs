//! Lines that somebody types or a pipe brings, and Ctrl-C.

use crate::failure::Failure;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How soon Ctrl-C is noticed while nothing is typed.
const SOON: Duration = Duration::from_millis(100);

/// What came.
pub(super) enum Heard {
    Line(String),
    /// Ctrl-C, while no answer was written.
    Interrupt,
    End,
}

/// Standard input.
pub(super) struct Lines {
    /// Whether somebody sits there.
    pub(super) typed: bool,
    incoming: Receiver<io::Result<String>>,
    interrupt: Arc<AtomicBool>,
}

impl Lines {
    /// Listens from now on. On a terminal, Ctrl-C no longer ends the program.
    pub(super) fn listen() -> Result<Self, Failure> {
        let typed = io::stdin().is_terminal();
        let interrupt = Arc::new(AtomicBool::new(false));
        #[cfg(unix)]
        if typed {
            let flag = Arc::clone(&interrupt);
            signal_hook::flag::register(signal_hook::consts::SIGINT, flag)
                .map_err(|error| Failure::failed(format!("cannot watch for Ctrl-C: {error}")))?;
        }
        // A thread of its own, because a read cannot be interrupted. It never reads ahead of what is asked.
        let (send, incoming) = sync_channel(0);
        std::thread::spawn(move || {
            loop {
                let mut line = String::new();
                let read = io::stdin().read_line(&mut line);
                let last = !matches!(read, Ok(1..));
                if send.send(read.map(|_| line)).is_err() || last {
                    return;
                }
            }
        });
        Ok(Self { typed, incoming, interrupt })
    }

    /// Waits for the next line.
    pub(super) fn next(&self) -> Result<Heard, Failure> {
        loop {
            match self.incoming.recv_timeout(SOON) {
                Ok(Ok(line)) if line.is_empty() => return Ok(Heard::End),
                Ok(Ok(line)) => return Ok(Heard::Line(line)),
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(Failure::usage("what comes on stdin is not UTF-8"));
                }
                Ok(Err(error)) => {
                    return Err(Failure::failed(format!("cannot read stdin: {error}")));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(Heard::End),
                Err(RecvTimeoutError::Timeout) if self.interrupted() => {
                    return Ok(Heard::Interrupt);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Set by Ctrl-C.
    pub(super) fn interrupt(&self) -> &AtomicBool {
        &self.interrupt
    }

    /// Whether Ctrl-C was pressed since this was last asked.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupt.swap(false, Ordering::Relaxed)
    }
}
