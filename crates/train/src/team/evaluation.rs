//! Evaluations that are divided among ranks.

use super::exchange::Team;
use super::failure;
use super::wire::Reader;
use crate::error::TrainError;
use crate::evaluate::{EvaluateError, Measured};

/// What all ranks have measured, in the order of batches. If one of them could not, nobody has an evaluation.
pub(crate) fn together(
    team: &mut Team,
    own: Result<Vec<Measured>, EvaluateError>,
) -> Result<Vec<Measured>, TrainError> {
    let own = own.map_err(TrainError::from);
    if team.is_alone() {
        return own;
    }
    let letters = team.gather(|letter| match &own {
        Ok(batches) => {
            letter.byte(1);
            letter.word(batches.len() as u64);
            for batch in batches {
                letter.number(batch.loss);
                let [a, b] = [batch.positions, batch.sequences];
                [a.0, a.1, b.0, b.1].into_iter().for_each(|count| letter.word(count as u64));
            }
        }
        Err(error) => {
            letter.byte(0);
            failure::write(letter, error);
        }
    })?;
    own?;
    let mut all = Vec::new();
    for (rank, letter) in letters.iter().enumerate() {
        let member = team.member(rank);
        let said = team.read(rank, letter, |reader| match reader.byte()? {
            1 => {
                let count = reader.size()?;
                (0..count).map(|_| read(reader)).collect::<Option<Vec<_>>>().map(Ok)
            }
            _ => failure::read(reader, member).map(Err),
        })?;
        all.extend(said.map_err(TrainError::Elsewhere)?);
    }
    Ok(all)
}

fn read(reader: &mut Reader<'_>) -> Option<Measured> {
    let loss = reader.number()?;
    let mut size = || reader.size();
    Some(Measured { loss, positions: (size()?, size()?), sequences: (size()?, size()?) })
}
