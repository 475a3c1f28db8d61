//! How an additive stream grows at initialisation, as a yardstick.
//!
//! Xiong et al. (arXiv 2002.04745): with an embedding and sub-layers of unit size, a PreNorm block adds between
//! `d/2` and `3d/2` to the squared norm, so `(1 + l/2) d <= E |x_l|^2 <= (1 + 3l/2) d` after l blocks. LayerNorm
//! Scaling divides what block l adds by l, so l becomes the harmonic number `H_l`.

use hadal_residual::{Dimensions, ResidualConfig};

/// Least and most that the blocks so far add to a squared norm that began as one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bounds {
    /// By number of blocks passed, from 0.
    growth: Vec<(f64, f64)>,
    /// The policy that the bounds belong to.
    pub(crate) of: &'static str,
}

impl Bounds {
    /// The bounds of the policy, if it has its own, or else of PreNorm.
    pub(crate) fn new(residual: &ResidualConfig, dimensions: &Dimensions) -> Self {
        let mut depth = 0.0;
        let mut growth = vec![(1.0, 1.0)];
        for block in 0..dimensions.blocks {
            depth += residual.growth(block, dimensions).share;
            growth.push((1.0 + depth / 2.0, 1.0 + 1.5 * depth));
        }
        Self { growth, of: residual.growth(0, dimensions).of }
    }

    /// Bounds on `E |x_l|^2 / E |x_0|^2` after l = 0, 1, .. blocks.
    pub(crate) fn growth(&self) -> &[(f64, f64)] {
        &self.growth
    }

    /// Bounds on `|x_(l+1) - x_l| / |x_l|` for block l = 0, 1, ..: the least addition to the longest stream, and the
    /// largest to the shortest.
    pub(crate) fn writes(&self) -> Vec<(f64, f64)> {
        let pair = |pair: &[(f64, f64)]| {
            let ((low, high), (next_low, next_high)) = (pair[0], pair[1]);
            (((next_low - low) / high).sqrt(), ((next_high - high) / low).sqrt())
        };
        self.growth.windows(2).map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_those_of_the_papers() {
        let prenorm = Bounds::new(&ResidualConfig::default(), &Dimensions::new(4, 12, 1e-6));
        assert_eq!(prenorm.growth()[4], (3.0, 7.0));
        assert_eq!(prenorm.growth()[12], (7.0, 19.0));
        let lns = Bounds::new(&"lns".parse().unwrap(), &Dimensions::new(4, 12, 1e-6));
        let (low, high) = lns.growth()[12];
        assert!((low - 2.55).abs() < 0.01 && (high - 5.65).abs() < 0.01, "{low} {high}");
    }

    #[test]
    fn a_block_that_adds_what_it_may_lies_within_the_bounds_of_writes() {
        let bounds = Bounds::new(&ResidualConfig::default(), &Dimensions::new(4, 8, 1e-6));
        for (block, (low, high)) in bounds.writes().into_iter().enumerate() {
            let typical = (1.0 / (1.0 + block as f64)).sqrt();
            assert!(low < typical && typical < high, "block {block}: {low} {typical} {high}");
        }
    }
}
