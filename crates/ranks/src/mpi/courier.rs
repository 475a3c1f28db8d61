//! The thread that talks with MPI, so that the library need not allow more than one.
//!
//! Parts travel while the rank computes, and every rank hears from all others that they live, also from those whose
//! computing takes long. Nothing here waits for another rank inside of an MPI call.

mod leaving;

use super::Settings;
use super::letter::{End, LONGEST, Letter, SHORT};
use super::parts::{Arrived, Parts};
use crate::{Member, RankError};
use ferrompi::{Communicator, PersistentRequest, Source};
pub(super) use leaving::Departure;
use leaving::{Departing, Leaving};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Tags of messages.
const LETTER: i32 = 1;
const PIECE: i32 = 2;

/// Looks at MPI are this far apart: while somebody waits and much has been looked in vain, while parts are under way,
/// and else.
const WAITING: Duration = Duration::from_micros(50);
const UNDER_WAY: Duration = Duration::from_micros(300);
const IDLE: Duration = Duration::from_millis(5);
/// Looks in vain before a pause.
const EAGER: u32 = 200;

/// What a rank asks of its courier.
#[derive(Debug)]
pub(super) enum Call {
    /// Parts of the next exchange.
    Send(Vec<Vec<u8>>),
    /// What has come in this exchange.
    Finish(u64, Sender<Arrived>),
    /// The rank leaves. It is told whether it should say why.
    Leave(Option<String>, Sender<bool>),
    /// Ends MPI, and with another code than 0 perhaps everything.
    Depart(u8, Sender<Result<(), RankError>>),
}

/// What couriers and their rank know together.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Counts looks at MPI: if it stands still, the library hangs.
    pub(super) looks: AtomicU64,
    /// Who is who, once they have said it.
    pub(super) members: OnceLock<Vec<Member>>,
}

impl Shared {
    pub(super) fn member(&self, rank: usize) -> Member {
        let known = self.members.get().and_then(|members| members.get(rank));
        let unknown = || Member { rank, host: "an unknown host".into(), process: 0 };
        known.cloned().unwrap_or_else(unknown)
    }
}

/// Why nothing more comes from a rank.
#[derive(Debug)]
struct Gone {
    /// Exchanges whose parts it has sent.
    entered: u64,
    end: Option<End>,
    error: RankError,
}

/// A piece of a part on its way to this rank.
struct Piece {
    request: PersistentRequest<u8>,
    number: u64,
    from: usize,
    /// Where it belongs, if it is not the whole part.
    start: Option<usize>,
}

pub(super) struct Courier {
    world: Communicator,
    calls: Receiver<Call>,
    shared: Arc<Shared>,
    rank: usize,
    size: usize,
    piece: usize,
    patience: Duration,
    /// Exchanges that this rank has entered, and those that others have.
    entered: u64,
    announced: Vec<u64>,
    exchanges: BTreeMap<u64, Parts>,
    sending: Vec<(usize, PersistentRequest<u8>)>,
    receiving: Vec<Piece>,
    heard: Vec<Instant>,
    looked: Instant,
    beaten: Instant,
    gone: Vec<Option<Gone>>,
    /// MPI's own failure.
    failed: Option<RankError>,
    /// What this rank was told of others: its last words are about that.
    told: Option<RankError>,
    leaving: Option<Leaving>,
    departing: Option<Departing>,
}

fn library(error: ferrompi::Error) -> RankError {
    RankError::Library(error.to_string())
}

impl Courier {
    pub(super) fn new(
        world: Communicator,
        calls: Receiver<Call>,
        shared: Arc<Shared>,
        settings: Settings,
    ) -> Self {
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        let Settings { patience, piece } = settings;
        let now = Instant::now();
        Self {
            world,
            calls,
            shared,
            rank,
            size,
            piece,
            patience,
            entered: 0,
            announced: vec![0; size],
            exchanges: BTreeMap::new(),
            sending: Vec::new(),
            receiving: Vec::new(),
            heard: vec![now; size],
            looked: now,
            beaten: now,
            gone: (0..size).map(|_| None).collect(),
            failed: None,
            told: None,
            leaving: None,
            departing: None,
        }
    }

    /// Works until the rank departs.
    pub(super) fn run(&mut self) -> Departure {
        let mut vain = 0;
        loop {
            if !self.take_calls(vain) {
                return Departure::Dropped;
            }
            let moved = self.failed.is_none()
                && self.look().unwrap_or_else(|error| {
                    self.failed = Some(error);
                    true
                });
            self.shared.looks.fetch_add(1, Ordering::Relaxed);
            self.answer();
            vain = if moved { 0 } else { vain + 1 };
            if let Some(departure) = self.depart() {
                return departure;
            }
        }
    }

    /// Takes what the rank asks, and waits for that as long as nothing else is to be done. Whether the rank is still there.
    fn take_calls(&mut self, vain: u32) -> bool {
        let waited_for =
            self.leaving.is_some() || self.exchanges.values().any(|parts| parts.waiting.is_some());
        let pause = match waited_for {
            true if vain < EAGER => Duration::ZERO,
            true => WAITING,
            false if self.entered > 0 && self.is_under_way() => UNDER_WAY,
            false => IDLE,
        };
        let mut next = if pause.is_zero() {
            std::thread::yield_now();
            self.next_call()
        } else {
            self.calls.recv_timeout(pause)
        };
        loop {
            match next {
                Ok(call) => self.take(call),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
            next = self.next_call();
        }
    }

    fn next_call(&self) -> Result<Call, RecvTimeoutError> {
        self.calls.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }

    fn is_under_way(&self) -> bool {
        !(self.sending.is_empty() && self.receiving.is_empty() && self.exchanges.is_empty())
    }

    fn take(&mut self, call: Call) {
        match call {
            Call::Send(parts) => {
                if let Err(error) = self.send(parts) {
                    self.failed.get_or_insert(error);
                }
            }
            Call::Finish(number, reply) => self.parts(number).waiting = Some(reply),
            Call::Leave(words, reply) => {
                let end = self.end(words.as_ref());
                self.leaving = Some(Leaving::new(words, reply));
                let letter = Letter::Leaves(self.entered, end);
                for to in self.others() {
                    // Whoever cannot be told will see.
                    let _ = self.post(to, &letter);
                }
            }
            Call::Depart(code, reply) => self.departing = Some(Departing::new(code, reply)),
        }
    }

    fn others(&self) -> Vec<usize> {
        (0..self.size).filter(|&rank| rank != self.rank).collect()
    }

    fn parts(&mut self, number: u64) -> &mut Parts {
        let size = self.size;
        self.exchanges.entry(number).or_insert_with(|| Parts::of(size))
    }

    fn post(&mut self, to: usize, letter: &Letter) -> Result<(), RankError> {
        self.start(to, letter.bytes(), LETTER)
    }

    fn start(&mut self, to: usize, bytes: Vec<u8>, tag: i32) -> Result<(), RankError> {
        let mut request = self.world.send_init(bytes, to as i32, tag).map_err(library)?;
        request.start().map_err(library)?;
        self.sending.push((to, request));
        Ok(())
    }

    fn send(&mut self, parts: Vec<Vec<u8>>) -> Result<(), RankError> {
        let number = self.entered;
        self.entered += 1;
        for (to, part) in parts.into_iter().enumerate() {
            if to == self.rank {
                self.parts(number).put(to, part);
            } else if part.len() <= SHORT {
                self.post(to, &Letter::Part(part))?;
            } else {
                self.post(to, &Letter::Announced(part.len() as u64))?;
                if part.len() <= self.piece {
                    self.start(to, part, PIECE)?;
                } else {
                    for piece in part.chunks(self.piece) {
                        self.start(to, piece.to_vec(), PIECE)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks once at everything that MPI has. Whether anything has moved.
    fn look(&mut self) -> Result<bool, RankError> {
        let now = Instant::now();
        // Whoever was stopped itself has not heard others.
        if now - self.looked > self.patience / 4 {
            self.heard.fill(now);
        }
        self.looked = now;
        let mut moved = self.take_letters(now)?;
        moved |= self.take_pieces(now)?;
        moved |= self.let_go()?;
        self.beat(now)?;
        self.miss(now);
        Ok(moved)
    }

    fn take_letters(&mut self, now: Instant) -> Result<bool, RankError> {
        let mut moved = false;
        let mut bytes = [0; LONGEST];
        while let Some((message, status)) =
            self.world.improbe::<u8>(Source::Any, LETTER).map_err(library)?
        {
            message.mrecv(&mut bytes).map_err(library)?;
            let strange =
                || RankError::Library("a message that no hadal of this version sends".into());
            let Source::Rank(from) = status.source else { return Err(strange()) };
            let (from, length) = (from as usize, status.count.unwrap_or(0));
            let letter = bytes.get(..length).and_then(Letter::read).ok_or_else(strange)?;
            self.heard[from] = now;
            moved |= letter != Letter::Alive;
            self.read(from, letter)?;
        }
        Ok(moved)
    }

    fn read(&mut self, from: usize, letter: Letter) -> Result<(), RankError> {
        let number = self.announced[from];
        match letter {
            Letter::Alive => return Ok(()),
            Letter::Leaves(entered, end) => {
                let member = self.shared.member(from);
                let error = match &end {
                    End::Done => RankError::Ended { member, said: "its work is done".into() },
                    End::Failed(said) => RankError::Ended { member, said: said.clone() },
                    End::Lost(member, how) => {
                        RankError::Lost { member: member.clone(), how: how.clone() }
                    }
                };
                self.gone[from] = Some(Gone { entered, end: Some(end), error });
                return Ok(());
            }
            Letter::Part(part) => self.parts(number).put(from, part),
            Letter::Announced(length) => {
                let length = length as usize;
                let single = length <= self.piece;
                if !single {
                    self.parts(number).expect(from, length);
                } else {
                    self.parts(number);
                }
                for start in (0..length).step_by(self.piece) {
                    let bytes = vec![0; self.piece.min(length - start)];
                    let request = self.world.recv_init(bytes, from as i32, PIECE);
                    let mut request = request.map_err(library)?;
                    request.start().map_err(library)?;
                    let start = (!single).then_some(start);
                    self.receiving.push(Piece { request, number, from, start });
                }
            }
        }
        self.announced[from] += 1;
        Ok(())
    }

    fn take_pieces(&mut self, now: Instant) -> Result<bool, RankError> {
        let mut moved = false;
        let mut at = 0;
        while at < self.receiving.len() {
            if self.receiving[at].request.test().map_err(library)?.is_none() {
                at += 1;
                continue;
            }
            // In order, since libraries complete the oldest first.
            let Piece { request, number, from, start } = self.receiving.remove(at);
            let bytes = request.into_buffer().map_err(library)?;
            match start {
                None => self.parts(number).put(from, bytes),
                Some(start) => self.parts(number).put_piece(from, start, &bytes),
            }
            self.heard[from] = now;
            moved = true;
        }
        Ok(moved)
    }

    /// Lets go what has left.
    fn let_go(&mut self) -> Result<bool, RankError> {
        let before = self.sending.len();
        let mut at = 0;
        while at < self.sending.len() {
            match self.sending[at].1.test().map_err(library)? {
                Some(_) => drop(self.sending.swap_remove(at)),
                None => at += 1,
            }
        }
        Ok(self.sending.len() != before)
    }

    /// Tells others that this rank lives, unless what they were told before has not even left.
    fn beat(&mut self, now: Instant) -> Result<(), RankError> {
        let often = (self.patience / 12).clamp(Duration::from_millis(10), Duration::from_secs(2));
        if now - self.beaten < often {
            return Ok(());
        }
        self.beaten = now;
        for to in self.others() {
            let unsent = self.sending.iter().filter(|(other, _)| *other == to).count();
            if self.gone[to].is_none() && unsent < 64 {
                self.post(to, &Letter::Alive)?;
            }
        }
        Ok(())
    }

    /// Who has been silent for too long is lost.
    fn miss(&mut self, now: Instant) {
        for rank in self.others() {
            if self.gone[rank].is_none() && now - self.heard[rank] > self.patience {
                let how = format!("silent for {} s", self.patience.as_secs_f64());
                let error = RankError::Lost { member: self.shared.member(rank), how };
                self.gone[rank] = Some(Gone { entered: 0, end: None, error });
            }
        }
    }

    /// Answers whoever waits and can be answered.
    fn answer(&mut self) {
        let (failed, gone) = (&self.failed, &self.gone);
        let verdict = |number: u64, parts: &Parts| {
            parts.waiting.as_ref()?;
            if parts.missing().next().is_none() {
                return Some(Ok(()));
            }
            let absent = |from: usize| gone[from].as_ref().filter(|gone| gone.entered <= number);
            let error = parts.missing().find_map(absent).map(|gone| gone.error.clone());
            // Its own failure explains more than what follows from it.
            failed.clone().or(error).map(Err)
        };
        let ready: Vec<_> = (self.exchanges.iter())
            .filter_map(|(&number, parts)| Some((number, verdict(number, parts)?)))
            .collect();
        for (number, verdict) in ready {
            let Some(mut parts) = self.exchanges.remove(&number) else { continue };
            let Some(reply) = parts.waiting.take() else { continue };
            if let Err(error) = &verdict {
                self.told.get_or_insert_with(|| error.clone());
            }
            // A rank that does not listen is about to end.
            let _ = reply.send(verdict.map(|()| parts.take()));
        }
        self.let_speak();
    }
}
