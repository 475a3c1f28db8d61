//! What one exchange has got so far.

use crate::RankError;
use std::sync::mpsc::Sender;

/// What whoever finishes an exchange is given.
pub(super) type Arrived = Result<Vec<Vec<u8>>, RankError>;

/// The parts of one exchange, by sender.
#[derive(Debug)]
pub(super) struct Parts {
    parts: Vec<Part>,
    /// Who waits for them.
    pub(super) waiting: Option<Sender<Arrived>>,
}

#[derive(Debug, Clone)]
enum Part {
    Missing,
    /// So many bytes are still to come.
    Coming(Vec<u8>, usize),
    Whole(Vec<u8>),
}

impl Parts {
    pub(super) fn of(ranks: usize) -> Self {
        Self { parts: vec![Part::Missing; ranks], waiting: None }
    }

    /// A part has come at once.
    pub(super) fn put(&mut self, from: usize, part: Vec<u8>) {
        self.parts[from] = Part::Whole(part);
    }

    /// A part of this length will come in several pieces.
    pub(super) fn expect(&mut self, from: usize, length: usize) {
        self.parts[from] = Part::Coming(vec![0; length], length);
    }

    /// One of its pieces is here.
    pub(super) fn put_piece(&mut self, from: usize, start: usize, piece: &[u8]) {
        if let Part::Coming(bytes, left) = &mut self.parts[from] {
            bytes[start..start + piece.len()].copy_from_slice(piece);
            *left -= piece.len();
            if *left == 0 {
                self.parts[from] = Part::Whole(std::mem::take(bytes));
            }
        }
    }

    /// Whose part is not here.
    pub(super) fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        let is_missing = |part: &Part| !matches!(part, Part::Whole(_));
        self.parts
            .iter()
            .enumerate()
            .filter(move |(_, part)| is_missing(part))
            .map(|(from, _)| from)
    }

    /// All parts, in the order of ranks, once none is missing.
    pub(super) fn take(self) -> Vec<Vec<u8>> {
        let whole = |part| match part {
            Part::Whole(bytes) | Part::Coming(bytes, _) => bytes,
            Part::Missing => Vec::new(),
        };
        self.parts.into_iter().map(whole).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_a_part_in_any_order() {
        let mut parts = Parts::of(3);
        parts.put(1, vec![5]);
        parts.expect(0, 5);
        parts.put_piece(0, 4, &[9]);
        assert_eq!(parts.missing().collect::<Vec<_>>(), [0, 2]);
        parts.put_piece(0, 0, &[1, 2, 3, 4]);
        parts.put(2, Vec::new());
        assert_eq!(parts.missing().count(), 0);
        assert_eq!(parts.take(), [vec![1, 2, 3, 4, 9], vec![5], vec![]]);
    }
}
