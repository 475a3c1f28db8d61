//! Highway: `x' = (1 - g) x + g F_l(x)`, a gate that carries or transforms.
//!
//! With one gate per channel `g = sigmoid(W rms(x) + b)`; with one gate per token
//! `g = sigmoid(w . rms(x) / sqrt(d) + b)`, which is MGR's independent gate with one stream.
//! Srivastava et al., "Highway Networks", arXiv 1505.00387; the bias starts negative, so that the
//! network begins by carrying.

use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InitialGate, PolicyConfig};
use crate::pool::project;
use crate::probe::{Place, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::traversal::Traversal;
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

    fn about(&self) -> About {
        About {
            kind: "highway",
            summary: "a gate that carries the stream or replaces it",
            equation: "x' = (1-g) x + g F_l(x), g = sigmoid(W rms(x) + b) or sigmoid(w.rms(x)/sqrt(d) + b)",
            state: "d",
            parameters: "L (d^2 + d) vector, L (d + 1) scalar",
            paper: "Srivastava et al. 2015, arXiv 1505.00387",
        }
    }

    fn never_prenorm(&self) -> &'static str {
        "its gates take from the stream what they give to a write"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let gate = match self.gate {
            HighwayGate::Vector => 2 * d * d + d,
            HighwayGate::Scalar => 2 * d,
        };
        let per_site = Cost::norm(d) + Cost::rms(d) + gate + 3 * d;
        Cost { flops: sites * per_site + Cost::norm(d), state: d }
    }

    /// The stream, its normalised form, the gate, what it leaves of the stream, and the write.
    fn kept_plainly(&self, dimensions: &Dimensions) -> u64 {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let gate = match self.gate {
            HighwayGate::Vector => 2 * d,
            HighwayGate::Scalar => d + 2,
        };
        sites * (3 * d + gate) + d
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
pub(crate) struct VectorGate {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

/// `sigmoid(w . rms(x) / sqrt(d) + b)`.
#[derive(Module, Debug)]
pub(crate) struct ScalarGate {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
}

/// A gate of either kind.
#[derive(Module, Debug)]
pub(crate) enum Gate {
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

    fn read(&self, site: Site, x: &Tensor<3>, traversal: &mut Traversal) -> Read<Tensor<3>> {
        let gate = self.gates[site.index].forward(rms(x.clone(), self.eps));
        show(traversal, Place::Site(site), Signal::Reading, || x.clone());
        show(traversal, Place::Site(site), Signal::Gates, || gate.clone());
        Read::all(self.norms[site.index].forward(x.clone()), gate)
    }

    fn write(
        &self,
        _: Site,
        x: Tensor<3>,
        gate: Tensor<3>,
        y: Tensor<3>,
        _: &mut Traversal,
    ) -> Tensor<3> {
        x.clone() + gate * (y - x)
    }

    fn close(&self, x: Tensor<3>, traversal: &mut Traversal) -> Tensor<3> {
        show(traversal, Place::Out, Signal::Reading, || x.clone());
        self.final_norm.forward(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Recorder;
    use crate::testing::{
        assert_gradients, assert_near, assert_tokens_are_independent, chosen, dimensions, fresh,
        normal, random, values, watched,
    };
    use burn::tensor::Device;

    const SCALAR: HighwayConfig = HighwayConfig { gate: HighwayGate::Scalar };
    const VECTOR: HighwayConfig = HighwayConfig { gate: HighwayGate::Vector };

    /// The gate at site 0 and the stream after it, for x = (1, 2) and a write of (0.5, -1.5).
    fn step(config: &HighwayConfig, weight: &[f32], bias: &[f32]) -> [Vec<f32>; 2] {
        let dimensions = dimensions(2, 1);
        let policy = chosen(config, &dimensions, |name, _| match name {
            "residual.0.gate.weight" => Some(weight.to_vec()),
            "residual.0.gate.bias" => Some(bias.to_vec()),
            _ => None,
        });
        let device = Device::flex();
        let (site, x) = (Site::new(0), policy.open(Tensor::from_floats([[[1.0, 2.0]]], &device)));
        let Read { ticket, .. } = policy.read(site, &x, &mut Traversal::default());
        let y = Tensor::from_floats([[[0.5, -1.5]]], &device);
        let moved = policy.write(site, x, ticket.clone(), y, &mut Traversal::default());
        [values(ticket), values(moved)]
    }

    /// The gates of every sub-layer before training.
    fn initial(config: &HighwayConfig) -> Vec<f32> {
        let dimensions = dimensions(16, 2);
        let mut recorder = Recorder::of(&[Signal::Gates]);
        let policy = fresh(config, &dimensions);
        watched(&policy, normal("tokens", [2, 3, 16]), &dimensions, &mut recorder);
        assert_eq!(recorder.seen.len(), 4);
        recorder.seen.into_iter().flat_map(|(_, _, gates)| values(gates)).collect()
    }

    #[test]
    fn a_scalar_gate_starts_open_by_sigmoid_of_minus_two() {
        let gates = initial(&SCALAR);
        assert_eq!(gates.len(), 4 * 6);
        assert_near(&gates, &[0.119_202_92; 24], 1e-6);
    }

    #[test]
    fn a_vector_gate_scatters_around_the_same_start() {
        let gates = initial(&VECTOR);
        assert_eq!(gates.len(), 4 * 6 * 16);
        // The logit's deviation is 0.02 sqrt(16), which moves a gate by 0.0084.
        let mean = gates.iter().sum::<f32>() / gates.len() as f32;
        assert!((mean - 0.1192).abs() < 0.005, "mean {mean}");
        let spread = gates.iter().map(|g| (g - mean).powi(2)).sum::<f32>() / gates.len() as f32;
        assert!((0.006..0.011).contains(&spread.sqrt()), "deviation {}", spread.sqrt());
    }

    #[test]
    fn the_reported_start_is_that_of_every_sub_layer() {
        for config in [SCALAR, VECTOR] {
            let gates = config.initial_gates(&dimensions(16, 2));
            let [gate] = gates.as_slice() else { panic!("one gate") };
            assert_eq!((gate.name, gate.first_site, gate.last_site), ("g", 0, 3));
            assert!((gate.values[0] - 0.119_202_922).abs() < 1e-9);
        }
    }

    #[test]
    fn the_scalar_gate_gives_the_numbers_worked_by_hand() {
        let [gate, moved] = step(&SCALAR, &[0.3, -0.2], &[-1.0]);
        assert_near(&gate, &[0.260_240_03], 1e-6);
        assert_near(&moved, &[0.869_879_98, 1.089_159_9], 1e-6);
    }

    #[test]
    fn the_vector_gate_gives_the_numbers_worked_by_hand() {
        // Not symmetric, so that W and its transpose differ.
        let [gate, moved] = step(&VECTOR, &[0.5, -1.0, 2.0, 0.25], &[-1.0, 0.5]);
        assert_near(&gate, &[0.124_697_02, 0.889_056_4], 1e-6);
        assert_near(&moved, &[0.937_651_5, -1.111_697_3], 1e-6);
    }

    #[test]
    fn a_closed_gate_carries_and_an_open_one_replaces() {
        let [_, carried] = step(&SCALAR, &[0.3, -0.2], &[-100.0]);
        assert_near(&carried, &[1.0, 2.0], 1e-6);
        let [_, replaced] = step(&SCALAR, &[0.3, -0.2], &[100.0]);
        assert_near(&replaced, &[0.5, -1.5], 1e-6);
    }

    #[test]
    fn sub_layer_and_head_read_the_stream_through_their_norms() {
        let dimensions = dimensions(2, 1);
        let policy = chosen(&SCALAR, &dimensions, |name, _| match name {
            "layers.0.mlp_norm.weight" => Some(vec![2.0, 3.0]),
            "norm.weight" => Some(vec![5.0, 7.0]),
            _ => None,
        });
        let x = Tensor::<3>::from_floats([[[3.0, -4.0]]], &Device::flex());
        let unit = [3.0 / 12.5f32.sqrt(), -4.0 / 12.5f32.sqrt()];
        let Read { input, .. } = policy.read(Site::new(1), &x, &mut Traversal::default());
        assert_near(&values(input), &[2.0 * unit[0], 3.0 * unit[1]], 1e-6);
        let out = policy.close(x, &mut Traversal::default());
        assert_near(&values(out), &[5.0 * unit[0], 7.0 * unit[1]], 1e-6);
    }

    #[test]
    fn tokens_are_independent() {
        let dimensions = dimensions(8, 3);
        assert_tokens_are_independent(&random(&SCALAR, &dimensions), &dimensions);
        assert_tokens_are_independent(&random(&VECTOR, &dimensions), &dimensions);
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        assert_gradients(&SCALAR, &dimensions(6, 2));
        assert_gradients(&VECTOR, &dimensions(6, 2));
    }
}
