//! What goes along with long measurements: it counts passes, remembers what was measured, and may be asked to stop.

use super::error::PruneError;
use super::ledger::Ledger;
use std::sync::atomic::{AtomicBool, Ordering};

/// The course of a measurement.
#[derive(Default)]
pub(super) struct Course<'a> {
    progress: Option<&'a mut dyn FnMut(usize, usize)>,
    stop: Option<&'a AtomicBool>,
    /// What was measured, now and before.
    pub(super) ledger: Ledger,
    done: usize,
    all: usize,
}

impl<'a> Course<'a> {
    pub(super) fn new(
        progress: &'a mut dyn FnMut(usize, usize),
        stop: &'a AtomicBool,
        ledger: Ledger,
    ) -> Self {
        Self { progress: Some(progress), stop: Some(stop), ledger, done: 0, all: 0 }
    }

    /// More passes will come.
    pub(super) fn expect(&mut self, passes: usize) {
        self.all += passes;
    }

    /// A pass is over. Whoever was asked to stop stops here, and what was measured is kept.
    pub(super) fn passed(&mut self) -> Result<(), PruneError> {
        self.done += 1;
        if let Some(progress) = &mut self.progress {
            progress(self.done, self.all);
        }
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            self.ledger.save()?;
            return Err(PruneError::Stopped {
                kept: self.ledger.path().map(Into::into),
                done: self.done,
                all: self.all,
            });
        }
        self.ledger.save_now_and_then()
    }

    /// These passes were made before.
    pub(super) fn known(&mut self, passes: usize) {
        self.done += passes;
    }
}
