//! DeepNorm: `x' = RMSNorm_l(a x + sub_l(x))` with `a = (2M)^(1/4)` for M blocks.
//!
//! PostNorm with a heavier stream and branches that start small, by `b = (8M)^(-1/4)`, so that a
//! thousand layers train. Wang et al., "DeepNet: Scaling Transformers to 1,000 Layers",
//! arXiv 2203.00555 (decoder-only constants).

use crate::additive::{Additive, AdditiveSite, with_scaling};
use crate::policies::postnorm::PostNormConfig;
use crate::policy::{About, BASE_STD, Cost, InitialGate, Matrix, PolicyConfig};
use crate::site::Dimensions;
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of DeepNorm: its constants follow from the depth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeepNormConfig {}

/// Weight of the stream when a write is added to it.
fn carry(blocks: usize) -> f64 {
    (2.0 * blocks as f64).powf(0.25)
}

/// Factor on the initial branches.
fn shrink(blocks: usize) -> f64 {
    (8.0 * blocks as f64).powf(-0.25)
}

impl PolicyConfig for DeepNormConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "deepnorm",
            summary: "postnorm with a heavier stream and branches that start small",
            equation: "x' = RMSNorm_l(a x + sub_l(x)), a = (2 blocks)^(1/4)",
            state: "d",
            parameters: "-d (no final norm)",
            paper: "Wang et al. 2022 (DeepNet), arXiv 2203.00555",
        }
    }

    /// Queries and keys only set where attention looks, so they keep their size.
    fn branch_std(&self, dimensions: &Dimensions, matrix: Matrix) -> f64 {
        match matrix {
            Matrix::Query | Matrix::Key => BASE_STD,
            _ => BASE_STD * shrink(dimensions.full_depth()),
        }
    }

    fn never_prenorm(&self) -> &'static str {
        "it normalises the stream itself after every sub-layer"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        with_scaling(PostNormConfig {}.cost(dimensions), dimensions)
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        vec![InitialGate::alike("skip", 0, dimensions, carry(dimensions.full_depth()))]
    }

    fn depends_on_depth(&self) -> bool {
        true
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        let carry = carry(dimensions.full_depth());
        Additive::new(dimensions, weights, |_, norm| AdditiveSite {
            carry,
            ..AdditiveSite::post(norm)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_those_of_the_paper() {
        for (blocks, a, b) in [
            (6, 1.86121, 0.379918),
            (12, 2.21336, 0.319472),
            (24, 2.63215, 0.268642),
            (36, 2.91295, 0.242746),
        ] {
            assert!((carry(blocks) - a).abs() < 1e-5);
            assert!((shrink(blocks) - b).abs() < 1e-6);
        }
    }

    #[test]
    fn only_queries_and_keys_start_at_full_size() {
        let dimensions = Dimensions::new(8, 12, 1e-6);
        let std = |matrix| DeepNormConfig {}.branch_std(&dimensions, matrix) / BASE_STD;
        assert_eq!(std(Matrix::Query), 1.0);
        assert_eq!(std(Matrix::Key), 1.0);
        for matrix in [Matrix::Value, Matrix::Output, Matrix::Up, Matrix::Down] {
            assert!((std(matrix) - 0.319472).abs() < 1e-6);
        }
    }
}
