//! PostNorm: `x' = RMSNorm_l(x + sub_l(x))`, the original Transformer.
//!
//! The stream has unit scale at every depth and needs no final norm, but the gradient must pass a
//! norm at every sub-layer. Vaswani et al., "Attention Is All You Need", arXiv 1706.03762.

use crate::additive::{Additive, AdditiveSite};
use crate::policy::{About, BASE_STD, Cost, Matrix, PolicyConfig};
use crate::site::Dimensions;
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of PostNorm: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostNormConfig {}

impl PolicyConfig for PostNormConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "postnorm",
            summary: "the sum is normalised after every sub-layer; the original Transformer",
            equation: "x' = RMSNorm_l(x + sub_l(x))",
            state: "d",
            parameters: "-d (no final norm)",
            paper: "Vaswani et al. 2017, arXiv 1706.03762",
        }
    }

    /// Every sum is normalised, so nothing accumulates that a depth-scaled start would hold back.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn never_prenorm(&self) -> &'static str {
        "it normalises the stream itself after every sub-layer"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        Cost { flops: sites * (Cost::norm(d) + d), state: d }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        Additive::new(dimensions, weights, |_, norm| AdditiveSite::post(norm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Recorder, Signal};
    use crate::residual::{Read, Residual};
    use crate::site::Site;
    use crate::testing::{
        assert_close, assert_near, dimensions, fresh, normal, random, values, watched,
    };
    use crate::traversal::Traversal;

    #[test]
    fn the_stream_has_unit_mean_square_after_every_sub_layer() {
        let dimensions = dimensions(8, 4);
        let policy = fresh(&PostNormConfig {}, &dimensions);
        let embedding = normal("embedding", [2, 3, 8]) * 5.0;
        let mut seen = Recorder::of(&[Signal::Reading]);
        watched(&policy, embedding, &dimensions, &mut seen);
        // The first reading is the raw embedding; the last is the head's.
        assert_eq!(seen.seen.len(), 9);
        for (_, _, stream) in seen.seen.into_iter().skip(1) {
            assert_near(&values(stream.square().mean_dim(3)), &[1.0; 6], 1e-5);
        }
    }

    #[test]
    fn the_sum_is_normalised_and_the_reading_is_not() {
        let dimensions = dimensions(8, 2);
        let policy = random(&PostNormConfig {}, &dimensions);
        let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
        let site = Site::new(3);
        let Read { input, .. } =
            policy.read(site, &policy.open(x.clone()), &mut Traversal::default());
        assert_eq!(values(input), values(x.clone()));
        let (state, traversal) = (policy.open(x.clone()), &mut Traversal::default());
        let after = policy.write(site, state, x.clone(), y.clone(), traversal).x;
        let gain = normal("layers.1.mlp_norm.weight", [8]) * 0.5 + 1.0;
        assert_close(after, hadal_kernels::rms(x + y, 1e-6) * gain.unsqueeze(), 1e-6);
    }

    #[test]
    fn the_head_reads_the_stream_as_it_is() {
        let policy = random(&PostNormConfig {}, &dimensions(8, 1));
        let x = normal("x", [1, 2, 8]) * 3.0;
        assert_eq!(
            values(policy.close(policy.open(x.clone()), &mut Traversal::default())),
            values(x)
        );
    }
}
