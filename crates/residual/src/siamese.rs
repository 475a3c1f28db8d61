//! SiameseNorm: a PostNorm stream x and a PreNorm stream y that share their sub-layers.
//!
//! `x = RMSNorm_post(x); z = F_l(x + RMSNorm_pre(y)); x' = x + z / sqrt(2 block); y' = y + z`, both
//! starting as the embedding, read out as `RMSNorm_post(x) + RMSNorm_pre(y)`.
//! "SiameseNorm", arXiv 2602.08064 (the published "post-pre" code).

use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InitialGate, PolicyConfig};
use crate::probe::{Place, Probe, Signal, show, show_streams};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Settings of [`SiameseNorm`]: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiameseNormConfig {}

/// What a write to the PostNorm stream is multiplied by.
fn write_scale(site: Site) -> f64 {
    1.0 / (2.0 * (site.block() + 1) as f64).sqrt()
}

impl PolicyConfig for SiameseNormConfig {
    type Policy = SiameseNorm;

    const ABOUT: About = About {
        kind: "siamese",
        summary: "a postnorm and a prenorm stream that share their sub-layers",
        equation: "x = RMSNorm_post(x); z = F_l(x + RMSNorm_pre(y)); x' = x + z/sqrt(2 block); y' = y + z",
        state: "2 d",
        parameters: "2 d (L + 1)",
        paper: "SiameseNorm 2026, arXiv 2602.08064",
    };

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let join = 2 * Cost::norm(d) + d;
        Cost {
            flops: sites * (join + Cost::norm(d) + 3 * d) + join + Cost::norm(d),
            state: 2 * d,
            saved: 2 * (sites + 1) * d,
        }
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        vec![InitialGate::by_depth("post-stream write", dimensions, |l| write_scale(Site::new(l)))]
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> SiameseNorm {
        let pairs = dimensions
            .each_site()
            .map(|site| Pair::new(&site.index.to_string(), dimensions, weights))
            .collect();
        SiameseNorm {
            norms: sub_layer_norms(dimensions, weights),
            pairs,
            write_scales: dimensions.each_site().map(write_scale).collect(),
            out: Pair::new("out", dimensions, weights),
            final_norm: final_norm(dimensions, weights),
        }
    }
}

/// The norms that bring the two streams together.
#[derive(Module, Debug)]
pub struct Pair {
    post: RmsNorm,
    pre: RmsNorm,
}

impl Pair {
    fn new(place: &str, dimensions: &Dimensions, weights: &mut Weights) -> Self {
        let (d, eps) = (dimensions.width, dimensions.norm_eps);
        Self {
            post: RmsNorm::new(format!("residual.{place}.post_norm"), d, eps, weights),
            pre: RmsNorm::new(format!("residual.{place}.pre_norm"), d, eps, weights),
        }
    }
}

/// Two streams, one row of sub-layers.
#[derive(Module, Debug)]
pub struct SiameseNorm {
    norms: Vec<RmsNorm>,
    pairs: Vec<Pair>,
    write_scales: Vec<f64>,
    out: Pair,
    final_norm: RmsNorm,
}

/// The PostNorm stream `x` and the PreNorm stream `y`.
pub struct SiameseState {
    x: Tensor<3>,
    y: Tensor<3>,
}

impl Residual for SiameseNorm {
    type State = SiameseState;
    /// The PostNorm stream after its norm: the write continues from there.
    type Ticket = Tensor<3>;

    fn open(&self, embedding: Tensor<3>) -> SiameseState {
        SiameseState { x: embedding.clone(), y: embedding }
    }

    fn read(&self, site: Site, state: &SiameseState, probe: &mut dyn Probe) -> Read<Tensor<3>> {
        let pair = &self.pairs[site.index];
        let x = pair.post.forward(state.x.clone());
        let h = x.clone() + pair.pre.forward(state.y.clone());
        show(probe, Place::Site(site), Signal::Reading, || h.clone());
        Read { input: self.norms[site.index].forward(h), ticket: x }
    }

    fn write(
        &self,
        site: Site,
        state: SiameseState,
        x: Tensor<3>,
        z: Tensor<3>,
        probe: &mut dyn Probe,
    ) -> SiameseState {
        let x = x + z.clone() * self.write_scales[site.index];
        let y = state.y + z;
        show_streams(probe, Place::Site(site), Signal::Streams, || {
            Tensor::stack(vec![x.clone(), y.clone()], 2)
        });
        SiameseState { x, y }
    }

    fn close(&self, state: SiameseState, probe: &mut dyn Probe) -> Tensor<3> {
        let out = self.out.post.forward(state.x) + self.out.pre.forward(state.y);
        show(probe, Place::Out, Signal::Reading, || out.clone());
        self.final_norm.forward(out)
    }
}
