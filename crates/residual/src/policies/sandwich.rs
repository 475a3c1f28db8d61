//! Sandwich: `x' = x + RMSNorm'_l(F_l(x))`, a norm before and after every sub-layer.
//!
//! Every write has the size of its gain, whatever the sub-layer returns, so the stream grows with the root of depth
//! at the start and no single write can take it over. Sandwich-LN of CogView (arXiv 2105.13290), Peri-LN (Kim et al.,
//! arXiv 2502.02732); the stream of Gemma 2 and 3 and of GLM-4.

use crate::additive::{Additive, AdditiveSite, additive_cost};
use crate::norm::RmsNorm;
use crate::policy::{About, BASE_STD, Cost, Matrix, PolicyConfig, Released};
use crate::site::Dimensions;
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of Sandwich: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandwichConfig {}

impl PolicyConfig for SandwichConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "sandwich",
            summary: "prenorm whose writes are normalised, too; Gemma 2 and 3, GLM-4",
            equation: "x' = x + RMSNorm'_l(F_l(x))",
            state: "d",
            parameters: "d L",
            paper: "Kim et al. 2025 (Peri-LN), arXiv 2502.02732",
        }
    }

    fn released(&self) -> &'static [Released] {
        const { &[Released { name: "gemma3", models: "Gemma 2 and 3, GLM-4", settings: "" }] }
    }

    /// A write has the size of its gain, so a depth-scaled start would change nothing.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn never_prenorm(&self) -> &'static str {
        "it normalises what sub-layers write, and takes away what their sizes say"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let base = additive_cost(dimensions);
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        Cost { flops: base.flops + sites * Cost::norm(d), saved: base.saved + sites * d, ..base }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        let write_norms: Vec<RmsNorm> = dimensions
            .each_site()
            .map(|site| {
                let name = format!("residual.{}.post_norm", site.index);
                RmsNorm::new(name, dimensions.width, dimensions.norm_eps, weights)
            })
            .collect();
        let mut write_norms = write_norms.into_iter();
        let site = |_, norm| AdditiveSite { write: write_norms.next(), ..AdditiveSite::pre(norm) };
        Additive::new(dimensions, weights, site).with_final_norm(dimensions, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::prenorm::PreNormConfig;
    use crate::residual::Residual;
    use crate::site::Site;
    use crate::testing::{
        assert_close, assert_gradients, assert_near, chosen, dimensions, fresh, normal, random,
        traverse, values,
    };
    use crate::traversal::Traversal;

    #[test]
    fn every_write_has_the_size_of_its_gain_whatever_the_sub_layer_returns() {
        let policy = fresh(&SandwichConfig {}, &dimensions(8, 2));
        let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
        for size in [0.1, 1.0, 100.0] {
            let site = Site::new(3);
            let y = y.clone() * size;
            let after = policy.write(site, x.clone(), (), y, &mut Traversal::default());
            let write = after - x.clone();
            assert_near(&values(write.square().mean_dim(2)), &[1.0; 6], 1e-3);
        }
    }

    #[test]
    fn without_gains_the_head_reads_the_embedding_alone() {
        let dimensions = dimensions(8, 3);
        let policy = chosen(&SandwichConfig {}, &dimensions, |name, shape| {
            name.ends_with("post_norm").then(|| vec![0.0; shape[0]])
        });
        let embedding = normal("embedding", [2, 3, 8]);
        let out = traverse(&policy, embedding.clone(), &dimensions);
        assert_close(out, hadal_kernels::rms(embedding, 1e-6), 1e-6);
    }

    #[test]
    fn sub_layers_read_through_prenorms_norms() {
        let dimensions = dimensions(8, 2);
        let (sandwich, prenorm) =
            (random(&SandwichConfig {}, &dimensions), random(&PreNormConfig {}, &dimensions));
        let x = normal("x", [1, 2, 8]);
        for site in dimensions.each_site() {
            let read =
                |policy: &Additive| values(policy.read(site, &x, &mut Traversal::default()).input);
            assert_eq!(read(&sandwich), read(&prenorm));
        }
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        assert_gradients(&SandwichConfig {}, &dimensions(4, 2));
    }
}
