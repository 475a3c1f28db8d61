//! How much of the machine strangers may use.

use crate::app::Trouble;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How much clients may use. The defaults suit people; tests use smaller ones.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time; more are told to come back.
    pub connections: usize,
    /// Runs that are watched at a time; more are told to come back.
    pub streams: usize,
    /// Time for a request's head, also on a connection that waits for its next request.
    pub head: Duration,
    /// Time to make an answer, the request's body included.
    pub request: Duration,
    /// Time in which an answer must be taken.
    pub answer: Duration,
    /// Time that a request waits for others before it is told to come back.
    pub queue: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            streams: 64,
            head: Duration::from_secs(15),
            request: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            queue: Duration::from_secs(5),
        }
    }
}

/// What a request needs; of each kind only so many work at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// What is in memory already.
    Known,
    /// Files of one run.
    Files,
    /// Files of many runs, or large ones.
    Many,
    /// A look at a run that is watched.
    Watch,
}

impl Work {
    const ALL: [(Self, usize); 4] =
        [(Self::Known, 2), (Self::Files, 3), (Self::Many, 2), (Self::Watch, 2)];
    /// Threads for all of them together.
    pub(crate) const THREADS: usize = 9;
}

/// Lets so many at a time do their work on threads that may wait for files.
pub(crate) struct Gates {
    gates: Vec<Arc<Semaphore>>,
    streams: Arc<Semaphore>,
    queue: Duration,
}

impl Gates {
    pub(crate) fn new(limits: &Limits) -> Self {
        let gates = Work::ALL.map(|(_, count)| Arc::new(Semaphore::new(count)));
        let streams = Arc::new(Semaphore::new(limits.streams));
        Self { gates: gates.into(), streams, queue: limits.queue }
    }

    /// Does work on a thread that may wait, or says that too many are before it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        kind: Work,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Trouble> {
        let gate = Arc::clone(&self.gates[kind as usize]);
        let Ok(Ok(permit)) = timeout(self.queue, gate.acquire_owned()).await else {
            return Err(Trouble::busy("too many requests are before this one"));
        };
        let work = move || {
            // The work ends when it ends, even if nobody waits for it any more.
            let _permit = permit;
            work()
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, error))
    }

    /// The right to watch a run.
    pub(crate) fn stream(&self) -> Result<OwnedSemaphorePermit, Trouble> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| Trouble::busy("too many runs are watched at the moment"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_thread_for_whoever_may_work() {
        let threads: usize = Work::ALL.iter().map(|(_, count)| count).sum();
        assert_eq!(threads, Work::THREADS);
        assert!(Work::ALL.iter().enumerate().all(|(place, (kind, _))| *kind as usize == place));
    }
}
