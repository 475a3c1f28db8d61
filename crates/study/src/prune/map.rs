//! Old numbers to new ones.

use super::error::PruneError;
use super::plan::kept;
use hadal_model::Part;

/// Which blocks stay, their new numbers, and which of their sub-layers fall silent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Renumbering {
    blocks: usize,
    kept: Vec<usize>,
    silent: Vec<Part>,
}

/// No model has more blocks, so a file that says so is damaged or made to fill memory. The bound of our own configs.
pub(super) const MOST_BLOCKS: usize = 4096;

impl Renumbering {
    /// Refuses parts that do not exist, and cuts that leave nothing.
    pub(super) fn new(blocks: usize, remove: &[Part]) -> Result<Self, PruneError> {
        if blocks > MOST_BLOCKS {
            return Err(PruneError::TooDeep { blocks, most: MOST_BLOCKS });
        }
        if let Some(&part) = remove.iter().find(|part| part.block() >= blocks) {
            return Err(PruneError::NoSuchPart { part, blocks });
        }
        let remove = Part::of_sites(&Part::all_sites(remove));
        let kept = kept(blocks, &remove);
        if kept.is_empty() {
            return Err(PruneError::NothingLeft { blocks });
        }
        let silent = remove.into_iter().filter(|part| !matches!(part, Part::Block(_))).collect();
        Ok(Self { blocks, kept, silent })
    }

    /// Blocks before.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Original numbers of the blocks that stay.
    pub(super) fn kept(&self) -> &[usize] {
        &self.kept
    }

    /// Sub-layers of those that return nothing, by original numbers.
    pub(super) fn silent(&self) -> &[Part] {
        &self.silent
    }

    /// The new number of a block, if it stays.
    pub(super) fn new_number(&self, block: usize) -> Option<usize> {
        self.kept.binary_search(&block).ok()
    }

    pub(super) fn stays(&self, block: usize) -> bool {
        self.new_number(block).is_some()
    }

    /// How many of the first `count` blocks stay.
    pub(super) fn staying_of_first(&self, count: usize) -> usize {
        self.kept.iter().filter(|&&block| block < count).count()
    }

    /// Whether this is the attention or the MLP of a block, and falls silent.
    pub(super) fn silences(&self, part: Part) -> bool {
        self.silent.contains(&part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_blocks_move_down_by_as_many_as_went_before_them() {
        let map = Renumbering::new(6, &[Part::Block(4), Part::Block(1), Part::Mlp(5)]).unwrap();
        let numbers: Vec<_> = (0..6).map(|block| map.new_number(block)).collect();
        assert_eq!(numbers, [Some(0), None, Some(1), Some(2), None, Some(3)]);
        assert_eq!(map.kept(), [0, 2, 3, 5]);
        assert_eq!(map.silent(), [Part::Mlp(5)]);
        assert_eq!(map.staying_of_first(3), 2);
    }

    #[test]
    fn the_order_in_which_blocks_are_named_does_not_matter() {
        let map = |blocks: &[usize]| {
            let parts: Vec<Part> = blocks.iter().map(|&block| Part::Block(block)).collect();
            Renumbering::new(9, &parts).unwrap()
        };
        assert_eq!(map(&[3, 4, 7]), map(&[7, 3, 4, 3]));
    }

    #[test]
    fn what_is_not_there_and_everything_at_once_are_refused() {
        let error = |parts: &[Part]| Renumbering::new(2, parts).unwrap_err().to_string();
        assert!(
            error(&[Part::Mlp(2)]).contains("mlp:2 is not in this model, whose blocks are 0 to 1")
        );
        let halves = [Part::Block(0), Part::Attention(1), Part::Mlp(1)];
        assert!(error(&halves).contains("all 2 blocks would go"));
        // A file of a few bytes may say any number, and each block would have an entry.
        for blocks in [MOST_BLOCKS + 1, 1 << 32, usize::MAX] {
            let error = Renumbering::new(blocks, &[Part::Block(0)]).unwrap_err().to_string();
            assert!(error.contains(&blocks.to_string()) && error.contains("4096"), "{error}");
        }
        assert!(Renumbering::new(MOST_BLOCKS, &[Part::Block(0)]).is_ok());
    }
}
