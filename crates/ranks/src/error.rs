//! What goes wrong between ranks.

use crate::Member;

/// What goes wrong between ranks.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// A rank does not take part any more.
    #[error("{member} is lost: {how}")]
    Lost {
        /// Who.
        member: Member,
        /// How it is known.
        how: String,
    },
}
