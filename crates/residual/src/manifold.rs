//! What mHC and mHC-lite have in common: gates that are functions of all streams, and the forms they come in.
//!
//! With `v = rms(vec(H))` and `lin_k = scale_k (v W_k) + b_k`: `pre = sigmoid(lin_pre) + epsilon`,
//! `post = post_multiplier sigmoid(lin_post) + post_epsilon`. A gated read-out is one more `pre`.
//!
//! # Starts
//! | form | weights | pre | post |
//! |---|---|---|---|
//! | the paper's | 0 | logit 1 on stream l mod n, -1 elsewhere | the same |
//! | without mixing (Hy4) | N(0, 0.006) | `1 / n` on each stream | logit 0: half the multiplier |
//! | with an epsilon, another read-out or a single pass (DepthBench) | 0 | logit 8 on stream l mod n, -8 elsewhere | as Hy4 |
//!
//! All scales start at 0.01, and a gated read-out at `1 / n` on each stream. The last two are PreNorm at the start, or
//! very nearly, where the multiplier is 2. The first keeps the values of the mHC-lite authors' code.

use crate::as_prenorm::{Chosen, filled, of_site, zeros};
use crate::policy::{InitialGate, InvalidPolicy, PolicyConfig};
use crate::pool::project;
use crate::site::{Dimensions, Site};
use crate::streams::{Mix, STREAM_SCALE, StreamForm};
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation::sigmoid};
use hadal_cpu::streams::{MixingGates, MixingReadOut};
use hadal_kernels::rms;
use serde::{Deserialize, Serialize};

/// How the streams become what the head is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamReadOut {
    /// Their sum.
    #[default]
    Sum,
    /// Their mean.
    Mean,
    /// A weighted sum, whose weights are found as those of a sub-layer's reading.
    Gated,
}

/// Logit of the stream that a site starts with, and of the others, in the paper's form.
const CHOSEN_LOGIT: f64 = 1.0;
/// The same in DepthBench's.
const ONE_STREAM_LOGIT: f64 = 8.0;
/// Off-diagonal logit of the mixing matrix at the start: almost the identity.
pub(crate) const OFF_DIAGONAL_BIAS: f64 = -8.0;
/// Scale of the input-dependent part at the start.
const START_SCALE: f64 = 0.01;
/// Weights of the form without mixing.
const START_STD: f64 = 0.006;
/// Its sigmoid is one in f32: what a single stream starts with where each of n is read by `1 / n`.
const OPEN_LOGIT: f64 = 20.0;

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The logit of a weight, if there is one. At zero and one it is that of a gate that f32 takes for closed or open.
fn logit(weight: f64) -> Option<f64> {
    let logit = (weight / (1.0 - weight)).ln().clamp(-OPEN_LOGIT, OPEN_LOGIT);
    (0.0..=1.0).contains(&weight).then_some(logit)
}

/// How gates start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Paper,
    Even,
    OneStream,
}

/// The settings that both kinds have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManifoldForm {
    pub(crate) streams: usize,
    pub(crate) identity: bool,
    pub(crate) epsilon: f64,
    pub(crate) post_multiplier: f64,
    pub(crate) post_epsilon: f64,
    pub(crate) readout: StreamReadOut,
    pub(crate) single_pass: bool,
    pub(crate) stream_scale: bool,
}

impl ManifoldForm {
    pub(crate) fn check(&self, policy: &dyn PolicyConfig) -> Result<(), InvalidPolicy> {
        for (name, value) in [("epsilon", self.epsilon), ("post_epsilon", self.post_epsilon)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(policy.refuse(format!(
                    "{name} is {value}, but it must be between 0 and 1 (released models have 1e-6)"
                )));
            }
        }
        if !(self.post_multiplier > 0.0 && self.post_multiplier.is_finite()) {
            return Err(policy.refuse(format!(
                "post_multiplier is {}, but it must be a number above 0 (the paper has 2)",
                self.post_multiplier
            )));
        }
        if self.single_pass && self.readout != StreamReadOut::Sum {
            return Err(policy.refuse(
                "single_pass reads out with the weights of the last sub-layer, so there is no other \
                 readout; leave one of the two out"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    pub(crate) fn streams(&self) -> StreamForm {
        let readout = match self.readout {
            _ if self.single_pass => MixingReadOut::HandedOn,
            StreamReadOut::Sum => MixingReadOut::Sum,
            StreamReadOut::Mean => MixingReadOut::Mean,
            StreamReadOut::Gated => MixingReadOut::Gated,
        };
        let Self { streams, identity, stream_scale, .. } = *self;
        StreamForm { streams, mixes: !identity, readout, stream_scale }
    }

    fn start(&self) -> Start {
        let deepseek = self.epsilon > 0.0 || self.readout != StreamReadOut::Sum || self.single_pass;
        match (self.identity, deepseek) {
            (true, _) => Start::Even,
            (false, true) => Start::OneStream,
            (false, false) => Start::Paper,
        }
    }

    /// The logit at which each of n streams is read by `1 / n`.
    fn even_logit(&self) -> f64 {
        match self.streams {
            1 => OPEN_LOGIT,
            n => -(n as f64 - 1.0).ln(),
        }
    }

    /// Logits of `pre` and `post`, of the stream that a site starts with and of the others.
    fn start_logits(&self) -> [[f64; 2]; 2] {
        let apart = |logit: f64| [logit, -logit];
        match self.start() {
            Start::Paper => [apart(CHOSEN_LOGIT); 2],
            Start::Even => [[self.even_logit(); 2], [0.0; 2]],
            Start::OneStream => [apart(ONE_STREAM_LOGIT), [0.0; 2]],
        }
    }

    /// The gates of reading, writing and reading out.
    pub(crate) fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let Self { epsilon, post_multiplier, post_epsilon, .. } = *self;
        let pre = |logit: f64| logistic(logit) + epsilon;
        let post = |logit: f64| post_multiplier * logistic(logit) + post_epsilon;
        let [[read, unread], [written, unwritten]] = self.start_logits();
        let alike = |name, value| InitialGate::alike(name, 0, dimensions, value);
        let mut gates = match read == unread {
            true => vec![alike("pre", pre(read))],
            false => {
                vec![alike("pre (chosen stream)", pre(read)), alike("pre (others)", pre(unread))]
            }
        };
        match written == unwritten {
            true => gates.push(alike("post", post(written))),
            false => gates.extend([
                alike("post (chosen stream)", post(written)),
                alike("post (others)", post(unwritten)),
            ]),
        }
        if self.streams().readout == MixingReadOut::Gated {
            let last = dimensions.sites() - 1;
            let values = vec![pre(self.even_logit())];
            let name = "read-out (each stream)";
            gates.push(InitialGate { name, first_site: last, last_site: last, values });
        }
        gates
    }

    /// Start (b), DepthBench's, in every form, and exactly prenorm: streams start as copies and stay equal, the weights of
    /// a reading add up to one, and a write weighs as much as the streams do by then, of which each mixing keeps the share
    /// `kept`. Nothing depends on the token; scales are as in a fresh model, so that the zero weights learn.
    ///
    /// Streams are told apart by who reads which, as in that start: equal gates could never become different.
    pub(crate) fn as_prenorm<'a>(
        &self,
        kept: f64,
        policy: &dyn PolicyConfig,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        let Self { streams: n, epsilon, post_multiplier, post_epsilon, .. } = *self;
        let other = logistic(-ONE_STREAM_LOGIT);
        let chosen = logit(1.0 - epsilon - (n as f64 - 1.0) * (other + epsilon));
        let even = logit(1.0 / n as f64 - epsilon);
        let (Some(chosen), Some(even)) = (chosen, even) else {
            return Err(policy.refuse(format!(
                "epsilon is {epsilon}, so the weights of reading {n} streams add up to more than one, as prenorm's \
                 never do; take one far below {}",
                1.0 / n as f64
            )));
        };
        let write = move |weight: f64| logit((weight - post_epsilon) / post_multiplier);
        if write(1.0).is_none() {
            return Err(policy.refuse(format!(
                "post_multiplier is {post_multiplier} and post_epsilon {post_epsilon}, so no write can have the weight \
                 of prenorm's, which is 1; a post_multiplier of 2 can"
            )));
        }
        Ok(Box::new(move |name, shape| {
            if name == STREAM_SCALE {
                return Some(filled(shape, 1.0));
            }
            if name == "residual.out.pre_weight" {
                return Some(zeros(shape));
            }
            if name == "residual.out.pre_bias" {
                return Some(filled(shape, even));
            }
            let (site, part) = of_site(name)?;
            match part {
                "pre_weight" | "post_weight" | "res_weight" => Some(zeros(shape)),
                "pre_bias" => {
                    let of = |i| if i == site % n { chosen } else { -ONE_STREAM_LOGIT };
                    Some((0..n).map(|i| of(i) as f32).collect())
                }
                "post_bias" => Some(filled(shape, write(kept.powi(site as i32 + 1))?)),
                _ => None,
            }
        }))
    }

    /// What the fused form does with sigmoids.
    fn gates(&self) -> MixingGates {
        MixingGates {
            epsilon: self.epsilon as f32,
            post_multiplier: self.post_multiplier as f32,
            post_epsilon: self.post_epsilon as f32,
        }
    }

    fn start_weights(&self) -> Init {
        match self.start() {
            Start::Even => Init::Normal { std: START_STD },
            Start::Paper | Start::OneStream => Init::ZEROS,
        }
    }

    /// The read-out, if it has gates.
    pub(crate) fn out(
        &self,
        dimensions: &Dimensions,
        weights: &mut Weights,
    ) -> Option<GatedReadOut> {
        (self.streams().readout == MixingReadOut::Gated).then(|| {
            let n = self.streams;
            let bias = vec![self.even_logit() as f32; n];
            let inputs = n * dimensions.width;
            let name = "residual.out.pre".to_owned();
            GatedReadOut {
                pre: Linear::new(name, inputs, bias, self.start_weights(), weights),
                eps: dimensions.norm_eps,
                epsilon: self.epsilon,
            }
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
    fn new(
        prefix: String,
        inputs: usize,
        bias: Vec<f32>,
        weight: Init,
        weights: &mut Weights,
    ) -> Self {
        let outputs = bias.len();
        Self {
            weight: weights.param(format!("{prefix}_weight"), [inputs, outputs], weight),
            bias: weights.param(format!("{prefix}_bias"), [outputs], Init::Values(bias)),
            scale: weights.param(format!("{prefix}_scale"), [1], Init::Constant(START_SCALE)),
        }
    }

    /// `[B, T, inputs] -> [B, T, outputs]`
    fn forward(&self, v: Tensor<3>) -> Tensor<3> {
        let linear = project(v, self.weight.val());
        linear * self.scale.val().unsqueeze() + self.bias.val().unsqueeze()
    }

    /// `scale W`, one row for each output.
    fn rows(&self) -> Tensor<1> {
        (self.weight.val().transpose() * self.scale.val().unsqueeze()).flatten(0, 1)
    }
}

/// `rms(vec(H))`: `[B, T, n, d] -> [B, T, n d]`
fn normalised(streams: &Tensor<4>, eps: f64) -> Tensor<3> {
    let [batch, time, n, d] = streams.dims();
    rms(streams.clone().reshape([batch, time, n * d]), eps)
}

/// `x + epsilon`; without one, the same graph as ever.
fn plus<const D: usize>(x: Tensor<D>, epsilon: f64) -> Tensor<D> {
    if epsilon == 0.0 { x } else { x + epsilon }
}

/// The parameters of the fused form of these maps.
fn fused_params(maps: &[&Linear]) -> Vec<Tensor<1>> {
    maps.iter().map(|map| map.bias.val()).chain(maps.iter().map(|map| map.rows())).collect()
}

/// A read-out that finds the weights of the streams as a sub-layer's reading does.
#[derive(Module, Debug)]
pub(crate) struct GatedReadOut {
    pre: Linear,
    eps: f64,
    epsilon: f64,
}

impl GatedReadOut {
    /// `[B, T, n, d] -> [B, T, n]`
    pub(crate) fn weights(&self, streams: &Tensor<4>) -> Tensor<3> {
        plus(sigmoid(self.pre.forward(normalised(streams, self.eps))), self.epsilon)
    }

    /// The parameters of the fused form.
    pub(crate) fn params(&self) -> Vec<Tensor<1>> {
        fused_params(&[&self.pre])
    }
}

/// The linear maps of one site.
#[derive(Module, Debug)]
pub(crate) struct ManifoldSite {
    pre: Linear,
    post: Linear,
    /// None where streams are not mixed.
    res: Option<Linear>,
    eps: f64,
    epsilon: f64,
    post_multiplier: f64,
    post_epsilon: f64,
    #[module(skip)]
    gates: MixingGates,
}

impl ManifoldSite {
    /// A site whose mixing logits start at `res_start`.
    pub(crate) fn new(
        site: Site,
        form: &ManifoldForm,
        dimensions: &Dimensions,
        res_start: &[f32],
        weights: &mut Weights,
    ) -> Self {
        let n = form.streams;
        let [pre, post] = form.start_logits().map(|[chosen, other]| {
            let mut logits = vec![other as f32; n];
            logits[site.index % n] = chosen as f32;
            logits
        });
        let mut linear = |part: &str, bias: Vec<f32>| {
            let name = format!("residual.{}.{part}", site.index);
            Linear::new(name, n * dimensions.width, bias, form.start_weights(), weights)
        };
        Self {
            pre: linear("pre", pre),
            post: linear("post", post),
            res: (!form.identity).then(|| linear("res", res_start.to_vec())),
            eps: dimensions.norm_eps,
            epsilon: form.epsilon,
            post_multiplier: form.post_multiplier,
            post_epsilon: form.post_epsilon,
            gates: form.gates(),
        }
    }

    /// The weights of this site; `doubly_stochastic` turns the mixing logits into `[B, T, n, n]`.
    pub(crate) fn mix(
        &self,
        streams: &Tensor<4>,
        doubly_stochastic: impl FnOnce(Tensor<3>) -> Tensor<4>,
    ) -> Mix {
        let v = normalised(streams, self.eps);
        let post = sigmoid(self.post.forward(v.clone())) * self.post_multiplier;
        Mix {
            pre: plus(sigmoid(self.pre.forward(v.clone())), self.epsilon),
            post: plus(post, self.post_epsilon),
            res: self.res.as_ref().map(|res| doubly_stochastic(res.forward(v))),
        }
    }

    /// Whether streams are not mixed.
    pub(crate) fn is_identity(&self) -> bool {
        self.res.is_none()
    }

    /// What the fused form does with sigmoids.
    pub(crate) fn gates(&self) -> MixingGates {
        self.gates
    }

    /// The parameters of the fused form.
    pub(crate) fn params(&self) -> Vec<Tensor<1>> {
        let maps: Vec<&Linear> = [&self.pre, &self.post].into_iter().chain(&self.res).collect();
        fused_params(&maps)
    }
}
