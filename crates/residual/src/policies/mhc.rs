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
use hadal_cpu::streams::MixingKind;
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
pub(crate) type ManifoldHyperConnections = MixedStreams<SinkhornSite>;

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

    fn about(&self) -> About {
        About {
            kind: "mhc",
            summary: "hyper-connections whose mixing is doubly stochastic (Sinkhorn)",
            equation: "h = sum_i pre_i H_i; H'_i = sum_j R_ij H_j + post_i F_l(h), R = Sinkhorn(scale v W + b)",
            state: "n d",
            parameters: "L (n d + 1) (n^2 + 2n) + 3 L",
            paper: "Xie et al. 2025, arXiv 2512.24880",
        }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams(self, self.streams, MOST_STREAMS)?;
        if self.sinkhorn_iters == 0 || self.sinkhorn_iters > MOST_ITERATIONS {
            return Err(self.refuse(format!(
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
pub(crate) struct Linear {
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
pub(crate) struct ManifoldSite {
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

impl Linear {
    /// `scale W`, one row for each output.
    fn rows(&self) -> Tensor<1> {
        (self.weight.val().transpose() * self.scale.val().unsqueeze()).flatten(0, 1)
    }
}

impl ManifoldSite {
    /// The parameters of the fused form.
    pub(crate) fn params(&self) -> Vec<Tensor<1>> {
        let maps = [&self.pre, &self.post, &self.res];
        maps.iter().map(|map| map.bias.val()).chain(maps.iter().map(|map| map.rows())).collect()
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

    fn kind(&self) -> MixingKind {
        MixingKind::Sinkhorn { iterations: self.iterations }
    }

    fn params(&self) -> Vec<Tensor<1>> {
        self.linear.params()
    }
}

// The constants are those of the spec, digit by digit.
#[cfg(test)]
#[allow(clippy::excessive_precision)]
mod tests {
    use super::*;
    use crate::probe::{Place, Recorder, Signal};
    use crate::residual::{Read, Residual};
    use crate::testing::{
        assert_close, assert_manifold_start, assert_near, assert_streams_can_be_renamed, chosen,
        dimensions, fresh, normal, random, values, watched, watching,
    };
    use crate::traversal::Traversal;
    use burn::tensor::Device;

    const STREAMS: usize = 4;

    /// Enough rounds that only rounding keeps the columns from one.
    fn converged() -> ManifoldHyperConnectionsConfig {
        ManifoldHyperConnectionsConfig { streams: STREAMS, sinkhorn_iters: 300 }
    }

    /// The mixing matrices of a traversal, one for each site.
    fn mixings(policy: &ManifoldHyperConnections, dimensions: &Dimensions) -> Vec<Tensor<4>> {
        let embedding = normal("embedding", [2, 3, dimensions.width]);
        let mut seen = Recorder::of(&[Signal::Mixing]);
        watched(policy, embedding, dimensions, &mut seen);
        seen.seen.into_iter().map(|(_, _, mixing)| mixing).collect()
    }

    #[test]
    fn documented_gates_are_those_of_the_reference_code() {
        let gates = ManifoldHyperConnectionsConfig::default().initial_gates(&dimensions(8, 3));
        for (name, value) in [
            ("pre (chosen stream)", 0.731_058_58),
            ("pre (others)", 0.268_941_42),
            ("post (chosen stream)", 1.462_117_16),
            ("post (others)", 0.537_882_84),
            ("res diagonal", 0.998_994_62),
        ] {
            let gate = gates.iter().find(|gate| gate.name == name).unwrap();
            assert!((gate.values[0] - value).abs() < 1e-8, "{name} is {}", gate.values[0]);
        }
    }

    #[test]
    fn a_fresh_policy_gates_as_documented() {
        let policy = fresh(&ManifoldHyperConnectionsConfig::default(), &dimensions(8, 3));
        assert_manifold_start(&policy, 0.998_994_62, 0.000_335_13);
    }

    #[test]
    fn mixing_is_doubly_stochastic() {
        let dimensions = dimensions(8, 3);
        for mixing in mixings(&random(&converged(), &dimensions), &dimensions) {
            let ones = [1.0; 2 * 3 * STREAMS];
            assert_near(&values(mixing.clone().sum_dim(3)), &ones, 1e-5);
            assert_near(&values(mixing.clone().sum_dim(2)), &ones, 1e-5);
            assert!(values(mixing).iter().all(|weight| *weight >= 0.0));
        }
    }

    #[test]
    fn mixing_over_all_of_depth_is_still_doubly_stochastic() {
        let dimensions = dimensions(8, 8);
        let mixings = mixings(&random(&converged(), &dimensions), &dimensions);
        assert_eq!(mixings.len(), 16);
        let product = mixings.into_iter().reduce(|so_far, next| next.matmul(so_far)).unwrap();
        let ones = [1.0; 2 * 3 * STREAMS];
        assert_near(&values(product.clone().sum_dim(3)), &ones, 1e-4);
        assert_near(&values(product.sum_dim(2)), &ones, 1e-4);
    }

    #[test]
    fn mixing_never_lengthens_a_vector_over_streams() {
        let dimensions = dimensions(8, 3);
        let vectors = normal("vectors", [2, 3, STREAMS, 50]);
        let lengths = |vectors: Tensor<4>| values(vectors.square().sum_dim(2));
        let before = lengths(vectors.clone());
        for mixing in mixings(&random(&converged(), &dimensions), &dimensions) {
            let after = lengths(mixing.matmul(vectors.clone()));
            assert!(before.iter().zip(after).all(|(before, after)| after <= before * 1.0001));
        }
    }

    #[test]
    fn mixing_conserves_the_sum_of_the_streams() {
        let policy = random(&converged(), &dimensions(8, 1));
        let site = Site::new(1);
        let streams = normal("streams", [2, 3, STREAMS, 8]);
        let Read { ticket, .. } = policy.read(site, &streams, &mut Traversal::default());
        let nothing = Tensor::zeros([2, 3, 8], &Device::flex());
        let after = policy.write(site, streams.clone(), ticket, nothing, &mut Traversal::default());
        assert_close(after.clone().sum_dim(2), streams.clone().sum_dim(2), 1e-5);
        assert_ne!(values(after), values(streams));
    }

    #[test]
    fn a_single_stream_is_kept_whole() {
        let dimensions = dimensions(8, 2);
        let config = ManifoldHyperConnectionsConfig { streams: 1, ..Default::default() };
        for mixing in mixings(&random(&config, &dimensions), &dimensions) {
            assert_eq!(values(mixing), [1.0; 6]);
        }
    }

    #[test]
    fn a_row_of_the_mixing_makes_a_new_stream() {
        // One round leaves the columns off one, so that the transpose would be another matrix.
        let config = ManifoldHyperConnectionsConfig { streams: 2, sinkhorn_iters: 1 };
        let policy = chosen(&config, &dimensions(2, 1), |name, _| match name {
            "residual.0.pre_bias" => Some(vec![0.0, 1.0]),
            "residual.0.post_bias" => Some(vec![-1.0, 0.0]),
            "residual.0.res_bias" => Some([1.0f32, 2.0, 3.0, 4.0].map(f32::ln).to_vec()),
            _ => None,
        });
        let site = Site::new(0);
        let streams = Tensor::from_floats([[[[7.0, 0.0], [0.0, 17.0]]]], &Device::flex());
        let mut seen = Recorder::of(&[Signal::Reading]);
        let Read { ticket, .. } = policy.read(site, &streams, &mut watching(&mut seen));
        let reading = seen.get(Place::Site(site), Signal::Reading).unwrap();
        assert_near(&values(reading), &[3.5, 17.0 * 0.731_058_6], 1e-6);

        let output = Tensor::from_floats([[[10.0, 20.0]]], &Device::flex());
        let after = policy.write(site, streams, ticket, output, &mut Traversal::default());
        let post = 2.0 * 0.268_941_4;
        let expected = [
            3.0 + 10.0 * post,
            4.0 / 7.0 * 17.0 + 20.0 * post,
            9.0 / 17.0 * 7.0 + 10.0,
            8.0 + 20.0,
        ];
        assert_near(&values(after), &expected, 1e-6);
    }

    /// Random parameters with the streams renamed: the new stream i is the old `order[i]`.
    fn renamed(order: [usize; 3], dimensions: &Dimensions) -> ManifoldHyperConnections {
        let config = ManifoldHyperConnectionsConfig { streams: 3, ..Default::default() };
        let pairs: Vec<usize> = order.iter().flat_map(|&i| order.map(|j| 3 * i + j)).collect();
        chosen(&config, dimensions, |name, shape| {
            let part = name.rsplit('.').next().unwrap_or_default();
            let around = if name.contains("norm") { 1.0 } else { 0.0 };
            let drawn = values(normal(name, [shape.iter().product()]) * 0.3 + around);
            let outputs: &[usize] = if part.starts_with("res_") { &pairs } else { &order };
            let rename = |row: &[f32]| outputs.iter().map(|&i| row[i]).collect::<Vec<_>>();
            Some(if part.ends_with("_bias") {
                rename(&drawn)
            } else if part.ends_with("_weight") {
                // Rows belong to the features of one stream after the other.
                let rows: Vec<&[f32]> = drawn.chunks(outputs.len()).collect();
                let width = rows.len() / 3;
                order
                    .iter()
                    .flat_map(|&i| &rows[i * width..][..width])
                    .flat_map(|r| rename(r))
                    .collect()
            } else {
                drawn
            })
        })
    }

    #[test]
    fn renaming_the_streams_renames_the_state_and_nothing_else() {
        assert_streams_can_be_renamed(renamed);
    }

    #[test]
    fn bad_settings_are_refused() {
        let dimensions = dimensions(8, 1);
        for (streams, sinkhorn_iters) in [(0, 20), (65, 20), (4, 0), (4, 1001)] {
            let config = ManifoldHyperConnectionsConfig { streams, sinkhorn_iters };
            assert!(config.check(&dimensions).is_err(), "{config:?}");
        }
    }
}
