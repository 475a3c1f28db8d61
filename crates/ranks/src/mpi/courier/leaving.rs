//! How a rank leaves: which of them says why, and when MPI may end.

use super::Courier;
use crate::RankError;
use crate::mpi::letter::End;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How long a rank that fails waits for others to say goodbye.
const PARTING: Duration = Duration::from_secs(3);
/// How long those wait to be ended who leave the words to another rank.
const ENDING: Duration = Duration::from_secs(5);

/// A rank that leaves.
pub(super) struct Leaving {
    /// Its last words, if it fails.
    words: Option<String>,
    /// Whether it should say them.
    reply: Option<Sender<bool>>,
    until: Instant,
    speaks: bool,
}

impl Leaving {
    pub(super) fn new(words: Option<String>, reply: Sender<bool>) -> Self {
        Self { words, reply: Some(reply), until: Instant::now() + PARTING, speaks: false }
    }
}

/// A rank that has said what it had to.
pub(super) struct Departing {
    code: u8,
    reply: Sender<Result<(), RankError>>,
    until: Instant,
}

impl Departing {
    pub(super) fn new(code: u8, reply: Sender<Result<(), RankError>>) -> Self {
        Self { code, reply, until: Instant::now() + ENDING }
    }
}

/// How a courier's work ends.
pub(in crate::mpi) enum Departure {
    /// MPI can be finalized; then the rank is told.
    Together(Sender<Result<(), RankError>>),
    /// Everything has to end with this code.
    Abort(u8),
    /// Nobody asks any more.
    Dropped,
}

impl Courier {
    /// Why this rank leaves, as others are told.
    pub(super) fn end(&self, words: Option<&String>) -> End {
        match (words, &self.told) {
            (None, _) => End::Done,
            (Some(_), Some(RankError::Lost { member, how })) => {
                End::Lost(member.clone(), how.clone())
            }
            (Some(words), _) => End::Failed(words.clone()),
        }
    }

    /// Words that several ranks have are said by the lowest of them.
    pub(super) fn let_speak(&mut self) {
        let (gone, rank) = (&self.gone, self.rank);
        let Some(leaving) = &mut self.leaving else { return };
        if leaving.reply.is_none() {
            return;
        }
        let said = |mine: &str| {
            let ends = gone[..rank].iter().flatten().filter_map(|gone| gone.end.as_ref()?.words());
            ends.into_iter().any(|words| words.contains(mine) || mine.contains(&words))
        };
        let speaks = match &leaving.words {
            None => Some(false),
            Some(mine) if said(mine) => Some(false),
            Some(_) if gone[..rank].iter().all(Option::is_some) => Some(true),
            Some(_) => (Instant::now() > leaving.until || self.failed.is_some()).then_some(true),
        };
        if let Some((speaks, reply)) = speaks.zip(leaving.reply.take_if(|_| speaks.is_some())) {
            leaving.speaks = speaks;
            let _ = reply.send(speaks);
        }
    }

    /// How the work ends, if it does now.
    pub(super) fn depart(&mut self) -> Option<Departure> {
        let Departing { code, until, .. } = self.departing.as_ref()?;
        let (code, late) = (*code, Instant::now() > *until);
        let others = || self.gone.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        let lost = others().filter_map(|(_, gone)| gone.as_ref()).find(|gone| gone.end.is_none());
        let trouble = lost.map(|gone| gone.error.clone()).or_else(|| self.failed.clone());
        let have_left = others().all(|(_, gone)| gone.is_some());
        let settled = have_left && self.sending.is_empty() && self.receiving.is_empty();
        let speaks = self.leaving.as_ref().is_some_and(|leaving| leaving.speaks);
        match trouble {
            // What it has done is done, but it has to say this.
            Some(error) if code == 0 => {
                let _ = self.departing.take()?.reply.send(Err(error));
                self.leaving.as_mut()?.speaks = true;
                None
            }
            // Not before others know that it is said: they would say it as well.
            Some(_) => {
                let known = have_left || self.failed.is_some();
                (speaks && known || late).then_some(Departure::Abort(code))
            }
            None if settled => Some(Departure::Together(self.departing.take()?.reply)),
            None => (code != 0 && late).then_some(Departure::Abort(code)),
        }
    }
}
