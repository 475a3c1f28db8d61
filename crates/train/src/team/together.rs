//! What all ranks must know after the passes of a step to decide the same.

use super::exchange::Team;
use super::tree::tree_sum;
use super::wire::{Letter, Reader};
use crate::error::TrainError;
use hadal_model::{SiteTally, Tally};
use std::collections::BTreeMap;

/// What a rank has seen in a step, or what all of them have seen together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Mean losses of the parts, divided by the number of parts, in order.
    pub(crate) losses: Vec<f64>,
    /// What ran.
    pub(crate) tally: Tally,
    /// The sum of squares of each gradient, by parameter.
    pub(crate) squares: BTreeMap<String, f64>,
    /// Whether somebody asked to stop.
    pub(crate) stop: bool,
    /// Whether it is time for a checkpoint by the clock of rank 0.
    pub(crate) due: bool,
}

impl Seen {
    /// The mean loss of the step.
    pub(crate) fn loss(&self) -> f64 {
        tree_sum(&self.losses)
    }

    /// The norm of the whole gradient: squares are added in the order of names.
    pub(crate) fn norm(&self) -> f64 {
        self.squares.values().sum::<f64>().sqrt()
    }

    fn write(&self, letter: &mut Letter) {
        letter.byte(self.stop.into());
        letter.byte(self.due.into());
        letter.word(self.losses.len() as u64);
        self.losses.iter().for_each(|loss| letter.number(*loss));
        letter.word(self.tally.tokens);
        letter.word(self.tally.sites.len() as u64);
        for site in &self.tally.sites {
            let counts = [site.ran, site.keyed, site.seen, site.context];
            counts.into_iter().for_each(|count| letter.word(count));
        }
        letter.word(self.squares.len() as u64);
        for (name, square) in &self.squares {
            letter.text(name);
            letter.number(*square);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (stop, due) = (reader.byte()? == 1, reader.byte()? == 1);
        let losses = (0..reader.size()?).map(|_| reader.number()).collect::<Option<_>>()?;
        let tokens = reader.word()?;
        let count = reader.size()?;
        let sites = (0..count).map(|_| read_site(reader)).collect::<Option<_>>()?;
        let count = reader.size()?;
        let squares =
            (0..count).map(|_| Some((reader.text()?, reader.number()?))).collect::<Option<_>>()?;
        Some(Self { losses, tally: Tally { tokens, sites }, squares, stop, due })
    }

    /// What all ranks have seen together.
    pub(crate) fn together(self, team: &mut Team) -> Result<Self, TrainError> {
        if team.is_alone() {
            return Ok(self);
        }
        let letters = team.gather(|letter| self.write(letter))?;
        let mut all = Self::default();
        for (rank, letter) in letters.iter().enumerate() {
            let seen = team.read(rank, letter, Self::read)?;
            all.losses.extend(seen.losses);
            all.tally.add(&seen.tally);
            all.squares.extend(seen.squares);
            all.stop |= seen.stop;
            all.due |= seen.due && rank == 0;
        }
        Ok(all)
    }
}

fn read_site(reader: &mut Reader<'_>) -> Option<SiteTally> {
    let mut word = || reader.word();
    Some(SiteTally { ran: word()?, keyed: word()?, seen: word()?, context: word()? })
}
