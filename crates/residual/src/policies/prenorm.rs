//! PreNorm: `x' = x + F_l(x)`, the residual stream of GPT-2 and of almost every model since.
//!
//! Every sub-layer adds to one stream, so the stream's norm grows with depth and each later write
//! weighs less. Xiong et al., "On Layer Normalization in the Transformer Architecture",
//! arXiv 2002.04745.

use crate::additive::{Additive, AdditiveSite, additive_cost};
use crate::policy::{About, Cost, PolicyConfig};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of PreNorm: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreNormConfig {}

impl PolicyConfig for PreNormConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "prenorm",
            summary: "every sub-layer adds to one stream; the baseline",
            equation: "x' = x + F_l(x)",
            state: "d",
            parameters: "0",
            paper: "Xiong et al. 2020, arXiv 2002.04745",
        }
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        additive_cost(dimensions)
    }

    fn prenorm_gain(&self, _: Site, _: &Dimensions) -> Option<f64> {
        Some(1.0)
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        Additive::new(dimensions, weights, |_, norm| AdditiveSite::pre(norm))
            .with_final_norm(dimensions, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Recorder, Signal};
    use crate::residual::{Read, Residual};
    use crate::testing::{
        assert_close, dimensions, fresh, growth_by_block, normal, random, watched,
    };

    #[test]
    fn the_head_reads_the_embedding_and_every_write() {
        let dimensions = dimensions(8, 3);
        let policy = random(&PreNormConfig {}, &dimensions);
        let embedding = normal("embedding", [2, 3, 8]);
        let mut seen = Recorder::of(&[Signal::Write]);
        let out = watched(&policy, embedding.clone(), &dimensions, &mut seen);
        assert_eq!(seen.seen.len(), 6);
        let sum =
            seen.seen.into_iter().fold(embedding, |sum, (_, _, write)| sum + write.squeeze_dim(2));
        let gain = normal("norm.weight", [8]) * 0.5 + 1.0;
        assert_close(out, hadal_kernels::rms(sum, 1e-6) * gain.unsqueeze(), 1e-6);
    }

    #[test]
    fn each_sub_layer_reads_through_its_own_norm() {
        let dimensions = dimensions(8, 2);
        let policy = random(&PreNormConfig {}, &dimensions);
        let x = normal("x", [2, 3, 8]);
        for site in dimensions.each_site() {
            let name = format!(
                "layers.{}.{}_norm.weight",
                site.index / 2,
                if site.index % 2 == 0 { "attn" } else { "mlp" }
            );
            let gain = normal(&name, [8]) * 0.5 + 1.0;
            let Read { input, .. } = policy.read(
                site,
                &policy.open(x.clone()),
                &mut crate::traversal::Traversal::default(),
            );
            assert_close(input, hadal_kernels::rms(x.clone(), 1e-6) * gain.unsqueeze(), 1e-6);
        }
    }

    #[test]
    fn the_stream_grows_within_the_bounds_of_xiong() {
        let dimensions = dimensions(40, 12);
        let growth = growth_by_block(&fresh(&PreNormConfig {}, &dimensions), &dimensions);
        for (block, mean_square) in growth.iter().enumerate() {
            let l = (block + 1) as f64;
            let (least, most) = (1.0 + l / 2.0, 1.0 + 1.5 * l);
            assert!((least..=most).contains(mean_square), "{mean_square} after {l} blocks");
        }
        // An independent simulation found 4.96, 10.53 and 15.45; both averages are noisy.
        for (blocks, expected) in [(4, 4.96), (8, 10.53), (12, 15.45)] {
            let found = growth[blocks - 1];
            assert!((found / expected - 1.0).abs() < 0.1, "{found} after {blocks} blocks");
        }
    }
}
