//! Who a rank is, for people.

use std::fmt;

/// A process of the job, as messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its rank.
    pub rank: usize,
    /// The machine it runs on.
    pub host: String,
    /// Its process id there.
    pub process: u32,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (process {} on {})", self.rank, self.process, self.host)
    }
}
