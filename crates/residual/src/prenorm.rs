//! PreNorm: `x' = x + F_l(x)`, the residual stream of GPT-2 and of almost every model since.
//!
//! Every sub-layer adds to one stream, so the stream's norm grows with depth and each later write
//! weighs less. Xiong et al., "On Layer Normalization in the Transformer Architecture",
//! arXiv 2002.04745.

use crate::fused::{Fused, Memory, Passage, gain};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, PolicyConfig};
use crate::probe::{Place, Probe, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Additive, AdditiveStep};
use serde::{Deserialize, Serialize};

/// Settings of [`PreNorm`]: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreNormConfig {}

impl PolicyConfig for PreNormConfig {
    type Policy = PreNorm;

    const ABOUT: About = About {
        kind: "prenorm",
        summary: "every sub-layer adds to one stream; the baseline",
        equation: "x' = x + F_l(x)",
        state: "d",
        parameters: "0",
        paper: "Xiong et al. 2020, arXiv 2002.04745",
    };

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        additive_cost(dimensions)
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> PreNorm {
        PreNorm {
            norms: sub_layer_norms(dimensions, weights),
            final_norm: final_norm(dimensions, weights),
        }
    }
}

/// A norm and an addition at each sub-layer, and the final norm; one stream is kept at each read.
pub(crate) fn additive_cost(dimensions: &Dimensions) -> Cost {
    let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
    Cost { flops: sites * (Cost::norm(d) + d) + Cost::norm(d), state: d, saved: (sites + 1) * d }
}

/// `x' = x + F_l(x)`.
#[derive(Module, Debug)]
pub struct PreNorm {
    norms: Vec<RmsNorm>,
    final_norm: RmsNorm,
}

impl Residual for PreNorm {
    type State = Tensor<3>;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> Tensor<3> {
        embedding
    }

    fn read(&self, site: Site, x: &Tensor<3>, probe: &mut dyn Probe) -> Read<()> {
        show(probe, Place::Site(site), Signal::Reading, || x.clone());
        Read::all(self.norms[site.index].forward(x.clone()), ())
    }

    fn write(&self, _: Site, x: Tensor<3>, _: (), y: Tensor<3>, _: &mut dyn Probe) -> Tensor<3> {
        x + y
    }

    fn fused(&self, passages: &[Passage], _: &Memory, keep: bool) -> Option<Fused> {
        let reader = |passage: &Passage| gain(&self.norms, &self.final_norm, passage.to);
        let params: Vec<_> = passages.iter().map(reader).collect();
        let steps = vec![AdditiveStep { skip: 1.0, post: false, pre: Some(1.0) }; passages.len()];
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
    use crate::probe::Recorder;
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
        assert_close(out, policy.final_norm.forward(sum), 1e-6);
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
            let Read { input, .. } = policy.read(site, &x, &mut crate::probe::Silent);
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
