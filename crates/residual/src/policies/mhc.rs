//! mHC, manifold-constrained Hyper-Connections: mixing matrices are doubly stochastic.
//!
//! From `v = rms(vec(H))` over all n d values, `lin_k = scale_k (v W_k) + b_k`, then
//! `pre = sigmoid(lin_pre)`, `post = 2 sigmoid(lin_post)`, `R = Sinkhorn(lin_res)`;
//! `h = sum_i pre_i H_i`, `H'_i = sum_j R_ij H_j + post_i F_l(h)`. A doubly stochastic R has spectral
//! norm one, so no product of them over depth can explode. Xie et al., arXiv 2512.24880.
//!
//! Forms of released models, which can be combined:
//! - `epsilon` e: `pre = sigmoid + e`, and Sinkhorn with e (`sinkhorn.rs`). DeepSeek-V4 (arXiv 2606.19348), GLM-5.3-Flash;
//! - `readout`: the sum, the mean (GLM-5.3-Flash), or gated, `sum_i (sigmoid(lin_out) + e)_i H_i` (DeepSeek-V4, Hy4);
//! - `identity`: streams are not mixed, `R = I`, without its parameters (Hy4); `post_multiplier`, `post_epsilon`: as
//!   `manifold.rs` says;
//! - `single_pass`: a sub-layer reads with the `pre` that the one before it found, the first reads stream 0, the head
//!   reads with the last one's. One scan of the streams then gives the reading, the norm and the next weights
//!   (DeepSeek-V4.1-Flash, arXiv 2609.19969). An absent sub-layer leaves the next one the `pre` that it would have read with;
//! - `stream_scale`: stream i starts as the embedding times a learned vector (arXiv 2606.03483).
//!
//! Starts: `manifold.rs` has a table. The paper's form has those of the mHC-lite authors' code, the paper being silent;
//! DeepSeek's forms have start (b) of the spec, DepthBench's, because with uniform mixers the first mix would average all
//! streams. `R` starts with logits 0 on the diagonal and -8 elsewhere in every form.

use crate::ResidualConfig;
use crate::as_prenorm::{Chosen, PreNormModel, of_site, zeros};
use crate::manifold::{ManifoldForm, ManifoldSite, OFF_DIAGONAL_BIAS, StreamReadOut};
use crate::policy::{
    About, Cost, InitialGate, InvalidPolicy, PolicyConfig, Released, Update, check_streams,
};
use crate::sinkhorn::{logits_of, sinkhorn};
use crate::site::Dimensions;
use crate::skip::is_default;
use crate::streams::{Mix, MixedStreams, Mixer, update};
use crate::unset::{is_false, is_two, is_zero};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::streams::{MixingForm, MixingKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Settings of [`ManifoldHyperConnections`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct ManifoldHyperConnectionsConfig {
    /// Number of streams.
    pub streams: usize,
    /// Rounds of column and row normalisation; 0 where streams are not mixed, and not written then.
    #[serde(default = "unsaid", skip_serializing_if = "is_zero")]
    pub sinkhorn_iters: usize,
    /// Whether streams are not mixed with each other.
    #[serde(skip_serializing_if = "is_false")]
    pub identity: bool,
    /// Added to the weights of reading, and in Sinkhorn's iteration.
    #[serde(skip_serializing_if = "is_zero")]
    pub epsilon: f64,
    /// The largest weight of a write.
    #[serde(skip_serializing_if = "is_two")]
    pub post_multiplier: f64,
    /// Added to the weights of a write.
    #[serde(skip_serializing_if = "is_zero")]
    pub post_epsilon: f64,
    /// How the streams become what the head is given.
    #[serde(skip_serializing_if = "is_default")]
    pub readout: StreamReadOut,
    /// Whether a sub-layer reads with the weights that the one before it found.
    #[serde(skip_serializing_if = "is_false")]
    pub single_pass: bool,
    /// Whether each stream starts as the embedding times a learned vector, instead of a copy.
    #[serde(skip_serializing_if = "is_false")]
    pub stream_scale: bool,
}

/// What stands for a number of rounds that a file does not say.
fn unsaid() -> usize {
    usize::MAX
}

impl Serialize for ManifoldHyperConnectionsConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// How many rounds there are unless a file says so depends on whether there is anything to normalise.
impl<'de> Deserialize<'de> for ManifoldHyperConnectionsConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut read = Self::deserialize(deserializer)?;
        if read.sinkhorn_iters == unsaid() {
            read.sinkhorn_iters = if read.identity { 0 } else { Self::default().sinkhorn_iters };
        }
        Ok(read)
    }
}

impl Default for ManifoldHyperConnectionsConfig {
    fn default() -> Self {
        Self {
            streams: 4,
            sinkhorn_iters: 20,
            identity: false,
            epsilon: 0.0,
            post_multiplier: 2.0,
            post_epsilon: 0.0,
            readout: StreamReadOut::Sum,
            single_pass: false,
            stream_scale: false,
        }
    }
}

impl ManifoldHyperConnectionsConfig {
    fn form(&self) -> ManifoldForm {
        let Self { streams, identity, epsilon, post_multiplier, post_epsilon, .. } = *self;
        let Self { readout, single_pass, stream_scale, .. } = *self;
        ManifoldForm {
            streams,
            identity,
            epsilon,
            post_multiplier,
            post_epsilon,
            readout,
            single_pass,
            stream_scale,
        }
    }
}

/// n streams, mixed by doubly stochastic matrices.
pub(crate) type ManifoldHyperConnections = MixedStreams<SinkhornSite>;

/// The square of this is stored at every site.
const MOST_STREAMS: usize = 64;
const MOST_ITERATIONS: usize = 1000;

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

    fn released(&self) -> &'static [Released] {
        const {
            &[
                Released {
                    name: "deepseek_v4",
                    models: "DeepSeek-V4",
                    settings: "streams=4,sinkhorn_iters=20,readout=gated,epsilon=1e-6",
                },
                Released {
                    name: "deepseek_v4_1_flash",
                    models: "DeepSeek-V4.1-Flash",
                    settings: "streams=4,sinkhorn_iters=20,epsilon=1e-6,single_pass=true",
                },
                Released {
                    name: "glm5_flash",
                    models: "GLM-5.3-Flash",
                    settings: "streams=4,sinkhorn_iters=20,readout=mean,epsilon=1e-6",
                },
                Released {
                    name: "hy4",
                    models: "Hy4-preview",
                    settings: "streams=4,identity=true,readout=gated,epsilon=1e-6,post_epsilon=1e-6",
                },
            ]
        }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams(self, self.streams, MOST_STREAMS)?;
        let rounds = self.sinkhorn_iters;
        if self.identity && rounds != 0 {
            return Err(self.refuse(format!(
                "identity is true and sinkhorn_iters {rounds}, but streams that are not mixed need no \
                 rounds; leave sinkhorn_iters out"
            )));
        }
        if !self.identity && (rounds == 0 || rounds > MOST_ITERATIONS) {
            return Err(self.refuse(format!(
                "sinkhorn_iters is {rounds}, but it must be between 1 and {MOST_ITERATIONS} (the paper uses 20)",
            )));
        }
        self.form().check(self)
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, n) = (dimensions.width as u64, self.streams as u64);
        let sinkhorn = 4 * n * n * self.sinkhorn_iters as u64;
        let mixed = if self.identity { 0 } else { n * n };
        let weights = Cost::rms(n * d) + 2 * n * d * (mixed + 2 * n) + sinkhorn;
        self.form().streams().cost(dimensions, weights)
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let mut gates = self.form().initial_gates(dimensions);
        if !self.identity {
            gates.push(InitialGate::alike("res diagonal", 0, dimensions, self.start_rows()[0]));
        }
        gates
    }

    fn update(&self, name: &str, shape: &[usize]) -> Update {
        update(name, shape)
    }

    fn as_prenorm<'a>(&'a self, _: &'a PreNormModel<'a>) -> Result<Chosen<'a>, InvalidPolicy> {
        let kept = if self.identity { 1.0 } else { self.start_rows()[1] };
        self.form().as_prenorm(kept, self)
    }

    fn fixed_mixers<'a>(
        &'a self,
        mixers: &'a BTreeMap<usize, Vec<f64>>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        if self.identity {
            return Err(self.refuse("identity is true, so there are no mixers to replace".into()));
        }
        Ok(Box::new(move |name, shape| {
            let (site, part) = of_site(name)?;
            let mixer = mixers.get(&site)?;
            match part {
                "res_weight" => Some(zeros(shape)),
                "res_bias" => Some(logits_of(mixer, self.sinkhorn_iters, self.epsilon)),
                _ => None,
            }
        }))
    }

    fn without_mixers(&self) -> Option<ResidualConfig> {
        let unmixed = Self { identity: true, sinkhorn_iters: 0, ..self.clone() };
        (!self.identity).then_some(ResidualConfig::ManifoldHyperConnections(unmixed))
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> ManifoldHyperConnections {
        let (form, n) = (self.form(), self.streams);
        let start: Vec<f32> = (0..n * n)
            .map(|k| if k / n == k % n { 0.0 } else { OFF_DIAGONAL_BIAS as f32 })
            .collect();
        let site = |site, weights: &mut Weights| SinkhornSite {
            linear: ManifoldSite::new(site, &form, dimensions, &start, weights),
            iterations: self.sinkhorn_iters,
            epsilon: self.epsilon,
        };
        let out = |weights: &mut Weights| form.out(dimensions, weights);
        MixedStreams::new(form.streams(), dimensions, weights, site, out)
    }
}

impl ManifoldHyperConnectionsConfig {
    /// The weight from a stream to itself at the start, and that of all streams to one.
    fn start_rows(&self) -> [f64; 2] {
        let (n, epsilon) = (self.streams as f64, self.epsilon);
        let off = OFF_DIAGONAL_BIAS.exp();
        // All rows and columns are alike, so one of each says it all: the softmax is the fixed point without epsilon.
        let sum = 1.0 + (n - 1.0) * off;
        let (mut diagonal, mut sum) = (1.0 / sum + epsilon, 1.0 + n * epsilon);
        for _ in 1..2 * self.sinkhorn_iters {
            diagonal /= sum + epsilon;
            sum /= sum + epsilon;
        }
        [diagonal, sum]
    }
}

/// A site that makes its mixing doubly stochastic by iteration.
#[derive(Module, Debug)]
pub struct SinkhornSite {
    linear: ManifoldSite,
    iterations: usize,
    epsilon: f64,
}

impl Mixer for SinkhornSite {
    fn mix(&self, streams: &Tensor<4>) -> Mix {
        let [batch, time, n, _] = streams.dims();
        self.linear.mix(streams, |logits| {
            sinkhorn(logits.reshape([batch, time, n, n]), self.iterations, self.epsilon)
        })
    }

    fn form(&self) -> MixingForm {
        let kind = MixingKind::Sinkhorn { iterations: self.iterations };
        let identity = self.linear.is_identity();
        MixingForm { identity, gates: self.linear.gates(), ..kind.into() }
    }

    fn params(&self) -> Vec<Tensor<1>> {
        self.linear.params()
    }
}

#[cfg(test)]
mod tests;
