//! The fused form of policies that average the outputs of blocks: DenseFormer and MUDDFormer.

use crate::fused::{Junction, join_any};
use crate::probe::Place;
use crate::site::Site;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Dense, DenseJunction, DenseSettings, Stream};
use std::ops::Range;

/// What a policy gives to its fused form.
pub(crate) trait Averages {
    /// What all junctions have in common.
    fn settings(&self) -> DenseSettings;

    /// How many blocks there are.
    fn blocks(&self) -> usize;

    /// Averages behind a block, counted from 0.
    fn ways(&self, block: usize) -> usize;

    /// The parameters of a block's end in the order of [`Dense`], or those of the embedding as a source.
    fn of_end(&self, block: Option<usize>) -> Vec<Tensor<1>>;

    /// The gains of a reader's norms: three for an attention with inputs of its own.
    fn gains(&self, reader: Place, apart: bool) -> Vec<Tensor<1>>;

    /// The fused form. None for traversals that pass a whole block by: its averages follow on those of the block before
    /// without a sub-layer in between, and so they do in front of the first sub-layer.
    fn averaging(&self, junctions: &[Junction], keep: bool) -> Option<Box<dyn Stream>> {
        let passes_by = |junction: &Junction| {
            let ends = ends(junction, self.blocks());
            ends.len() > 1 || (junction.from.is_none() && !ends.is_empty())
        };
        if junctions.iter().any(passes_by) {
            return None;
        }
        let steps = junctions.iter().map(|junction| self.step(junction)).collect();
        Some(Box::new(Dense::new(self.settings(), steps, keep)))
    }

    /// What is special about a junction.
    fn step(&self, junction: &Junction) -> DenseJunction {
        let ends = ends(junction, self.blocks());
        let (block, ways) = (ends.clone().next(), ends.map(|block| self.ways(block)).sum());
        let apart = ways > 1
            && block.is_some_and(|block| junction.to == Place::Site(Site::new(2 * block + 2)));
        DenseJunction { ways, apart }
    }

    /// The parameters of every junction.
    fn of_junctions(&self, junctions: &[Junction]) -> Vec<Tensor<1>> {
        let of = |junction: &Junction| {
            let block = ends(junction, self.blocks()).next();
            let opens = junction.from.is_none() || block.is_some();
            let mut own = if opens { self.of_end(block) } else { Vec::new() };
            own.extend(self.gains(junction.to, self.step(junction).apart));
            // Every reader has a norm.
            let device = own[0].device();
            join_any(own, &device)
        };
        junctions.iter().map(of).collect()
    }
}

/// The blocks that end between a write and the next read, whether their MLPs are there or not.
fn ends(junction: &Junction, blocks: usize) -> Range<usize> {
    let first = junction.from.map_or(0, Site::block);
    let last = match junction.to {
        Place::Site(site) => site.block(),
        Place::Out => blocks,
    };
    first..last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_ends_behind_its_last_sub_layer_that_is_there() {
        let ends = |from: Option<usize>, to: Option<usize>| {
            let to = to.map_or(Place::Out, |to| Place::Site(Site::new(to)));
            ends(&Junction { from: from.map(Site::new), to }, 3)
        };
        assert_eq!(ends(None, Some(0)), 0..0);
        assert_eq!(ends(Some(0), Some(1)), 0..0);
        assert_eq!(ends(Some(1), Some(2)), 0..1);
        // Without the MLP, and without a whole block.
        assert_eq!(ends(Some(0), Some(2)), 0..1);
        assert_eq!(ends(Some(1), Some(4)), 0..2);
        assert_eq!(ends(None, Some(3)), 0..1);
        assert_eq!(ends(Some(5), None), 2..3);
        assert_eq!(ends(None, None), 0..3);
    }
}
