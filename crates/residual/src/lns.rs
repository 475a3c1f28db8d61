//! LayerNorm Scaling: `x' = x + sub_l(RMSNorm_l(x) / sqrt(block))`, blocks counted from 1.
//!
//! Shrinking what deep blocks read slows the growth of the stream from exponential to polynomial
//! and keeps deep blocks useful. Sun et al., "The Curse of Depth in Large Language Models",
//! arXiv 2502.05795.

use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, BASE_STD, Cost, InitialGate, Matrix, PolicyConfig};
use crate::prenorm::additive_cost;
use crate::probe::{Place, Probe, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
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
        Read { input, ticket: () }
    }

    fn write(&self, _: Site, x: Tensor<3>, _: (), y: Tensor<3>, _: &mut dyn Probe) -> Tensor<3> {
        x + y
    }

    fn close(&self, x: Tensor<3>, probe: &mut dyn Probe) -> Tensor<3> {
        show(probe, Place::Out, Signal::Reading, || x.clone());
        self.final_norm.forward(x)
    }
}
