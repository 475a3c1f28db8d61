//! Ranks that are processes of MPI.
//!
//! Every process has a courier, a thread that alone calls MPI ([`courier`]): it carries parts while the rank computes, and
//! tells others that this process lives. Who is silent for longer than [`Settings::patience`] is lost, on whichever machine
//! it is, whether it was killed, stopped or cut off. A rank that computes for long is not silent.
//!
//! Ends of a job are ordered. Whoever leaves tells all others why, so that the lowest rank says it once; and MPI is
//! finalized together, or everything is ended at once if somebody is lost.

mod courier;
mod letter;
mod parts;

use crate::{Exchange, Member, RankError, Ranks};
use courier::{Call, Courier, Departure, Shared};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How ranks meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Who is silent for longer is lost.
    pub patience: Duration,
    /// Longer parts travel in pieces of this many bytes; at most 2^31 - 1.
    pub piece: usize,
}

/// The variable that sets [`Settings::patience`], in seconds.
const PATIENCE: &str = "HADAL_PATIENCE";

impl Default for Settings {
    fn default() -> Self {
        Self { patience: Duration::from_secs(60), piece: 256 << 20 }
    }
}

impl Settings {
    /// What the environment says, else the default.
    pub fn from_environment() -> Result<Self, RankError> {
        let set = std::env::var_os(PATIENCE).map(|value| value.to_string_lossy().into_owned());
        Self::with_patience(set.filter(|value| !value.is_empty()))
    }

    fn with_patience(set: Option<String>) -> Result<Self, RankError> {
        let Some(value) = set else { return Ok(Self::default()) };
        let seconds = value.trim().parse().ok().filter(|&seconds: &f64| seconds > 0.0);
        match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(patience) => Ok(Self { patience, ..Self::default() }),
            None => Err(RankError::Setting { name: PATIENCE.into(), value }),
        }
    }
}

/// A rank that is a process of MPI. There is one in a process.
pub struct Mpi {
    rank: usize,
    size: usize,
    /// Exchanges that this rank has entered.
    entered: AtomicU64,
    calls: Sender<Call>,
    shared: Arc<Shared>,
    patience: Duration,
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpi").field("rank", &self.rank).field("size", &self.size).finish()
    }
}

/// What a courier says once MPI has started.
struct Start {
    rank: usize,
    size: usize,
    host: String,
}

impl Mpi {
    /// Starts MPI among `launched` processes. It can be started once in a process.
    pub fn start(launched: usize, settings: Settings) -> Result<Self, RankError> {
        let (calls, asked) = channel();
        let (started, start) = channel();
        let shared = Arc::new(Shared::default());
        let (known, patience) = (Arc::clone(&shared), settings.patience);
        std::thread::Builder::new()
            .name("mpi".into())
            .spawn(move || serve(launched, settings, asked, known, &started))
            .map_err(|error| RankError::Library(format!("its thread cannot start: {error}")))?;
        let ended = |_| RankError::Library("MPI_Init ends its thread".into());
        let Start { rank, size, host } = start.recv().map_err(ended)??;
        let mpi = Self { rank, size, entered: AtomicU64::new(0), calls, shared, patience };
        let mine = [&std::process::id().to_le_bytes(), host.as_bytes()].concat();
        let members = mpi.gather(&mine)?.into_iter().enumerate().map(|(rank, bytes)| {
            let (process, host) = bytes.split_first_chunk().unwrap_or((&[0; 4], &[]));
            let host = String::from_utf8_lossy(host).into_owned();
            Member { rank, host, process: u32::from_le_bytes(*process) }
        });
        // Nobody else sets it.
        let _ = mpi.shared.members.set(members.collect());
        Ok(mpi)
    }

    /// This rank leaves, with these last words if it fails. Whether it is the one who should say them: a rank before it
    /// may have said the same.
    pub fn farewell(&self, words: Option<&str>) -> bool {
        let (reply, answer) = channel();
        self.ask(Call::Leave(words.map(Into::into), reply), &answer).unwrap_or(true)
    }

    /// Ends MPI after [`Self::farewell`]. With `code` 0, waits for all others. Otherwise those who do not leave as well are
    /// ended, and so is this process, if MPI cannot be finalized.
    pub fn depart(&self, code: u8) -> Result<(), RankError> {
        let (reply, answer) = channel();
        self.ask(Call::Depart(code, reply), &answer)?
    }

    fn ask<T>(&self, call: Call, answer: &Receiver<T>) -> Result<T, RankError> {
        self.call(call)?;
        self.wait(answer)
    }

    fn call(&self, call: Call) -> Result<(), RankError> {
        self.calls.send(call).map_err(|_| over())
    }

    /// Waits for the courier as long as it works: the library may hang.
    fn wait<T>(&self, answer: &Receiver<T>) -> Result<T, RankError> {
        wait(answer, &self.shared, self.patience)
    }
}

fn wait<T>(answer: &Receiver<T>, shared: &Shared, patience: Duration) -> Result<T, RankError> {
    const TRIES: u32 = 20;
    let (mut looks, mut vain) = (0, 0);
    while vain < TRIES {
        match answer.recv_timeout(patience / TRIES) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(over()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = shared.looks.load(Ordering::Relaxed);
        vain = if now == looks { vain + 1 } else { 0 };
        looks = now;
    }
    let seconds = patience.as_secs_f64();
    Err(RankError::Library(format!("a call has not come back for {seconds} s")))
}

fn over() -> RankError {
    RankError::Library("it has ended already".into())
}

/// What the courier's thread does.
fn serve(
    launched: usize,
    settings: Settings,
    calls: Receiver<Call>,
    shared: Arc<Shared>,
    started: &Sender<Result<Start, RankError>>,
) {
    let failed = |error: ferrompi::Error| RankError::Library(error.to_string());
    let mpi = match ferrompi::Mpi::init_thread(ferrompi::ThreadLevel::Funneled) {
        Ok(mpi) => mpi,
        Err(error) => return drop(started.send(Err(failed(error)))),
    };
    let world = mpi.world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    if size != launched {
        let library = ferrompi::Mpi::library_version().unwrap_or_default();
        let library = library.split([',', '\n']).next().unwrap_or_default().trim().to_owned();
        drop(mpi);
        return drop(started.send(Err(RankError::Apart { launched, known: size, library })));
    }
    let host = world.processor_name().unwrap_or_else(|_| "an unknown host".into());
    let mut courier = Courier::new(world, calls, shared, settings);
    if started.send(Ok(Start { rank, size, host })).is_err() {
        return;
    }
    match courier.run() {
        Departure::Together(reply) => {
            drop(courier);
            drop(mpi);
            let _ = reply.send(Ok(()));
        }
        Departure::Abort(code) => mpi.world().abort(code.into()),
        Departure::Dropped => {
            // To drop what is under way would wait for it.
            std::mem::forget(courier);
            std::mem::forget(mpi);
        }
    }
}

impl Ranks for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, parts: Vec<Vec<u8>>) -> Result<Box<dyn Exchange>, RankError> {
        assert_eq!(parts.len(), self.size, "one part for each rank");
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        self.call(Call::Send(parts))?;
        let (calls, shared) = (self.calls.clone(), Arc::clone(&self.shared));
        Ok(Box::new(Carried { number, calls, shared, patience: self.patience }))
    }
}

/// An exchange that the courier carries.
#[derive(Debug)]
struct Carried {
    number: u64,
    calls: Sender<Call>,
    shared: Arc<Shared>,
    patience: Duration,
}

impl Exchange for Carried {
    fn progress(&mut self) -> Result<(), RankError> {
        // The courier does not need this thread.
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<Vec<u8>>, RankError> {
        let (reply, answer) = channel();
        self.calls.send(Call::Finish(self.number, reply)).map_err(|_| over())?;
        wait(&answer, &self.shared, self.patience)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_number_of_seconds() {
        let patience = |text: &str| Settings::with_patience(Some(text.into()));
        assert_eq!(patience("2.5").unwrap().patience, Duration::from_millis(2500));
        assert_eq!(Settings::with_patience(None), Ok(Settings::default()));
        for nonsense in ["0", "-1", "a minute", "inf", "NaN", "1e30"] {
            let said = patience(nonsense).unwrap_err().to_string();
            assert!(said.starts_with(&format!("HADAL_PATIENCE={nonsense} is no")), "{said}");
        }
    }

    #[test]
    fn a_library_that_hangs_is_noticed() {
        let (_reply, answer) = channel::<()>();
        let error = wait(&answer, &Shared::default(), Duration::from_millis(40)).unwrap_err();
        assert_eq!(error.to_string(), "MPI fails: a call has not come back for 0.04 s");
    }
}
