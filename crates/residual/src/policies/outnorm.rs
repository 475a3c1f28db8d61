//! Output norms: `x' = x + RMSNorm_l(sub_l(x))`, the stream of OLMo 2 and 3 and of EXAONE 4.
//!
//! The norm of PreNorm moves behind the sub-layer, which reads the stream as it is. Every write has the size of its gain,
//! whatever the sub-layer returns; what a sub-layer is given grows with depth. OLMo team, "2 OLMo 2 Furious", arXiv
//! 2501.00656. OLMo's norm of queries and keys over all heads belongs to its attention, not to the stream.

use crate::additive::{Additive, AdditiveSite, additive_cost};
use crate::policy::{About, BASE_STD, Cost, Matrix, PolicyConfig, Released};
use crate::site::Dimensions;
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of output norms: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutNormConfig {}

impl PolicyConfig for OutNormConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "outnorm",
            summary: "sub-layers read the stream as it is, and their writes are normalised; OLMo 2 and 3, EXAONE 4",
            equation: "x' = x + RMSNorm_l(sub_l(x))",
            state: "d",
            parameters: "0",
            paper: "OLMo team 2025 (OLMo 2), arXiv 2501.00656",
        }
    }

    fn released(&self) -> &'static [Released] {
        const { &[Released { name: "olmo2", models: "OLMo 2 and 3, EXAONE 4", settings: "" }] }
    }

    /// A write has the size of its gain, so a depth-scaled start would change nothing.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn never_prenorm(&self) -> &'static str {
        "it normalises what is written and not what is read"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        additive_cost(dimensions)
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        Additive::new(dimensions, weights, |_, norm| AdditiveSite::output(norm))
            .with_final_norm(dimensions, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residual::{Read, Residual};
    use crate::site::Site;
    use crate::testing::{
        assert_close, assert_gradients, assert_near, chosen, dimensions, fresh, normal, random,
        traverse, values,
    };
    use crate::traversal::Traversal;

    #[test]
    fn sub_layers_read_the_stream_as_it_is() {
        let dimensions = dimensions(8, 2);
        let policy = random(&OutNormConfig {}, &dimensions);
        let x = normal("x", [1, 2, 8]) * 3.0;
        for site in dimensions.each_site() {
            let state = policy.open(x.clone());
            let Read { input, .. } = policy.read(site, &state, &mut Traversal::default());
            assert_eq!(values(input), values(x.clone()));
        }
    }

    #[test]
    fn every_write_has_mean_square_one_whatever_the_sub_layer_returns() {
        let policy = fresh(&OutNormConfig {}, &dimensions(8, 2));
        let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
        for size in [0.1, 1.0, 100.0] {
            let (state, traversal) = (policy.open(x.clone()), &mut Traversal::default());
            let y = y.clone() * size;
            let after = policy.write(Site::new(3), state, x.clone(), y, traversal);
            let write = after.x - x.clone();
            assert_near(&values(write.square().mean_dim(2)), &[1.0; 6], 1e-3);
        }
    }

    #[test]
    fn the_norm_behind_a_sub_layer_is_the_one_that_prenorm_has_before_it() {
        let policy = random(&OutNormConfig {}, &dimensions(8, 2));
        let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
        let (state, traversal) = (policy.open(x.clone()), &mut Traversal::default());
        let after = policy.write(Site::new(2), state, x.clone(), y.clone(), traversal);
        let gain = normal("layers.1.attn_norm.weight", [8]) * 0.5 + 1.0;
        assert_close(after.x, x + hadal_kernels::rms(y, 1e-6) * gain.unsqueeze(), 1e-6);
    }

    #[test]
    fn without_gains_the_head_reads_the_embedding_alone() {
        let dimensions = dimensions(8, 3);
        let policy = chosen(&OutNormConfig {}, &dimensions, |name, shape| {
            name.starts_with("layers.").then(|| vec![0.0; shape[0]])
        });
        let embedding = normal("embedding", [2, 3, 8]);
        let out = traverse(&policy, embedding.clone(), &dimensions);
        assert_close(out, hadal_kernels::rms(embedding, 1e-6), 1e-6);
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        assert_gradients(&OutNormConfig {}, &dimensions(4, 2));
    }
}
