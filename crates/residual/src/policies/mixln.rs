//! Mix-LN: the first `floor(p M)` blocks are PostNorm, the rest PreNorm.
//!
//! PostNorm keeps gradients healthy in deep layers, PreNorm in shallow ones; Mix-LN puts each where
//! it is strong. Li et al., "Mix-LN", arXiv 2412.13795.

use crate::additive::{Additive, AdditiveSite, additive_cost};
use crate::policy::{About, Cost, InvalidPolicy, PolicyConfig};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of Mix-LN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MixLnConfig {
    /// Share of the blocks, from the embedding on, that are PostNorm.
    pub post_fraction: f64,
}

impl Default for MixLnConfig {
    fn default() -> Self {
        Self { post_fraction: 0.25 }
    }
}

impl MixLnConfig {
    fn is_post(&self, block: usize, dimensions: &Dimensions) -> bool {
        let post_blocks = (self.post_fraction * dimensions.full_depth() as f64).floor() as usize;
        dimensions.depth_of(block) < post_blocks
    }
}

impl PolicyConfig for MixLnConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "mixln",
            summary: "the first blocks postnorm, the rest prenorm",
            equation: "x' = RMSNorm_l(x + sub_l(x)) in the first floor(post_fraction blocks), then x' = x + F_l(x)",
            state: "d",
            parameters: "0",
            paper: "Li et al. 2024 (Mix-LN), arXiv 2412.13795",
        }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        if (0.0..=1.0).contains(&self.post_fraction) {
            return Ok(());
        }
        Err(self.refuse(format!(
            "post_fraction is {}, but a share of the blocks lies between 0 and 1",
            self.post_fraction
        )))
    }

    fn never_prenorm(&self) -> &'static str {
        "its first blocks normalise the stream itself"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        additive_cost(dimensions)
    }

    fn depends_on_depth(&self) -> bool {
        true
    }

    fn unlike(&self, a: usize, b: usize, dimensions: &Dimensions) -> Option<&'static str> {
        (self.is_post(a, dimensions) != self.is_post(b, dimensions))
            .then_some("one has its norms before the sub-layers and the other behind the sum")
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        let site = |site: Site, norm| {
            if self.is_post(site.block(), dimensions) {
                AdditiveSite::post(norm)
            } else {
                AdditiveSite::pre(norm)
            }
        };
        Additive::new(dimensions, weights, site).with_final_norm(dimensions, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::postnorm::PostNormConfig;
    use crate::policies::prenorm::PreNormConfig;
    use crate::residual::Residual;
    use crate::testing::{assert_close, assert_near, dimensions, normal, random, traverse, values};
    use crate::traversal::Traversal;

    fn share(post_fraction: f64) -> MixLnConfig {
        MixLnConfig { post_fraction }
    }

    /// The sites that hand their stream to the sub-layer as it is.
    fn post_sites(post_fraction: f64, blocks: usize) -> Vec<usize> {
        let dimensions = dimensions(4, blocks);
        let policy = random(&share(post_fraction), &dimensions);
        let x = normal("x", [1, 1, 4]);
        let raw = |site: &Site| {
            let state = policy.open(x.clone());
            values(policy.read(*site, &state, &mut Traversal::default()).input) == values(x.clone())
        };
        dimensions.each_site().filter(raw).map(|site| site.index).collect()
    }

    #[test]
    fn without_post_blocks_it_is_prenorm() {
        let dimensions = dimensions(8, 3);
        let embedding = normal("embedding", [2, 3, 8]);
        let mixed = traverse(&random(&share(0.0), &dimensions), embedding.clone(), &dimensions);
        let plain =
            traverse(&random(&PreNormConfig::default(), &dimensions), embedding, &dimensions);
        assert_eq!(values(mixed), values(plain));
    }

    #[test]
    fn with_only_post_blocks_it_is_postnorm_behind_the_final_norm() {
        let dimensions = dimensions(8, 3);
        let embedding = normal("embedding", [2, 3, 8]);
        let policy = random(&share(1.0), &dimensions);
        let mixed = traverse(&policy, embedding.clone(), &dimensions);
        let post = traverse(&random(&PostNormConfig {}, &dimensions), embedding, &dimensions);
        let gain = normal("norm.weight", [8]) * 0.5 + 1.0;
        assert_close(mixed, hadal_kernels::rms(post, 1e-6) * gain.unsqueeze(), 1e-6);
    }

    #[test]
    fn the_share_of_post_blocks_is_rounded_down() {
        assert_eq!(post_sites(0.25, 3), [0; 0]);
        assert_eq!(post_sites(0.25, 4), [0, 1]);
        assert_eq!(post_sites(0.25, 7), [0, 1]);
        assert_eq!(post_sites(0.5, 5), [0, 1, 2, 3]);
        assert_eq!(post_sites(1.0, 2), [0, 1, 2, 3]);
    }

    #[test]
    fn post_sites_normalise_the_sum_and_the_others_do_not() {
        let policy = random(&share(0.5), &dimensions(8, 2));
        let (x, y) = (normal("x", [1, 2, 8]), normal("y", [1, 2, 8]));
        let write = |site| {
            let (state, traversal) = (policy.open(x.clone()), &mut Traversal::default());
            values(policy.write(Site::new(site), state, x.clone(), y.clone(), traversal).x)
        };
        let sum = x.clone() + y.clone();
        let gain = normal("layers.0.mlp_norm.weight", [8]) * 0.5 + 1.0;
        let normed = hadal_kernels::rms(sum.clone(), 1e-6) * gain.unsqueeze();
        assert_near(&write(1), &values(normed), 1e-6);
        assert_eq!(write(2), values(sum));
    }

    #[test]
    fn a_share_outside_zero_to_one_is_refused() {
        for bad in [-0.1, 1.1, f64::NAN] {
            let refusal = share(bad).check(&dimensions(8, 2)).unwrap_err().to_string();
            assert!(refusal.contains("between 0 and 1"), "{refusal}");
        }
    }
}
