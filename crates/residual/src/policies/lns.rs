//! LayerNorm Scaling: `x' = x + sub_l(RMSNorm_l(x) / sqrt(block))`, blocks counted from 1.
//!
//! Shrinking what deep blocks read slows the growth of the stream from exponential to polynomial
//! and keeps deep blocks useful. Sun et al., "The Curse of Depth in Large Language Models",
//! arXiv 2502.05795.

use crate::additive::{Additive, AdditiveSite, additive_cost, with_scaling};
use crate::policy::{About, BASE_STD, Cost, Growth, InitialGate, Matrix, PolicyConfig};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of LayerNorm Scaling: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNormScalingConfig {}

/// What the reader of a site multiplies its normalised input by.
fn scale(site: Site, dimensions: &Dimensions) -> f64 {
    1.0 / ((dimensions.depth_of(site.block()) + 1) as f64).sqrt()
}

impl PolicyConfig for LayerNormScalingConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "lns",
            summary: "prenorm whose normalised input shrinks with depth",
            equation: "x' = x + sub_l(RMSNorm_l(x) / sqrt(block))",
            state: "d",
            parameters: "0",
            paper: "Sun et al. 2025 (LayerNorm Scaling), arXiv 2502.05795",
        }
    }

    /// Plain for all matrices: the authors found that depth-scaled outputs weaken the method.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        with_scaling(additive_cost(dimensions), dimensions)
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        vec![InitialGate::by_depth("scale", dimensions, |l| scale(Site::new(l), dimensions))]
    }

    fn depends_on_depth(&self) -> bool {
        true
    }

    fn prenorm_gain(&self, site: Site, dimensions: &Dimensions) -> Option<f64> {
        Some(scale(site, dimensions))
    }

    /// Block l adds 1/l of what a PreNorm block adds, so the stream grows with the harmonic numbers.
    fn growth(&self, block: usize, dimensions: &Dimensions) -> Growth {
        Growth { of: "LNS", share: 1.0 / (dimensions.depth_of(block) + 1) as f64 }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        let scaled =
            |site, norm| AdditiveSite { scale: scale(site, dimensions), ..AdditiveSite::pre(norm) };
        Additive::new(dimensions, weights, scaled).with_final_norm(dimensions, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::prenorm::PreNormConfig;
    use crate::probe::{Place, Recorder, Signal};
    use crate::residual::{Read, Residual};
    use crate::testing::{
        assert_close, assert_near, chosen, dimensions, fresh, growth_by_block, normal, random,
        traverse, values, watched,
    };
    use crate::traversal::Traversal;

    #[test]
    fn the_first_block_is_prenorms_bit_for_bit() {
        let dimensions = dimensions(8, 2);
        let embedding = normal("embedding", [2, 3, 8]);
        let (mut scaled, mut plain) =
            (Recorder::of(&[Signal::Reading]), Recorder::of(&[Signal::Reading]));
        let lns = random(&LayerNormScalingConfig {}, &dimensions);
        let prenorm = random(&PreNormConfig::default(), &dimensions);
        watched(&lns, embedding.clone(), &dimensions, &mut scaled);
        watched(&prenorm, embedding, &dimensions, &mut plain);
        let reading = |seen: &Recorder, site: usize| {
            values(seen.get(Place::Site(Site::new(site)), Signal::Reading).unwrap())
        };
        for site in 0..3 {
            assert_eq!(reading(&scaled, site), reading(&plain, site));
        }
        assert_ne!(reading(&scaled, 3), reading(&plain, 3));
    }

    #[test]
    fn it_is_prenorm_with_the_scale_folded_into_the_gains() {
        let dimensions = dimensions(8, 4);
        let embedding = normal("embedding", [2, 3, 8]);
        let lns = random(&LayerNormScalingConfig {}, &dimensions);
        let folded = chosen(&PreNormConfig::default(), &dimensions, |name, _| {
            let gain = normal(name, [8]) * 0.5 + 1.0;
            // Names are `layers.{block}.…` for the sub-layers' norms, which alone are scaled.
            let block = name.split('.').nth(1).and_then(|block| block.parse::<f64>().ok());
            Some(values(gain * block.map_or(1.0, |block| 1.0 / (block + 1.0).sqrt())))
        });
        let expected = traverse(&folded, embedding.clone(), &dimensions);
        assert_close(traverse(&lns, embedding, &dimensions), expected, 1e-5);
    }

    #[test]
    fn both_sub_layers_of_a_block_read_at_one_over_its_root() {
        let dimensions = dimensions(8, 5);
        let policy = fresh(&LayerNormScalingConfig {}, &dimensions);
        let x = normal("x", [1, 2, 8]) * 3.0;
        for site in dimensions.each_site() {
            let Read { input, .. } =
                policy.read(site, &policy.open(x.clone()), &mut Traversal::default());
            let expected = 1.0 / (site.index / 2 + 1) as f32;
            assert_near(&values(input.square().mean_dim(2)), &[expected; 2], 1e-5);
        }
    }

    #[test]
    fn the_stream_grows_with_the_harmonic_numbers() {
        let dimensions = dimensions(40, 12);
        let policy = fresh(&LayerNormScalingConfig {}, &dimensions);
        let growth = growth_by_block(&policy, &dimensions);
        let mut harmonic = 0.0;
        for (block, mean_square) in growth.iter().enumerate() {
            harmonic += 1.0 / (block + 1) as f64;
            let (least, most) = (1.0 + harmonic / 2.0, 1.0 + 1.5 * harmonic);
            assert!((least..=most).contains(mean_square), "{mean_square} after block {block}");
        }
        // An independent simulation found 4.10; both averages are noisy.
        assert!((growth[11] / 4.10 - 1.0).abs() < 0.1, "{} after twelve blocks", growth[11]);
    }

    #[test]
    fn the_stream_grows_less_than_prenorms() {
        let dimensions = dimensions(40, 12);
        let lns = growth_by_block(&fresh(&LayerNormScalingConfig {}, &dimensions), &dimensions);
        let prenorm = growth_by_block(&fresh(&PreNormConfig::default(), &dimensions), &dimensions);
        assert_eq!(lns[0], prenorm[0]);
        for block in 1..12 {
            assert!(lns[block] < prenorm[block], "block {block}");
        }
    }
}
