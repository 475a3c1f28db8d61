//! mHC, manifold-constrained Hyper-Connections: mixing matrices are doubly stochastic.
//!
//! From `v = rms(vec(H))` over all n d values, `lin_k = scale_k (v W_k) + b_k`, then
//! `pre = sigmoid(lin_pre)`, `post = 2 sigmoid(lin_post)`, `R = Sinkhorn(lin_res)`;
//! `h = sum_i pre_i H_i`, `H'_i = sum_j R_ij H_j + post_i F_l(h)`. A doubly stochastic R has spectral
//! norm one, so no product of them over depth can explode. Xie et al., arXiv 2512.24880. The initial
//! biases are those of the mHC-lite authors' code, the paper being silent.

use crate::policy::{About, Cost, InitialGate, InvalidPolicy, PolicyConfig, check_streams};
use crate::pool::project;
use crate::sinkhorn::sinkhorn;
use crate::site::{Dimensions, Site};
use crate::streams::{Mix, MixedStreams, Mixer, mixing_cost};
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation::sigmoid};
use hadal_kernels::rms;
use serde::{Deserialize, Serialize};

/// Settings of [`ManifoldHyperConnections`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManifoldHyperConnectionsConfig {
    /// Number of streams.
    pub streams: usize,
    /// Rounds of column and row normalisation.
    pub sinkhorn_iters: usize,
}

impl Default for ManifoldHyperConnectionsConfig {
    fn default() -> Self {
        Self { streams: 4, sinkhorn_iters: 20 }
    }
}

/// n streams, mixed by doubly stochastic matrices.
pub type ManifoldHyperConnections = MixedStreams<SinkhornSite>;

/// Logit of the stream that a site starts with, and of the others.
const CHOSEN_BIAS: f64 = 1.0;
/// Off-diagonal logit of the mixing matrix at the start: almost the identity.
pub(crate) const OFF_DIAGONAL_BIAS: f64 = -8.0;
/// Scale of the input-dependent part at the start.
const START_SCALE: f64 = 0.01;
/// The square of this is stored at every site.
const MOST_STREAMS: usize = 64;
const MOST_ITERATIONS: usize = 1000;

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The gates that mHC and mHC-lite start with alike.
pub(crate) fn initial_stream_gates(dimensions: &Dimensions) -> Vec<InitialGate> {
    vec![
        InitialGate::alike("pre (chosen stream)", 0, dimensions, logistic(CHOSEN_BIAS)),
        InitialGate::alike("pre (others)", 0, dimensions, logistic(-CHOSEN_BIAS)),
        InitialGate::alike("post (chosen stream)", 0, dimensions, 2.0 * logistic(CHOSEN_BIAS)),
        InitialGate::alike("post (others)", 0, dimensions, 2.0 * logistic(-CHOSEN_BIAS)),
    ]
}

impl PolicyConfig for ManifoldHyperConnectionsConfig {
    type Policy = ManifoldHyperConnections;

    const ABOUT: About = About {
        kind: "mhc",
        summary: "hyper-connections whose mixing is doubly stochastic (Sinkhorn)",
        equation: "h = sum_i pre_i H_i; H'_i = sum_j R_ij H_j + post_i F_l(h), R = Sinkhorn(scale v W + b)",
        state: "n d",
        parameters: "L (n d + 1) (n^2 + 2n) + 3 L",
        paper: "Xie et al. 2025, arXiv 2512.24880",
    };

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams::<Self>(self.streams, MOST_STREAMS)?;
        if self.sinkhorn_iters == 0 || self.sinkhorn_iters > MOST_ITERATIONS {
            return Err(Self::refuse(format!(
                "sinkhorn_iters is {}, but it must be between 1 and {MOST_ITERATIONS} (the paper uses 20)",
                self.sinkhorn_iters
            )));
        }
        Ok(())
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, n) = (dimensions.width as u64, self.streams as u64);
        let sinkhorn = 4 * n * n * self.sinkhorn_iters as u64;
        let weights = Cost::rms(n * d) + 2 * n * d * (n * n + 2 * n) + sinkhorn;
        mixing_cost(dimensions, n, weights)
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let n = self.streams as f64;
        // All rows are alike, so the first normalisation already gives the fixed point.
        let diagonal = 1.0 / (1.0 + (n - 1.0) * OFF_DIAGONAL_BIAS.exp());
        let mut gates = initial_stream_gates(dimensions);
        gates.push(InitialGate::alike("res diagonal", 0, dimensions, diagonal));
        gates
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> ManifoldHyperConnections {
        let n = self.streams;
        let start = (0..n * n)
            .map(|k| if k / n == k % n { 0.0 } else { OFF_DIAGONAL_BIAS as f32 })
            .collect::<Vec<_>>();
        MixedStreams::new(n, dimensions, weights, |site, weights| SinkhornSite {
            linear: ManifoldSite::new(site, n, dimensions, start.clone(), weights),
            iterations: self.sinkhorn_iters,
        })
    }
}

/// `scale (v W) + b`.
#[derive(Module, Debug)]
pub struct Linear {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    scale: Param<Tensor<1>>,
}

impl Linear {
    fn new(prefix: String, inputs: usize, bias: Vec<f32>, weights: &mut Weights) -> Self {
        let outputs = bias.len();
        Self {
            weight: weights.param(format!("{prefix}_weight"), [inputs, outputs], Init::ZEROS),
            bias: weights.param(format!("{prefix}_bias"), [outputs], Init::Values(bias)),
            scale: weights.param(format!("{prefix}_scale"), [1], Init::Constant(START_SCALE)),
        }
    }

    /// `[B, T, inputs] -> [B, T, outputs]`
    fn forward(&self, v: Tensor<3>) -> Tensor<3> {
        let linear = project(v, self.weight.val());
        linear * self.scale.val().unsqueeze() + self.bias.val().unsqueeze()
    }
}

/// The three linear maps of one site.
#[derive(Module, Debug)]
pub struct ManifoldSite {
    pre: Linear,
    post: Linear,
    res: Linear,
    eps: f64,
}

impl ManifoldSite {
    /// A site whose mixing logits start at `res_start`.
    pub(crate) fn new(
        site: Site,
        streams: usize,
        dimensions: &Dimensions,
        res_start: Vec<f32>,
        weights: &mut Weights,
    ) -> Self {
        let inputs = streams * dimensions.width;
        let name = |part: &str| format!("residual.{}.{part}", site.index);
        let mut chosen = vec![-CHOSEN_BIAS as f32; streams];
        chosen[site.index % streams] = CHOSEN_BIAS as f32;
        Self {
            pre: Linear::new(name("pre"), inputs, chosen.clone(), weights),
            post: Linear::new(name("post"), inputs, chosen, weights),
            res: Linear::new(name("res"), inputs, res_start, weights),
            eps: dimensions.norm_eps,
        }
    }

    /// The weights of this site; `doubly_stochastic` turns the mixing logits into `[B, T, n, n]`.
    pub(crate) fn mix(
        &self,
        streams: &Tensor<4>,
        doubly_stochastic: impl FnOnce(Tensor<3>) -> Tensor<4>,
    ) -> Mix {
        let [batch, time, n, d] = streams.dims();
        let v = rms(streams.clone().reshape([batch, time, n * d]), self.eps);
        Mix {
            pre: sigmoid(self.pre.forward(v.clone())),
            post: sigmoid(self.post.forward(v.clone())) * 2.0,
            res: doubly_stochastic(self.res.forward(v)),
        }
    }
}

/// A site that makes its mixing doubly stochastic by iteration.
#[derive(Module, Debug)]
pub struct SinkhornSite {
    linear: ManifoldSite,
    iterations: usize,
}

impl Mixer for SinkhornSite {
    fn mix(&self, streams: &Tensor<4>) -> Mix {
        let [batch, time, n, _] = streams.dims();
        self.linear
            .mix(streams, |logits| sinkhorn(logits.reshape([batch, time, n, n]), self.iterations))
    }
}
