//! The ranks of a run as one of them sees them: exchanges that also tell of failures, and the time they take.

use super::failure;
use super::wire::{Letter, Reader};
use crate::error::TrainError;
use hadal_ranks::{Alone, Exchange, Member, Ranks};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a letter begins with.
const FINE: u8 = 0;
const FAILED: u8 = 1;

/// The ranks of a run.
#[derive(Debug)]
pub(crate) struct Team {
    ranks: Arc<dyn Ranks>,
    /// As far as they have introduced themselves.
    members: Vec<Member>,
    under_way: VecDeque<Box<dyn Exchange>>,
    /// Nothing more will be sent.
    over: bool,
    spent: Duration,
}

impl Team {
    pub(crate) fn new(ranks: Arc<dyn Ranks>) -> Self {
        let members = (0..ranks.size())
            .map(|rank| Member { rank, host: "unknown".into(), process: 0 })
            .collect();
        let under_way = VecDeque::new();
        Self { ranks, members, under_way, over: false, spent: Duration::ZERO }
    }

    pub(crate) fn alone() -> Self {
        Self::new(Arc::new(Alone))
    }

    pub(crate) fn rank(&self) -> usize {
        self.ranks.rank()
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.size()
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Whether this is the rank that writes and speaks.
    pub(crate) fn leads(&self) -> bool {
        self.rank() == 0
    }

    pub(crate) fn member(&self, rank: usize) -> Member {
        self.members[rank].clone()
    }

    pub(super) fn meet_members(&mut self, members: Vec<Member>) {
        self.members = members;
    }

    /// A letter to be filled, for each rank.
    pub(super) fn letters(&self) -> Vec<Letter> {
        (0..self.size()).map(|_| Letter::new(FINE)).collect()
    }

    /// Sends letters, which arrive in the order in which they were sent.
    pub(super) fn send(&mut self, letters: Vec<Letter>) -> Result<(), TrainError> {
        let started = Instant::now();
        let parts = letters.into_iter().map(Letter::into_bytes).collect();
        self.under_way.push_back(self.ranks.exchange(parts)?);
        self.spent += started.elapsed();
        Ok(())
    }

    /// How many exchanges are under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Lets what is under way travel on while this rank computes.
    pub(crate) fn progress(&mut self) -> Result<(), TrainError> {
        let started = Instant::now();
        for exchange in &mut self.under_way {
            exchange.progress()?;
        }
        self.spent += started.elapsed();
        Ok(())
    }

    /// What came in the oldest exchange under way, from each rank.
    pub(super) fn receive(&mut self) -> Result<Vec<Vec<u8>>, TrainError> {
        let Some(oldest) = self.under_way.pop_front() else { return Ok(Vec::new()) };
        let started = Instant::now();
        let letters = oldest.finish()?;
        self.spent += started.elapsed();
        for (rank, letter) in letters.iter().enumerate() {
            let mut reader = Reader::new(letter);
            match reader.byte() {
                Some(FINE) => {}
                Some(FAILED) if rank != self.rank() => {
                    let failed = failure::read(&mut reader, self.member(rank));
                    return Err(failed.map_or_else(|| self.garbled(rank), TrainError::Elsewhere));
                }
                Some(FAILED) => {}
                _ => return Err(self.garbled(rank)),
            }
        }
        Ok(letters)
    }

    /// What a rank sent makes no sense here.
    pub(super) fn garbled(&self, rank: usize) -> TrainError {
        TrainError::Garbled(self.member(rank))
    }

    /// Reads what a rank sent.
    pub(super) fn read<T>(
        &self,
        rank: usize,
        letter: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
    ) -> Result<T, TrainError> {
        let mut reader = Reader::new(letter);
        reader.byte();
        read(&mut reader).ok_or_else(|| self.garbled(rank))
    }

    /// What every rank says, in the order of ranks. Nothing else may be under way.
    pub(super) fn gather(&mut self, say: impl Fn(&mut Letter)) -> Result<Vec<Vec<u8>>, TrainError> {
        debug_assert_eq!(self.under_way(), 0);
        let mut letters = self.letters();
        letters.iter_mut().for_each(say);
        self.send(letters)?;
        self.receive()
    }

    /// Rank 0 says something to all others; what it said.
    pub(crate) fn told(&mut self, text: Option<&str>) -> Result<String, TrainError> {
        let letters = self.gather(|letter| {
            if let Some(text) = text {
                letter.text(text);
            }
        })?;
        self.read(0, &letters[0], |reader| reader.text())
    }

    /// The last exchange of a run: nobody leaves before all have come so far.
    pub(crate) fn part(&mut self) -> Result<(), TrainError> {
        if !self.is_alone() && !self.over {
            self.gather(|_| {})?;
        }
        self.over = true;
        Ok(())
    }

    /// Tells all others that this rank ends, and why, unless they know or cannot be told.
    pub(crate) fn fail(&mut self, error: &TrainError) {
        let is_known = matches!(
            error,
            TrainError::Elsewhere(_) | TrainError::Ranks(_) | TrainError::Garbled(_)
        );
        if self.is_alone() || self.over || is_known {
            return;
        }
        self.over = true;
        let mut letters: Vec<Letter> = (0..self.size()).map(|_| Letter::new(FAILED)).collect();
        letters.iter_mut().for_each(|letter| failure::write(letter, error));
        if self.send(letters).is_err() {
            return;
        }
        // Until it has arrived. If others have failed before, they wait for nothing.
        while self.under_way() > 0 && self.receive().is_ok() {}
    }

    /// Counts time that is spent for the sake of others.
    pub(super) fn spend(&mut self, time: Duration) {
        self.spent += time;
    }

    /// The time spent with others since this was last asked.
    pub(crate) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_ranks::Threads;

    #[test]
    fn a_rank_that_fails_is_heard_by_all_wherever_they_are() {
        let ends = Threads::run(3, |ranks| {
            let mut team = Team::new(ranks);
            for round in 0..4 {
                if team.rank() == 2 && round == 2 {
                    let error = TrainError::Settings("torn".into());
                    team.fail(&error);
                    return Err(error);
                }
                team.send(team.letters())?;
            }
            while team.under_way() > 0 {
                team.receive()?;
            }
            Ok(())
        });
        for (rank, end) in ends.into_iter().enumerate() {
            let said = end.unwrap_err().to_string();
            assert!(said.ends_with("the settings cannot be written as TOML: torn"), "{said}");
            assert_eq!(said.starts_with("rank 2 "), rank != 2);
        }
    }

    #[test]
    fn two_that_fail_in_different_exchanges_do_not_wait_for_each_other() {
        let ends = Threads::run(3, |ranks| {
            let mut team = Team::new(ranks);
            for round in 0..6 {
                if team.rank() > 0 && round == 2 * team.rank() {
                    let error = TrainError::Settings(format!("torn {}", team.rank()));
                    team.fail(&error);
                    return error.to_string();
                }
                team.send(team.letters()).unwrap();
            }
            loop {
                if let Err(error) = team.receive() {
                    return error.to_string();
                }
            }
        });
        assert!(ends[0].ends_with("torn 1") && ends[2].ends_with("torn 2"), "{ends:?}");
    }

    #[test]
    fn the_last_exchange_is_made_once() {
        let ends = Threads::run(2, |ranks| {
            let mut team = Team::new(ranks);
            team.part().unwrap();
            team.part().unwrap();
            // Nobody is there to be told.
            team.fail(&TrainError::Settings("late".into()));
            team.under_way()
        });
        assert_eq!(ends, [0, 0]);
    }
}
