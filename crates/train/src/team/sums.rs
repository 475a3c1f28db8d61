//! Gradients of a step: added up as a tree over the parts of the batch, by the owner of each parameter.
//!
//! A rank adds up the largest subtrees of its own parts and sends each to the owners as soon as it is complete, while its
//! later parts run. Every rank sends as often as the one with the most subtrees, so that all make the same exchanges.

use super::division::{Division, Owned};
use super::exchange::Team;
use super::share;
use super::tree::{Subtree, Tree};
use super::wire::{Letter, Reader};
use crate::error::TrainError;
use crate::gradient::Gradients;
use crate::plan::Wire;
use hadal_cpu::bf16;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Exchanges under way while a rank has nothing else to do: more would only take memory.
const AHEAD: usize = 8;

/// The sum of a step's gradients.
#[derive(Debug)]
pub(crate) struct Sums {
    parts: usize,
    wire: Wire,
    /// The parts of this rank.
    range: Range<usize>,
    own: Tree<Gradients>,
    /// Sums of what this rank owns, for each bucket.
    owned: Vec<Tree<Gradients>>,
    /// Buckets that are under way.
    under_way: VecDeque<usize>,
    /// Subtrees that were sent.
    rounds: usize,
}

impl Sums {
    /// Of a step of so many parts.
    pub(crate) fn new(team: &Team, division: &Division, parts: usize, wire: Wire) -> Self {
        let round: Option<fn(&mut Gradients)> = match wire {
            Wire::F32 => None,
            Wire::Bf16 => Some(|gradients| {
                gradients.values_mut().flatten().for_each(|value| *value = bf16(*value));
            }),
        };
        let buckets = if team.is_alone() { 0 } else { division.buckets.len() };
        Self {
            parts,
            wire,
            range: share(parts, team.rank(), team.size()),
            own: Tree::new(parts, round),
            owned: (0..buckets).map(|_| Tree::new(parts, round)).collect(),
            under_way: VecDeque::new(),
            rounds: 0,
        }
    }

    /// The parts that this rank goes through.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Adds the gradient of a part's mean loss.
    pub(crate) fn add(
        &mut self,
        team: &mut Team,
        division: &Division,
        part: usize,
        mut gradients: Gradients,
    ) -> Result<(), TrainError> {
        if self.parts > 1 {
            let share = 1.0 / self.parts as f32;
            gradients.values_mut().flatten().for_each(|value| *value *= share);
        }
        self.own.part(part, gradients);
        if team.is_alone() {
            return Ok(());
        }
        let is_last = part + 1 == self.range.end;
        for (subtree, gradients) in self.own.take_maximal(&self.range) {
            self.send(team, division, Some((subtree, gradients)), is_last)?;
        }
        team.progress()
    }

    /// The sums of what this rank owns; of everything, if it is alone.
    pub(crate) fn finish(
        mut self,
        team: &mut Team,
        division: &Division,
    ) -> Result<Gradients, TrainError> {
        if team.is_alone() {
            return Ok(self.own.finish().unwrap_or_default());
        }
        let subtrees = |rank| Subtree::all_in(&share(self.parts, rank, team.size())).len();
        let rounds = (0..team.size()).map(subtrees).max().unwrap_or_default();
        while self.rounds < rounds {
            self.send(team, division, None, true)?;
        }
        while !self.under_way.is_empty() {
            self.receive(team, division)?;
        }
        let sums = self.owned.into_iter().filter_map(Tree::finish);
        Ok(sums.flatten().collect())
    }

    /// Sends a subtree's sum to the owners, or nothing where others still have something to send.
    fn send(
        &mut self,
        team: &mut Team,
        division: &Division,
        sum: Option<(Subtree, Gradients)>,
        is_last: bool,
    ) -> Result<(), TrainError> {
        let (subtree, mut gradients) = sum.unzip();
        for (index, bucket) in division.buckets.iter().enumerate() {
            let started = Instant::now();
            let mut letters = team.letters();
            if let (Some(subtree), Some(gradients)) = (subtree, &mut gradients) {
                for (owner, letter) in letters.iter_mut().enumerate() {
                    let listed = &bucket[owner];
                    if owner == team.rank() {
                        let mut take = |owned: &Owned| gradients.remove_entry(&owned.name);
                        let own = listed.iter().filter_map(&mut take).collect();
                        self.owned[index].add(subtree, own);
                    } else {
                        write(letter, subtree, listed, gradients, self.wire);
                    }
                }
            }
            team.spend(started.elapsed());
            team.send(letters)?;
            self.under_way.push_back(index);
            while is_last && self.under_way.len() > AHEAD {
                self.receive(team, division)?;
            }
        }
        self.rounds += 1;
        Ok(())
    }

    /// Takes in the oldest bucket under way.
    fn receive(&mut self, team: &mut Team, division: &Division) -> Result<(), TrainError> {
        let Some(index) = self.under_way.pop_front() else { return Ok(()) };
        let letters = team.receive()?;
        let started = Instant::now();
        let listed = &division.buckets[index][team.rank()];
        for (rank, letter) in letters.iter().enumerate().filter(|(rank, _)| *rank != team.rank()) {
            let sum = team.read(rank, letter, |reader| match reader.is_empty() {
                true => Some(None),
                false => read(reader, listed, self.wire).map(Some),
            })?;
            if let Some((subtree, gradients)) = sum {
                self.owned[index].add(subtree, gradients);
            }
        }
        team.spend(started.elapsed());
        Ok(())
    }
}

fn write(
    letter: &mut Letter,
    subtree: Subtree,
    listed: &[Owned],
    gradients: &mut Gradients,
    wire: Wire,
) {
    letter.word(subtree.first as u64);
    letter.word(subtree.count as u64);
    for owned in listed {
        match gradients.remove(&owned.name) {
            Some(values) => {
                letter.byte(1);
                letter.gradient(&values, wire);
            }
            None => letter.byte(0),
        }
    }
}

fn read(reader: &mut Reader<'_>, listed: &[Owned], wire: Wire) -> Option<(Subtree, Gradients)> {
    let subtree = Subtree { first: reader.size()?, count: reader.size()? };
    let mut gradients = Gradients::new();
    for owned in listed {
        if reader.byte()? == 1 {
            gradients.insert(owned.name.clone(), reader.gradient(owned.elements, wire)?);
        }
    }
    Some((subtree, gradients))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::squares;
    use crate::team::Seen;
    use crate::{ConfigLayers, RunConfig};
    use hadal_model::{Decoder, Device};
    use hadal_ranks::{Ranks, Threads};
    use std::sync::Arc;

    fn model() -> (Decoder, RunConfig) {
        let config = ConfigLayers::from_preset("nano").and_then(ConfigLayers::finish).unwrap();
        let model = config.model.resolve(&config.residual, 40, 16);
        (Decoder::fresh(&model, 1, &Device::flex()).unwrap(), config)
    }

    /// No two numbers are alike; every third parameter has no gradient in every second part.
    fn gradients(decoder: &Decoder, part: usize) -> Gradients {
        let declared = decoder.declared().iter().enumerate();
        let there = declared.filter(|(index, _)| index % 3 > 0 || part.is_multiple_of(2));
        let value =
            |index: usize, i: usize| ((index * 31 + i * 7 + part * 13) as f32 * 0.61).sin() / 3.0;
        there
            .map(|(index, declared)| {
                let count = declared.shape.iter().product();
                (declared.name.clone(), (0..count).map(|i| value(index, i)).collect())
            })
            .collect()
    }

    fn summed(
        ranks: Arc<dyn Ranks>,
        parts: usize,
        wire: Wire,
        change: fn(usize, &mut Gradients),
    ) -> (Gradients, f64) {
        let (decoder, config) = model();
        let mut team = Team::new(ranks);
        let division = Division::new(&decoder, &config, team.size());
        let mut sums = Sums::new(&team, &division, parts, wire);
        for part in sums.range() {
            let mut gradients = gradients(&decoder, part);
            change(part, &mut gradients);
            sums.add(&mut team, &division, part, gradients).unwrap();
        }
        let sums = sums.finish(&mut team, &division).unwrap();
        let seen = Seen { squares: squares(&sums), ..Seen::default() };
        (sums, seen.together(&mut team).unwrap().norm())
    }

    fn bits(gradients: &Gradients) -> Vec<(&String, Vec<u32>)> {
        gradients
            .iter()
            .map(|(name, values)| (name, values.iter().map(|v| v.to_bits()).collect()))
            .collect()
    }

    #[test]
    fn owners_have_together_what_one_process_has() {
        for wire in [Wire::F32, Wire::Bf16] {
            for parts in [1, 2, 5, 8] {
                let [(alone, norm)] =
                    Threads::run(1, |ranks| summed(ranks, parts, wire, |_, _| {}))
                        .try_into()
                        .unwrap();
                for count in (2..=parts).filter(|count| *count < 5 || *count == parts) {
                    let ends = Threads::run(count, |ranks| summed(ranks, parts, wire, |_, _| {}));
                    assert!(ends.iter().all(|(_, other)| other.to_bits() == norm.to_bits()));
                    let each: usize = ends.iter().map(|(sums, _)| sums.len()).sum();
                    let all: Gradients = ends.into_iter().flat_map(|(sums, _)| sums).collect();
                    assert_eq!(each, all.len(), "one owner");
                    assert!(bits(&all) == bits(&alone), "{parts} parts on {count} ranks, {wire:?}");
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_not_finite_in_one_rank_is_seen_by_all() {
        let ends = Threads::run(3, |ranks| {
            summed(ranks, 3, Wire::F32, |part, gradients| {
                if part == 2 {
                    gradients.values_mut().last().unwrap()[0] = f32::INFINITY;
                }
            })
        });
        assert!(ends.iter().all(|(_, norm)| !norm.is_finite()));
    }
}
