//! PreNorm: `x' = x + F_l(x)`, the residual stream of GPT-2 and of almost every model since.
//!
//! Every sub-layer adds to one stream, so the stream's norm grows with depth and each later write
//! weighs less. Xiong et al., "On Layer Normalization in the Transformer Architecture",
//! arXiv 2002.04745.
//!
//! With a multiplier m, `x' = x + m F_l(x)`: Granite's `residual_multiplier`, a constant that each of its models chooses.

use crate::additive::{Additive, AdditiveSite, additive_cost, with_scaling};
use crate::policy::{
    About, Cost, Growth, InitialGate, InvalidPolicy, PolicyConfig, check_positive,
};
use crate::site::{Dimensions, Site};
use crate::unset::is_one;
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of PreNorm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PreNormConfig {
    /// What every write is multiplied by.
    #[serde(skip_serializing_if = "is_one")]
    pub multiplier: f64,
}

impl Default for PreNormConfig {
    fn default() -> Self {
        Self { multiplier: 1.0 }
    }
}

impl PolicyConfig for PreNormConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "prenorm",
            summary: "every sub-layer adds to one stream; the baseline",
            equation: "x' = x + multiplier F_l(x), multiplier 1 unless set (Granite)",
            state: "d",
            parameters: "0",
            paper: "Xiong et al. 2020, arXiv 2002.04745",
        }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        check_positive(self, "multiplier", self.multiplier)
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let base = additive_cost(dimensions);
        if self.multiplier == 1.0 { base } else { with_scaling(base, dimensions) }
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let write = || InitialGate::alike("write", 0, dimensions, self.multiplier);
        (self.multiplier != 1.0).then(write).into_iter().collect()
    }

    fn prenorm_gain(&self, _: Site, _: &Dimensions) -> Option<f64> {
        Some(1.0)
    }

    fn prenorm_output(&self, _: Site, _: &Dimensions) -> f64 {
        self.multiplier
    }

    fn growth(&self, _: usize, _: &Dimensions) -> Growth {
        Growth { of: "PreNorm", share: self.multiplier * self.multiplier }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        let site = |_, norm| AdditiveSite { factor: self.multiplier, ..AdditiveSite::pre(norm) };
        Additive::new(dimensions, weights, site).with_final_norm(dimensions, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Recorder, Signal};
    use crate::residual::{Read, Residual};
    use crate::testing::{
        assert_close, assert_gradients, dimensions, fresh, growth_by_block, normal, random,
        traverse, values, watched,
    };
    use crate::traversal::Traversal;

    fn multiplied(multiplier: f64) -> PreNormConfig {
        PreNormConfig { multiplier }
    }

    #[test]
    fn the_head_reads_the_embedding_and_every_write() {
        let dimensions = dimensions(8, 3);
        let policy = random(&PreNormConfig::default(), &dimensions);
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
        let policy = random(&PreNormConfig::default(), &dimensions);
        let x = normal("x", [2, 3, 8]);
        for site in dimensions.each_site() {
            let name = format!(
                "layers.{}.{}_norm.weight",
                site.index / 2,
                if site.index % 2 == 0 { "attn" } else { "mlp" }
            );
            let gain = normal(&name, [8]) * 0.5 + 1.0;
            let Read { input, .. } =
                policy.read(site, &policy.open(x.clone()), &mut Traversal::default());
            assert_close(input, hadal_kernels::rms(x.clone(), 1e-6) * gain.unsqueeze(), 1e-6);
        }
    }

    #[test]
    fn the_stream_grows_within_the_bounds_of_xiong() {
        let dimensions = dimensions(40, 12);
        let growth = growth_by_block(&fresh(&PreNormConfig::default(), &dimensions), &dimensions);
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

    #[test]
    fn a_multiplier_is_on_every_write() {
        let dimensions = dimensions(8, 2);
        let policy = random(&multiplied(0.22), &dimensions);
        let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
        for site in dimensions.each_site() {
            let (state, traversal) = (policy.open(x.clone()), &mut Traversal::default());
            let Read { ticket, .. } = policy.read(site, &state, traversal);
            let after = policy.write(site, state, ticket, y.clone(), traversal);
            assert_close(after.x, x.clone() + y.clone() * 0.22, 1e-6);
        }
    }

    #[test]
    fn a_multiplier_of_one_is_no_multiplier() {
        let config: crate::ResidualConfig = "prenorm:multiplier=1".parse().unwrap();
        assert_eq!(config.to_string(), "prenorm");
        let dimensions = dimensions(8, 2);
        let embedding = normal("embedding", [2, 3, 8]);
        let out = |config: &PreNormConfig| {
            values(traverse(&random(config, &dimensions), embedding.clone(), &dimensions))
        };
        assert_eq!(out(&multiplied(1.0)), out(&PreNormConfig::default()));
        assert_ne!(out(&multiplied(0.5)), out(&PreNormConfig::default()));
    }

    #[test]
    fn a_multiplier_that_is_no_size_is_refused() {
        for bad in [0.0, -0.5, f64::NAN, f64::INFINITY] {
            let refusal = multiplied(bad).check(&dimensions(8, 2)).unwrap_err().to_string();
            assert!(
                refusal.contains("multiplier is") && refusal.contains("above zero"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        assert_gradients(&multiplied(0.4), &dimensions(4, 2));
    }
}
