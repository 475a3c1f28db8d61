//! Highway: `x' = (1 - g) x + g F_l(x)`, a gate that carries or transforms.
//!
//! With one gate per channel `g = sigmoid(W rms(x) + b)`; with one gate per token
//! `g = sigmoid(w . rms(x) / sqrt(d) + b)`, which is MGR's independent gate with one stream.
//! Srivastava et al., "Highway Networks", arXiv 1505.00387; the bias starts negative, so that the
//! network begins by carrying.

use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InitialGate, PolicyConfig};
use crate::pool::project;
use crate::probe::{Place, Probe, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation::sigmoid};
use hadal_kernels::rms;
use serde::{Deserialize, Serialize};

/// How fine the gate is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HighwayGate {
    /// One gate per channel.
    #[default]
    Vector,
    /// One gate per token.
    Scalar,
}

/// Settings of [`Highway`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HighwayConfig {
    /// How fine the gate is.
    pub gate: HighwayGate,
}

/// The gate is open by `sigmoid(-2)`, 12 %, at the start.
const INITIAL_BIAS: f64 = -2.0;

impl PolicyConfig for HighwayConfig {
    type Policy = Highway;

    const ABOUT: About = About {
        kind: "highway",
        summary: "a gate that carries the stream or replaces it",
        equation: "x' = (1-g) x + g F_l(x), g = sigmoid(W rms(x) + b) or sigmoid(w.rms(x)/sqrt(d) + b)",
        state: "d",
        parameters: "L (d^2 + d) vector, L (d + 1) scalar",
        paper: "Srivastava et al. 2015, arXiv 1505.00387",
    };

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let gate = match self.gate {
            HighwayGate::Vector => 2 * d * d + d,
            HighwayGate::Scalar => 2 * d,
        };
        let per_site = Cost::norm(d) + Cost::rms(d) + gate + 3 * d;
        // The lerp needs the write as well as the stream to find the gate's gradient.
        Cost { flops: sites * per_site + Cost::norm(d), state: d, saved: (2 * sites + 1) * d }
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        // Zero weights in the scalar gate make this exact; the vector gate scatters around it.
        let open = 1.0 / (1.0 + (-INITIAL_BIAS).exp());
        vec![InitialGate::alike("g", 0, dimensions, open)]
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Highway {
        let d = dimensions.width;
        let gates = dimensions
            .each_site()
            .map(|site| {
                let name = |part: &str| format!("residual.{}.gate.{part}", site.index);
                let bias = Init::Constant(INITIAL_BIAS);
                match self.gate {
                    HighwayGate::Vector => Gate::Vector(VectorGate {
                        weight: weights.param(name("weight"), [d, d], Init::Normal { std: 0.02 }),
                        bias: weights.param(name("bias"), [d], bias),
                    }),
                    HighwayGate::Scalar => Gate::Scalar(ScalarGate {
                        weight: weights.param(name("weight"), [d], Init::ZEROS),
                        bias: weights.param(name("bias"), [1], bias),
                    }),
                }
            })
            .collect();
        Highway {
            norms: sub_layer_norms(dimensions, weights),
            gates,
            final_norm: final_norm(dimensions, weights),
            eps: dimensions.norm_eps,
        }
    }
}

/// `sigmoid(W rms(x) + b)`.
#[derive(Module, Debug)]
pub struct VectorGate {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

/// `sigmoid(w . rms(x) / sqrt(d) + b)`.
#[derive(Module, Debug)]
pub struct ScalarGate {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
}

/// A gate of either kind.
#[derive(Module, Debug)]
pub enum Gate {
    /// One gate per channel.
    Vector(VectorGate),
    /// One gate per token.
    Scalar(ScalarGate),
}

impl Gate {
    /// # Shapes
    /// - `unit`: `[B, T, d]`, of unit mean square
    /// - output: `[B, T, d]` or `[B, T, 1]`
    fn forward(&self, unit: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Vector(gate) => {
                let logit = project(unit, gate.weight.val().transpose());
                sigmoid(logit + gate.bias.val().unsqueeze())
            }
            Self::Scalar(gate) => {
                let kappa = 1.0 / (unit.dims()[2] as f64).sqrt();
                let logit = project(unit, gate.weight.val().unsqueeze_dim(1)) * kappa;
                sigmoid(logit + gate.bias.val().unsqueeze())
            }
        }
    }
}

/// `x' = (1 - g) x + g F_l(x)`.
#[derive(Module, Debug)]
pub struct Highway {
    norms: Vec<RmsNorm>,
    gates: Vec<Gate>,
    final_norm: RmsNorm,
    eps: f64,
}

impl Residual for Highway {
    type State = Tensor<3>;
    /// The gate.
    type Ticket = Tensor<3>;

    fn open(&self, embedding: Tensor<3>) -> Tensor<3> {
        embedding
    }

    fn read(&self, site: Site, x: &Tensor<3>, probe: &mut dyn Probe) -> Read<Tensor<3>> {
        let gate = self.gates[site.index].forward(rms(x.clone(), self.eps));
        show(probe, Place::Site(site), Signal::Reading, || x.clone());
        show(probe, Place::Site(site), Signal::Gates, || gate.clone());
        Read { input: self.norms[site.index].forward(x.clone()), ticket: gate }
    }

    fn write(
        &self,
        _: Site,
        x: Tensor<3>,
        gate: Tensor<3>,
        y: Tensor<3>,
        _: &mut dyn Probe,
    ) -> Tensor<3> {
        x.clone() + gate * (y - x)
    }

    fn close(&self, x: Tensor<3>, probe: &mut dyn Probe) -> Tensor<3> {
        show(probe, Place::Out, Signal::Reading, || x.clone());
        self.final_norm.forward(x)
    }
}
