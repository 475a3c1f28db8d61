//! PreNorm: `x' = x + F_l(x)`, the residual stream of GPT-2 and of almost every model since.
//!
//! Every sub-layer adds to one stream, so the stream's norm grows with depth and each later write
//! weighs less. Xiong et al., "On Layer Normalization in the Transformer Architecture",
//! arXiv 2002.04745.

use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, PolicyConfig};
use crate::probe::{Place, Probe, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
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
        Read { input: self.norms[site.index].forward(x.clone()), ticket: () }
    }

    fn write(&self, _: Site, x: Tensor<3>, _: (), y: Tensor<3>, _: &mut dyn Probe) -> Tensor<3> {
        x + y
    }

    fn close(&self, x: Tensor<3>, probe: &mut dyn Probe) -> Tensor<3> {
        show(probe, Place::Out, Signal::Reading, || x.clone());
        self.final_norm.forward(x)
    }
}
