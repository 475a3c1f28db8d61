//! KEEL: `x' = RMSNorm'_l(a x + F_l(x))`, norms before and after every sub-layer and a carry as large as the depth.
//!
//! PostNorm keeps the stream at unit size, so after the norm a branch weighs about 1/a: every step is small, and the
//! gradient passes the norms almost undiminished. Trains past a thousand layers, and at higher rates than PreNorm, say the
//! authors. KEEL, arXiv 2601.19895, in the reading of DepthBench's code: the first attention has neither carry nor norm
//! behind it, the first MLP a norm and no carry. There is no norm before the head.

use crate::additive::{Additive, AdditiveSite, depth_of_site};
use crate::norm::RmsNorm;
use crate::policy::{
    About, BASE_STD, Cost, InitialGate, InvalidPolicy, Matrix, PolicyConfig, check_positive,
};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use serde::{Deserialize, Serialize};

/// Settings of KEEL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeelConfig {
    /// Weight of the stream when a write is added to it; the number of sub-layers unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
}

impl KeelConfig {
    /// Of a sub-layer's stream. It remembers the depth that the model had before blocks were cut out.
    fn carry(&self, site: Site, dimensions: &Dimensions) -> f64 {
        match depth_of_site(site, dimensions) {
            0 | 1 => 1.0,
            _ => self.alpha.unwrap_or(2.0 * dimensions.full_depth() as f64),
        }
    }
}

impl PolicyConfig for KeelConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "keel",
            summary: "norms before and after every sub-layer, and a carry as large as the depth",
            equation: "x' = RMSNorm'_l(a x + F_l(x)), a = L unless alpha is set; l = 0: x' = x + F_l(x); l = 1: a = 1",
            state: "d",
            parameters: "d (L - 2) (no final norm)",
            paper: "KEEL 2026, arXiv 2601.19895",
        }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        self.alpha.map_or(Ok(()), |alpha| check_positive(self, "alpha", alpha))
    }

    /// Every sum is normalised, so nothing accumulates that a depth-scaled start would hold back.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn never_prenorm(&self) -> &'static str {
        "it normalises the stream itself"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let carries = sites.saturating_sub(2) * d;
        let norms = sites + sites.saturating_sub(1);
        Cost { flops: norms * Cost::norm(d) + sites * d + carries, state: d }
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let carry = |l| self.carry(Site::new(l), dimensions);
        vec![InitialGate::by_depth("skip", dimensions, carry)]
    }

    /// The carry, and where the first block is.
    fn depends_on_depth(&self) -> bool {
        true
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        let (width, eps) = (dimensions.width, dimensions.norm_eps);
        let after: Vec<Option<RmsNorm>> = dimensions
            .each_site()
            .map(|site| {
                let name = format!("residual.{}.post_norm", site.index);
                let exists = depth_of_site(site, dimensions) > 0;
                exists.then(|| RmsNorm::new(name, width, eps, weights))
            })
            .collect();
        let mut after = after.into_iter();
        Additive::new(dimensions, weights, |site, norm| AdditiveSite {
            carry: self.carry(site, dimensions),
            after: after.next().flatten(),
            ..AdditiveSite::pre(norm)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Recorder, Signal};
    use crate::residual::Residual;
    use crate::testing::{
        assert_close, assert_gradients, assert_near, dimensions, fresh, normal, random, traverse,
        values, watched,
    };
    use crate::traversal::Traversal;
    use burn::tensor::Tensor;

    fn with_alpha(alpha: f64) -> KeelConfig {
        KeelConfig { alpha: Some(alpha) }
    }

    fn written(policy: &Additive, site: usize, x: &Tensor<3>, y: &Tensor<3>) -> Tensor<3> {
        let (state, traversal) = (policy.open(x.clone()), &mut Traversal::default());
        policy.write(Site::new(site), state, x.clone(), y.clone(), traversal).x
    }

    #[test]
    fn the_first_attention_adds_and_the_first_mlp_adds_and_normalises() {
        let policy = random(&KeelConfig::default(), &dimensions(8, 3));
        let (x, y) = (normal("x", [2, 3, 8]), normal("y", [2, 3, 8]));
        let normed = |sum, site: usize| {
            let gain = normal(&format!("residual.{site}.post_norm"), [8]) * 0.5 + 1.0;
            hadal_kernels::rms(sum, 1e-6) * gain.unsqueeze()
        };
        let sum = x.clone() + y.clone();
        assert_eq!(values(written(&policy, 0, &x, &y)), values(sum.clone()));
        assert_close(written(&policy, 1, &x, &y), normed(sum, 1), 1e-6);
        for site in 2..6 {
            let sum = x.clone() * 6.0 + y.clone();
            assert_close(written(&policy, site, &x, &y), normed(sum, site), 1e-6);
        }
    }

    #[test]
    fn alpha_replaces_the_number_of_sub_layers_from_the_second_block_on() {
        let carries = |config: KeelConfig| {
            let dimensions = dimensions(8, 3);
            dimensions.each_site().map(|site| config.carry(site, &dimensions)).collect::<Vec<_>>()
        };
        assert_eq!(carries(KeelConfig::default()), [1.0, 1.0, 6.0, 6.0, 6.0, 6.0]);
        assert_eq!(carries(with_alpha(2.5)), [1.0, 1.0, 2.5, 2.5, 2.5, 2.5]);
    }

    #[test]
    fn the_carry_and_the_first_block_survive_a_cut() {
        let cut = Dimensions { removed: vec![0, 2], ..dimensions(8, 2) };
        let carries: Vec<_> =
            cut.each_site().map(|site| KeelConfig::default().carry(site, &cut)).collect();
        assert_eq!(carries, [8.0; 4]);
    }

    /// With unit gains it is the rule of DeepNorm with another carry: the stream has mean square one.
    #[test]
    fn the_stream_has_unit_mean_square_from_the_first_mlp_on() {
        let dimensions = dimensions(8, 4);
        let policy = fresh(&KeelConfig::default(), &dimensions);
        let mut seen = Recorder::of(&[Signal::Reading]);
        let embedding = normal("embedding", [2, 3, 8]) * 5.0;
        watched(&policy, embedding, &dimensions, &mut seen);
        for (_, _, stream) in seen.seen.into_iter().skip(2) {
            assert_near(&values(stream.square().mean_dim(3)), &[1.0; 6], 1e-5);
        }
    }

    #[test]
    fn a_large_alpha_keeps_the_stream() {
        let dimensions = dimensions(8, 4);
        let embedding = normal("embedding", [2, 3, 8]);
        let out = |alpha| {
            traverse(&fresh(&with_alpha(alpha), &dimensions), embedding.clone(), &dimensions)
        };
        let mut seen = Recorder::of(&[Signal::Reading]);
        watched(&fresh(&with_alpha(1e6), &dimensions), embedding.clone(), &dimensions, &mut seen);
        let (_, _, after_first_block) = seen.seen[2].clone();
        assert_close(out(1e6), after_first_block.squeeze_dim(2), 1e-4);
        assert_ne!(values(out(1e6)), values(out(2.0)));
    }

    #[test]
    fn an_alpha_that_is_no_weight_is_refused() {
        for bad in [0.0, -1.0, f64::NAN] {
            let refusal = with_alpha(bad).check(&dimensions(8, 2)).unwrap_err().to_string();
            assert!(refusal.contains("alpha is") && refusal.contains("above zero"), "{refusal}");
        }
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        assert_gradients(&KeelConfig::default(), &dimensions(4, 2));
    }
}
