//! What one rank tells the others when it cannot go on.

use super::wire::{Letter, Reader};
use crate::error::TrainError;
use hadal_ranks::Member;

/// What ended the run on another rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{member}: {message}")]
pub struct Elsewhere {
    /// Where.
    pub member: Member,
    /// What it said.
    pub message: String,
    /// Whether the request was wrong from the start.
    pub(crate) usage: bool,
    /// Whether the run's numbers are no longer finite.
    pub(crate) divergence: bool,
}

/// Writes down why this rank ends.
pub(super) fn write(letter: &mut Letter, error: &TrainError) {
    letter.byte(error.is_usage().into());
    letter.byte(error.is_divergence().into());
    letter.text(&error.to_string());
}

/// Reads why another rank ends.
pub(super) fn read(reader: &mut Reader<'_>, member: Member) -> Option<Elsewhere> {
    let (usage, divergence) = (reader.byte()? == 1, reader.byte()? == 1);
    Some(Elsewhere { member, message: reader.text()?, usage, divergence })
}
