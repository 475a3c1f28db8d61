//! A job of one process.

use crate::{Exchange, RankError, Ranks};

/// The only rank of a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn exchange(&self, parts: Vec<Vec<u8>>) -> Result<Box<dyn Exchange>, RankError> {
        assert_eq!(parts.len(), 1, "one part for each rank");
        Ok(Box::new(Arrived(parts)))
    }
}

/// Parts that had no way to go.
#[derive(Debug)]
struct Arrived(Vec<Vec<u8>>);

impl Exchange for Arrived {
    fn progress(&mut self) -> Result<(), RankError> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<Vec<u8>>, RankError> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_keeps_the_laws() {
        crate::testing::laws(&Alone);
    }
}
