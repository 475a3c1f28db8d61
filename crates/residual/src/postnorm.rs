//! PostNorm: `x' = RMSNorm_l(x + sub_l(x))`, the original Transformer.
//!
//! The stream has unit scale at every depth and needs no final norm, but the gradient must pass a
//! norm at every sub-layer. Vaswani et al., "Attention Is All You Need", arXiv 1706.03762.
//! DeepNorm is the same module with a weight on the skip.

use crate::fused::{Fused, Memory, Passage};
use crate::norm::{RmsNorm, sub_layer_norms};
use crate::policy::{About, BASE_STD, Cost, Matrix, PolicyConfig};
use crate::probe::{Place, Probe, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Additive, AdditiveStep};
use serde::{Deserialize, Serialize};

/// Settings of PostNorm: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostNormConfig {}

impl PolicyConfig for PostNormConfig {
    type Policy = PostNorm;

    const ABOUT: About = About {
        kind: "postnorm",
        summary: "the sum is normalised after every sub-layer; the original Transformer",
        equation: "x' = RMSNorm_l(x + sub_l(x))",
        state: "d",
        parameters: "-d (no final norm)",
        paper: "Vaswani et al. 2017, arXiv 1706.03762",
    };

    /// Every sum is normalised, so nothing accumulates that a depth-scaled start would hold back.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        Cost { flops: sites * (Cost::norm(d) + d), state: d, saved: (sites + 1) * d }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> PostNorm {
        PostNorm::new(1.0, dimensions, weights)
    }
}

/// `x' = RMSNorm_l(skip x + sub_l(x))`.
#[derive(Module, Debug)]
pub struct PostNorm {
    norms: Vec<RmsNorm>,
    skip: f64,
}

impl PostNorm {
    /// With this weight on the skip connection.
    pub(crate) fn new(skip: f64, dimensions: &Dimensions, weights: &mut Weights) -> Self {
        Self { norms: sub_layer_norms(dimensions, weights), skip }
    }
}

impl Residual for PostNorm {
    type State = Tensor<3>;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> Tensor<3> {
        embedding
    }

    fn read(&self, site: Site, x: &Tensor<3>, probe: &mut dyn Probe) -> Read<()> {
        show(probe, Place::Site(site), Signal::Reading, || x.clone());
        Read::all(x.clone(), ())
    }

    fn write(&self, site: Site, x: Tensor<3>, _: (), y: Tensor<3>, _: &mut dyn Probe) -> Tensor<3> {
        let skip = if self.skip == 1.0 { x } else { x * self.skip };
        self.norms[site.index].forward(skip + y)
    }

    fn fused(&self, passages: &[Passage], _: &Memory, keep: bool) -> Option<Fused> {
        let norm = self.norms.first()?;
        let nothing = || Tensor::zeros([0], &norm.gain().device());
        let writer = |passage: &Passage| match passage.from {
            Some(site) => self.norms[site.index].gain(),
            None => nothing(),
        };
        let step = |passage: &Passage| AdditiveStep {
            carry: self.skip as f32,
            post: passage.from.is_some(),
            ..AdditiveStep::default()
        };
        let steps = passages.iter().map(step).collect();
        let (width, eps) = (norm.gain().dims()[0], norm.eps() as f32);
        Some(Fused {
            stream: Box::new(Additive::new(width, eps, steps, keep)),
            params: passages.iter().map(writer).collect(),
        })
    }

    fn close(&self, x: Tensor<3>, probe: &mut dyn Probe) -> Tensor<3> {
        show(probe, Place::Out, Signal::Reading, || x.clone());
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Recorder, Silent};
    use crate::testing::{
        assert_close, assert_near, dimensions, fresh, normal, random, values, watched,
    };

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
        let Read { input, .. } = policy.read(site, &x, &mut Silent);
        assert_eq!(values(input), values(x.clone()));
        let after = policy.write(site, x.clone(), (), y.clone(), &mut Silent);
        let gain = normal("layers.1.mlp_norm.weight", [8]) * 0.5 + 1.0;
        assert_close(after, hadal_kernels::rms(x + y, 1e-6) * gain.unsqueeze(), 1e-6);
    }

    #[test]
    fn the_head_reads_the_stream_as_it_is() {
        let policy = random(&PostNormConfig {}, &dimensions(8, 1));
        let x = normal("x", [1, 2, 8]) * 3.0;
        assert_eq!(values(policy.close(x.clone(), &mut Silent)), values(x));
    }
}
