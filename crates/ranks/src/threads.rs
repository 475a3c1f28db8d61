//! Ranks that are threads of one process: for tests of whatever uses ranks.

use crate::{Exchange, Member, RankError, Ranks};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What befalls a rank when it enters its n-th exchange, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is gone, as after `kill -9`: its exchange fails, and others are told at once.
    Stops(u64),
    /// It hangs until nobody else is there, as after `kill -STOP`: others lose their patience.
    Hangs(u64),
}

/// A rank that is a thread.
#[derive(Debug)]
pub struct Threads(Arc<Place>);

/// From whom, in which exchange, what.
type Letter = (usize, u64, Vec<u8>);

#[derive(Debug)]
struct Place {
    rank: usize,
    present: Arc<Vec<AtomicBool>>,
    patience: Duration,
    fault: Option<Fault>,
    /// Exchanges that this rank has entered.
    entered: AtomicU64,
    to: Vec<Sender<Letter>>,
    inbox: Mutex<Inbox>,
}

#[derive(Debug)]
struct Inbox {
    letters: Receiver<Letter>,
    /// What has come, by exchange and sender.
    sorted: BTreeMap<(u64, usize), Vec<u8>>,
}

impl Threads {
    /// Runs `work` as each of `count` ranks; what they return, in the order of ranks.
    ///
    /// # Panics
    ///
    /// If one of them panics.
    pub fn run<T: Send>(count: usize, work: impl Fn(Arc<dyn Ranks>) -> T + Sync) -> Vec<T> {
        Self::run_with(count, Duration::from_secs(60), &[], work)
    }

    /// The same, with things that befall some ranks. Whoever is silent for as long as `patience` is lost.
    ///
    /// # Panics
    ///
    /// If one of them panics.
    pub fn run_with<T: Send>(
        count: usize,
        patience: Duration,
        faults: &[(usize, Fault)],
        work: impl Fn(Arc<dyn Ranks>) -> T + Sync,
    ) -> Vec<T> {
        let present: Arc<Vec<_>> = Arc::new((0..count).map(|_| AtomicBool::new(true)).collect());
        let (to, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
        let place = |(rank, letters)| Place {
            rank,
            present: Arc::clone(&present),
            patience,
            fault: faults.iter().find(|(who, _)| *who == rank).map(|(_, fault)| *fault),
            entered: AtomicU64::new(0),
            to: to.clone(),
            inbox: Mutex::new(Inbox { letters, sorted: BTreeMap::new() }),
        };
        let places: Vec<_> = inboxes.into_iter().enumerate().map(place).collect();
        thread::scope(|scope| {
            let work = &work;
            let start = |place| scope.spawn(move || work(Arc::new(Self(Arc::new(place)))));
            let running: Vec<_> = places.into_iter().map(start).collect();
            let end = |thread: thread::ScopedJoinHandle<'_, T>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(end).collect()
        })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.present[self.0.rank].store(false, Ordering::Release);
    }
}

impl Ranks for Threads {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn size(&self) -> usize {
        self.0.to.len()
    }

    fn exchange(&self, parts: Vec<Vec<u8>>) -> Result<Box<dyn Exchange>, RankError> {
        assert_eq!(parts.len(), self.size(), "one part for each rank");
        let number = self.0.entered.fetch_add(1, Ordering::Relaxed);
        match self.0.fault {
            Some(Fault::Stops(at)) if at <= number => {
                self.0.present[self.0.rank].store(false, Ordering::Release);
                return Err(self.0.lost(self.0.rank, "it stopped"));
            }
            Some(Fault::Hangs(at)) if at <= number => return Err(self.0.hang()),
            _ => {}
        }
        for (to, part) in self.0.to.iter().zip(parts) {
            // Whoever has gone needs nothing; that it has gone shows when its own part is missing.
            let _ = to.send((self.0.rank, number, part));
        }
        Ok(Box::new(Letters { place: Arc::clone(&self.0), number }))
    }
}

impl Place {
    fn lost(&self, rank: usize, how: &str) -> RankError {
        let member = Member { rank, host: "this process".into(), process: std::process::id() };
        RankError::Lost { member, how: how.into() }
    }

    fn is_present(&self, rank: usize) -> bool {
        self.present[rank].load(Ordering::Acquire)
    }

    fn hang(&self) -> RankError {
        while (0..self.to.len()).any(|rank| rank != self.rank && self.is_present(rank)) {
            thread::sleep(Duration::from_millis(1));
        }
        self.lost(self.rank, "it hung")
    }
}

/// An exchange under way.
#[derive(Debug)]
struct Letters {
    place: Arc<Place>,
    number: u64,
}

impl Exchange for Letters {
    fn progress(&mut self) -> Result<(), RankError> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<Vec<u8>>, RankError> {
        let place = &self.place;
        let mut inbox = place.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let inbox = &mut *inbox;
        let wait = |rank| {
            let deadline = Instant::now() + place.patience;
            loop {
                // Asked before the letters are looked at: what it sent while it was here is here as well.
                let (present, late) = (place.is_present(rank), Instant::now() > deadline);
                while let Ok((from, number, part)) = inbox.letters.try_recv() {
                    inbox.sorted.insert((number, from), part);
                }
                match inbox.sorted.remove(&(self.number, rank)) {
                    Some(part) => return Ok(part),
                    None if !present => return Err(place.lost(rank, "it has ended")),
                    None if late => {
                        let seconds = place.patience.as_secs_f64();
                        return Err(place.lost(rank, &format!("silent for {seconds} s")));
                    }
                    None => thread::sleep(Duration::from_micros(50)),
                }
            }
        };
        (0..place.to.len()).map(wait).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(200);

    /// What four exchanges end with.
    fn four(ranks: Arc<dyn Ranks>) -> Result<(), String> {
        (0..4).try_for_each(|_| ranks.gather(&[7]).map(drop).map_err(|error| error.to_string()))
    }

    #[test]
    fn threads_keep_the_laws() {
        for count in [1, 2, 3, 5] {
            Threads::run(count, |ranks| crate::testing::laws(&*ranks));
        }
    }

    #[test]
    fn who_stops_or_hangs_is_named_by_all_others() {
        for (fault, how) in
            [(Fault::Stops(2), "it has ended"), (Fault::Hangs(2), "silent for 0.2 s")]
        {
            let ends = Threads::run_with(3, SOON, &[(1, fault)], four);
            for end in [&ends[0], &ends[2]] {
                let said = end.as_ref().unwrap_err();
                assert!(said.starts_with("rank 1 (process ") && said.ends_with(how), "{said}");
            }
            assert!(ends[1].is_err());
        }
    }

    #[test]
    fn who_is_done_has_left_its_parts_behind() {
        let seen = Threads::run_with(2, SOON, &[], |ranks| {
            if ranks.rank() == 1 {
                thread::sleep(SOON / 4);
            }
            ranks.gather(&[ranks.rank() as u8]).unwrap()
        });
        assert!(seen.iter().all(|all| *all == [[0], [1]]));
    }
}
