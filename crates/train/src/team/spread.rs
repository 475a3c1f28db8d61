//! Parameters and what the optimiser remembers on their way between ranks.

use super::division::Division;
use super::exchange::Team;
use super::wire::{Letter, Reader};
use crate::error::TrainError;
use crate::gradient::Gradients;
use crate::optim::{Optimizer, Slot};
use hadal_model::Decoder;

/// Exchanges under way at a time: more would only take memory.
const AHEAD: usize = 8;

/// After a step: every owner sends the parameters that it has moved to all others.
pub(crate) fn parameters(
    team: &mut Team,
    division: &Division,
    decoder: &mut Decoder,
) -> Result<(), TrainError> {
    if team.is_alone() {
        return Ok(());
    }
    let rank = team.rank();
    let mut mine = Gradients::new();
    decoder.change_parameters(|name, values| {
        if division.is_owner(rank, name) {
            mine.insert(name.to_owned(), values.to_vec());
        }
    });
    let theirs = to_all(team, division, &mine)?;
    put(decoder, &theirs);
    Ok(())
}

/// Owners send what they have of their parameters to all others; what this rank gets. Values of a parameter that nobody
/// sends are left out.
pub(crate) fn to_all(
    team: &mut Team,
    division: &Division,
    mine: &Gradients,
) -> Result<Gradients, TrainError> {
    if team.is_alone() {
        return Ok(Gradients::new());
    }
    let rank = team.rank();
    let mut theirs = Gradients::new();
    let mut received = 0;
    for bucket in &division.buckets {
        let mut letters = team.letters();
        for owned in &bucket[rank] {
            let values = mine.get(&owned.name);
            for (_, letter) in letters.iter_mut().enumerate().filter(|(other, _)| *other != rank) {
                letter.byte(values.is_some().into());
                letter.floats(values.map_or(&[][..], Vec::as_slice));
            }
        }
        team.send(letters)?;
        if team.under_way() > AHEAD {
            receive_values(team, division, received, &mut theirs)?;
            received += 1;
        }
    }
    for index in received..division.buckets.len() {
        receive_values(team, division, index, &mut theirs)?;
    }
    Ok(theirs)
}

fn receive_values(
    team: &mut Team,
    division: &Division,
    index: usize,
    theirs: &mut Gradients,
) -> Result<(), TrainError> {
    let letters = team.receive()?;
    for (rank, letter) in letters.iter().enumerate().filter(|(rank, _)| *rank != team.rank()) {
        team.read(rank, letter, |reader| {
            for owned in &division.buckets[index][rank] {
                if reader.byte()? == 1 {
                    theirs.insert(owned.name.clone(), reader.floats(owned.elements)?);
                }
            }
            Some(())
        })?;
    }
    Ok(())
}

fn put(decoder: &mut Decoder, found: &Gradients) {
    decoder.change_parameters(|name, values| {
        if let Some(found) = found.get(name) {
            values.copy_from_slice(found);
        }
    });
}

/// Rank 0 sends all parameters to everybody, and what the optimiser remembers to the owners. Nobody else remembers it
/// afterwards.
pub(crate) fn state(
    team: &mut Team,
    division: &Division,
    decoder: &mut Decoder,
    optimizer: &mut Optimizer,
) -> Result<(), TrainError> {
    if team.is_alone() {
        return Ok(());
    }
    let mut values = Gradients::new();
    if team.leads() {
        values.extend(decoder.parameters());
    } else {
        optimizer.complete();
    }
    for bucket in &division.buckets {
        let mut letters = team.letters();
        if team.leads() {
            for (owner, letter) in letters.iter_mut().enumerate().skip(1) {
                for owned in bucket.iter().flatten() {
                    letter.floats(values.get(&owned.name).map_or(&[][..], Vec::as_slice));
                }
                for owned in division.remembered(bucket, owner) {
                    let own = division.is_owner(owner, &owned.name);
                    if let Some(slot) = optimizer.slots().get(&owned.name) {
                        write_slot(letter, slot, own);
                    }
                }
            }
        }
        team.send(letters)?;
        let letters = team.receive()?;
        if !team.leads() {
            team.read(0, &letters[0], |reader| {
                for owned in bucket.iter().flatten() {
                    values.insert(owned.name.clone(), reader.floats(owned.elements)?);
                }
                for owned in division.remembered(bucket, team.rank()) {
                    let own = division.is_owner(team.rank(), &owned.name);
                    read_slot(reader, optimizer.slots_mut().get_mut(&owned.name)?, own)?;
                }
                Some(())
            })?;
        }
    }
    if !team.leads() {
        put(decoder, &values);
    }
    keep(team, division, optimizer);
    Ok(())
}

/// What the optimiser remembers comes to rank 0, which then remembers everything until [`keep`] is called.
pub(crate) fn remembered(
    team: &mut Team,
    division: &Division,
    optimizer: &mut Optimizer,
) -> Result<(), TrainError> {
    if team.is_alone() {
        return Ok(());
    }
    if team.leads() {
        optimizer.complete();
    }
    for bucket in &division.buckets {
        let mut letters = team.letters();
        if !team.leads() {
            let owned = &bucket[team.rank()];
            let slots = owned.iter().filter_map(|owned| optimizer.slots().get(&owned.name));
            slots.for_each(|slot| write_slot(&mut letters[0], slot, true));
        }
        team.send(letters)?;
        let letters = team.receive()?;
        if team.leads() {
            for (rank, letter) in letters.iter().enumerate().skip(1) {
                team.read(rank, letter, |reader| {
                    for owned in &bucket[rank] {
                        read_slot(reader, optimizer.slots_mut().get_mut(&owned.name)?, true)?;
                    }
                    Some(())
                })?;
            }
        }
    }
    Ok(())
}

/// Forgets what others remember.
pub(crate) fn keep(team: &Team, division: &Division, optimizer: &mut Optimizer) {
    if !team.is_alone() {
        let own = |name: &str| division.is_owner(team.rank(), name);
        optimizer.keep(|name| division.everywhere || own(name), own);
    }
}

/// `own`: with what the owner alone remembers.
fn write_slot(letter: &mut Letter, slot: &Slot, own: bool) {
    letter.floats(&slot.first);
    letter.floats(&slot.second);
    if own {
        letter.floats(&slot.outer);
    }
}

fn read_slot(reader: &mut Reader<'_>, slot: &mut Slot, own: bool) -> Option<()> {
    slot.first = reader.floats(slot.first.len())?;
    slot.second = reader.floats(slot.second.len())?;
    if own {
        slot.outer = reader.floats(slot.outer.len())?;
    }
    Some(())
}
