//! Means of what every rank has, and values that their owners send to all.

use super::division::Division;
use super::exchange::Team;
use super::sums::Sums;
use crate::error::TrainError;
use crate::gradient::Gradients;
use crate::plan::Wire;

/// The mean over all ranks, of what this rank owns. It is added up as a tree over the ranks.
pub(crate) fn mean(
    team: &mut Team,
    division: &Division,
    own: Gradients,
    wire: Wire,
) -> Result<Gradients, TrainError> {
    let mut sums = Sums::new(team, division, team.size(), wire);
    sums.add(team, division, team.rank(), own)?;
    sums.finish(team, division)
}
