//! Mix-LN: the first `floor(p M)` blocks are PostNorm, the rest PreNorm.
//!
//! PostNorm keeps gradients healthy in deep layers, PreNorm in shallow ones; Mix-LN puts each where
//! it is strong. Li et al., "Mix-LN", arXiv 2412.13795.

use crate::fused::{Fused, Memory, Passage, gain, join};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InvalidPolicy, PolicyConfig};
use crate::prenorm::additive_cost;
use crate::probe::{Place, Probe, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Additive, AdditiveStep};
use serde::{Deserialize, Serialize};

/// Settings of [`MixLn`].
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

impl PolicyConfig for MixLnConfig {
    type Policy = MixLn;

    const ABOUT: About = About {
        kind: "mixln",
        summary: "the first blocks postnorm, the rest prenorm",
        equation: "x' = RMSNorm_l(x + sub_l(x)) in the first floor(post_fraction blocks), then x' = x + F_l(x)",
        state: "d",
        parameters: "0",
        paper: "Li et al. 2024 (Mix-LN), arXiv 2412.13795",
    };

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        if (0.0..=1.0).contains(&self.post_fraction) {
            return Ok(());
        }
        Err(Self::refuse(format!(
            "post_fraction is {}, but a share of the blocks lies between 0 and 1",
            self.post_fraction
        )))
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        additive_cost(dimensions)
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> MixLn {
        let post_blocks = (self.post_fraction * dimensions.blocks as f64).floor() as usize;
        MixLn {
            norms: sub_layer_norms(dimensions, weights),
            post: dimensions.each_site().map(|site| site.block() < post_blocks).collect(),
            final_norm: final_norm(dimensions, weights),
        }
    }
}

/// PostNorm sites, then PreNorm sites.
#[derive(Module, Debug)]
pub struct MixLn {
    norms: Vec<RmsNorm>,
    post: Vec<bool>,
    final_norm: RmsNorm,
}

impl Residual for MixLn {
    type State = Tensor<3>;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> Tensor<3> {
        embedding
    }

    fn read(&self, site: Site, x: &Tensor<3>, probe: &mut dyn Probe) -> Read<()> {
        show(probe, Place::Site(site), Signal::Reading, || x.clone());
        let input = if self.post[site.index] {
            x.clone()
        } else {
            self.norms[site.index].forward(x.clone())
        };
        Read::all(input, ())
    }

    fn write(&self, site: Site, x: Tensor<3>, _: (), y: Tensor<3>, _: &mut dyn Probe) -> Tensor<3> {
        let sum = x + y;
        if self.post[site.index] { self.norms[site.index].forward(sum) } else { sum }
    }

    fn fused(&self, passages: &[Passage], _: &Memory, keep: bool) -> Option<Fused> {
        let post = |site: &Site| self.post[site.index];
        let step = |passage: &Passage| {
            let reads_raw = matches!(&passage.to, Place::Site(site) if post(site));
            AdditiveStep {
                post: passage.from.as_ref().is_some_and(post),
                pre: (!reads_raw).then_some(1.0),
                ..AdditiveStep::default()
            }
        };
        let steps: Vec<AdditiveStep> = passages.iter().map(step).collect();
        let device = self.final_norm.gain().device();
        let params = passages.iter().zip(&steps).map(|(passage, step)| {
            let writer = passage.from.filter(|_| step.post);
            let mut parts: Vec<_> =
                writer.map(|site| self.norms[site.index].gain()).into_iter().collect();
            if step.pre.is_some() {
                parts.push(gain(&self.norms, &self.final_norm, passage.to));
            }
            if parts.is_empty() { Tensor::zeros([0], &device) } else { join(parts) }
        });
        let params = params.collect();
        let (width, eps) = (self.final_norm.gain().dims()[0], self.final_norm.eps() as f32);
        Some(Fused { stream: Box::new(Additive::new(width, eps, steps, keep)), params })
    }

    fn close(&self, x: Tensor<3>, probe: &mut dyn Probe) -> Tensor<3> {
        show(probe, Place::Out, Signal::Reading, || x.clone());
        self.final_norm.forward(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postnorm::PostNormConfig;
    use crate::prenorm::PreNormConfig;
    use crate::probe::Silent;
    use crate::testing::{assert_close, dimensions, normal, random, traverse, values};

    fn share(post_fraction: f64) -> MixLnConfig {
        MixLnConfig { post_fraction }
    }

    /// The sites that hand their stream to the sub-layer as it is.
    fn post_sites(post_fraction: f64, blocks: usize) -> Vec<usize> {
        let dimensions = dimensions(4, blocks);
        let policy = random(&share(post_fraction), &dimensions);
        let x = normal("x", [1, 1, 4]);
        let raw =
            |site: &Site| values(policy.read(*site, &x, &mut Silent).input) == values(x.clone());
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
        assert_close(mixed, policy.final_norm.forward(post), 1e-6);
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
        let write =
            |site| values(policy.write(Site::new(site), x.clone(), (), y.clone(), &mut Silent));
        let sum = x.clone() + y.clone();
        assert_eq!(write(1), values(policy.norms[1].forward(sum.clone())));
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
