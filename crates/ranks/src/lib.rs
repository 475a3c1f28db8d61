//! The processes of one job.
//!
//! Every rank runs the same program on its own part of the data. They meet in exchanges: each gives every other one a
//! part, and gets one from each. Nothing is added up here, so the order of every sum stays with whoever computes it.
//!
//! ```
//! use hadal_ranks::{Ranks, Threads};
//!
//! let sums = Threads::run(3, |ranks| -> Result<u8, hadal_ranks::RankError> {
//!     let everybody = ranks.gather(&[ranks.rank() as u8])?;
//!     Ok(everybody.iter().map(|bytes| bytes[0]).sum())
//! });
//! assert!(sums.into_iter().all(|sum| sum.unwrap() == 3));
//! ```

mod alone;
mod error;
mod job;
mod launch;
mod member;
#[cfg(feature = "mpi")]
mod mpi;
pub mod testing;
mod threads;

pub use alone::Alone;
pub use error::RankError;
pub use job::{depart, farewell, job};
pub use launch::{Launch, launch};
pub use member::Member;
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, Settings};
pub use threads::{Fault, Threads};

use std::fmt::Debug;

/// The processes of one job, as one of them sees it.
///
/// All ranks make the same calls in the same order. Several exchanges may be under way; they may be finished in any order.
pub trait Ranks: Debug + Send + Sync {
    /// Which of them this is: 0, 1, ...
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// Sends `parts[r]` to rank `r`, and returns at once. Parts may have any lengths.
    ///
    /// # Panics
    ///
    /// If there is not one part for each rank.
    fn exchange(&self, parts: Vec<Vec<u8>>) -> Result<Box<dyn Exchange>, RankError>;

    /// What every rank has, in the order of ranks.
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RankError> {
        self.exchange(vec![mine.to_vec(); self.size()])?.finish()
    }
}

/// Parts under way between all ranks. It has to be finished, unless the job ends.
pub trait Exchange: Debug + Send {
    /// Lets parts travel on while this rank computes: a few microseconds.
    fn progress(&mut self) -> Result<(), RankError>;

    /// Waits until all parts have arrived: what each rank has sent here, in the order of ranks.
    fn finish(self: Box<Self>) -> Result<Vec<Vec<u8>>, RankError>;
}
