//! Where in the depth of a model something happens.

use std::fmt;

/// The two kinds of sub-layer; a block is one of each, attention first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubLayerKind {
    /// Causal self-attention.
    Attention,
    /// The position-wise feed-forward network.
    Mlp,
}

/// One sub-layer of the model, counted from the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Sub-layer index from 0: attention of block i is 2i, its MLP 2i + 1.
    pub index: usize,
}

impl Site {
    /// The site with this sub-layer index.
    pub fn new(index: usize) -> Self {
        Self { index }
    }

    /// Block index from 0.
    pub fn block(self) -> usize {
        self.index / 2
    }

    /// Which half of the block this is.
    pub fn kind(self) -> SubLayerKind {
        if self.index.is_multiple_of(2) { SubLayerKind::Attention } else { SubLayerKind::Mlp }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            SubLayerKind::Attention => "attention",
            SubLayerKind::Mlp => "mlp",
        };
        write!(f, "{kind} of block {}", self.block())
    }
}

/// What a policy must know about the model it serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Dimensions {
    /// Width of the residual stream.
    pub width: usize,
    /// Transformer blocks; each holds two sites.
    pub blocks: usize,
    /// Added to the mean square in every RMS normalisation.
    pub norm_eps: f64,
    /// Blocks that were removed from the model after training, by the numbers they had, in rising order. What
    /// depends on depth keeps its values: [`Dimensions::depth_of`] and [`Dimensions::full_depth`] count them.
    pub removed: Vec<usize>,
}

impl Dimensions {
    /// The dimensions of a model from which no block was removed.
    pub fn new(width: usize, blocks: usize, norm_eps: f64) -> Self {
        Self { width, blocks, norm_eps, removed: Vec::new() }
    }

    /// Blocks of the model before any was removed.
    pub fn full_depth(&self) -> usize {
        self.blocks + self.removed.len()
    }

    /// The number that a block had before any was removed.
    pub fn depth_of(&self, block: usize) -> usize {
        self.removed.iter().fold(block, |depth, &removed| depth + usize::from(removed <= depth))
    }

    /// Number of sub-layers.
    pub fn sites(&self) -> usize {
        2 * self.blocks
    }

    /// Every site from the embedding to the head.
    pub fn each_site(&self) -> impl Iterator<Item = Site> + use<> {
        (0..self.sites()).map(Site::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_remember_the_numbers_they_had() {
        let dimensions = Dimensions { removed: vec![0, 2, 3, 6], ..Dimensions::new(4, 4, 1e-6) };
        assert_eq!(dimensions.full_depth(), 8);
        let depths: Vec<usize> = (0..4).map(|block| dimensions.depth_of(block)).collect();
        assert_eq!(depths, [1, 4, 5, 7]);
    }
}
