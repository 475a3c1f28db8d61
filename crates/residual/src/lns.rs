//! LayerNorm Scaling: `x' = x + sub_l(RMSNorm_l(x) / sqrt(block))`, blocks counted from 1.
//!
//! Shrinking what deep blocks read slows the growth of the stream from exponential to polynomial
//! and keeps deep blocks useful. Sun et al., "The Curse of Depth in Large Language Models",
//! arXiv 2502.05795.

use crate::fused::{Fused, Memory, Passage, gain};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, BASE_STD, Cost, InitialGate, Matrix, PolicyConfig};
use crate::prenorm::additive_cost;
use crate::probe::{Place, Probe, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Additive, AdditiveStep};
use serde::{Deserialize, Serialize};

/// Settings of [`LayerNormScaling`]: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNormScalingConfig {}

/// What the reader of a site multiplies its normalised input by.
fn scale(site: Site) -> f64 {
    1.0 / ((site.block() + 1) as f64).sqrt()
}

impl PolicyConfig for LayerNormScalingConfig {
    type Policy = LayerNormScaling;

    const ABOUT: About = About {
        kind: "lns",
        summary: "prenorm whose normalised input shrinks with depth",
        equation: "x' = x + sub_l(RMSNorm_l(x) / sqrt(block))",
        state: "d",
        parameters: "0",
        paper: "Sun et al. 2025 (LayerNorm Scaling), arXiv 2502.05795",
    };

    /// Plain for all matrices: the authors found that depth-scaled outputs weaken the method.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let base = additive_cost(dimensions);
        let scaling = dimensions.sites() as u64 * dimensions.width as u64;
        Cost { flops: base.flops + scaling, ..base }
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        vec![InitialGate::by_depth("scale", dimensions, |l| scale(Site::new(l)))]
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> LayerNormScaling {
        LayerNormScaling {
            scales: dimensions.each_site().map(scale).collect(),
            norms: sub_layer_norms(dimensions, weights),
            final_norm: final_norm(dimensions, weights),
        }
    }
}

/// `x' = x + sub_l(RMSNorm_l(x) / sqrt(block))`.
#[derive(Module, Debug)]
pub struct LayerNormScaling {
    norms: Vec<RmsNorm>,
    scales: Vec<f64>,
    final_norm: RmsNorm,
}

impl Residual for LayerNormScaling {
    type State = Tensor<3>;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> Tensor<3> {
        embedding
    }

    fn read(&self, site: Site, x: &Tensor<3>, probe: &mut dyn Probe) -> Read<()> {
        show(probe, Place::Site(site), Signal::Reading, || x.clone());
        let input = self.norms[site.index].forward(x.clone()) * self.scales[site.index];
        Read::all(input, ())
    }

    fn write(&self, _: Site, x: Tensor<3>, _: (), y: Tensor<3>, _: &mut dyn Probe) -> Tensor<3> {
        x + y
    }

    fn fused(&self, passages: &[Passage], _: &Memory, keep: bool) -> Option<Fused> {
        let reader = |passage: &Passage| gain(&self.norms, &self.final_norm, passage.to);
        let params: Vec<_> = passages.iter().map(reader).collect();
        let scale = |to| match to {
            Place::Site(site) => self.scales[site.index],
            Place::Out => 1.0,
        };
        let step = |passage: &Passage| AdditiveStep {
            pre: Some(scale(passage.to) as f32),
            ..AdditiveStep::default()
        };
        let steps = passages.iter().map(step).collect();
        let (width, eps) = (params[0].dims()[0], self.final_norm.eps() as f32);
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
    use crate::prenorm::PreNormConfig;
    use crate::probe::{Recorder, Silent};
    use crate::testing::{
        assert_close, assert_near, chosen, dimensions, fresh, growth_by_block, normal, random,
        traverse, values, watched,
    };

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
            let Read { input, .. } = policy.read(site, &x, &mut Silent);
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
