//! Hyper-Connections: n streams with learned mixing at every sub-layer.
//!
//! `h = sum_i pre_i H_i`, `H'_j = sum_i res_ij H_i + post_j F_l(h)`; the dynamic form adds to each
//! weight a bounded function of the streams, `scale tanh(N w)` with `N = rms(H) * norm`. The start
//! is PreNorm: `pre` picks one stream, `res` is the identity, `post` is one everywhere, and the
//! dynamic parts are zero. Zhu et al., "Hyper-Connections", arXiv 2409.19606.
//!
//! Forms: `identity`, where streams are not mixed (`res = I`, without its parameters; one of two revisions of
//! DepthBench's code); `stream_scale`, where stream i starts as the embedding times a learned vector (Learned
//! Stream Scaling, arXiv 2606.03483).

use crate::ResidualConfig;
use crate::as_prenorm::{Chosen, PreNormModel, filled, of_site, zeros};
use crate::norm::RmsNorm;
use crate::policy::{
    About, BASE_STD, Cost, InitialGate, InvalidPolicy, Matrix, PolicyConfig, Update, check_streams,
};
use crate::site::{Dimensions, Site};
use crate::streams::{Mix, MixedStreams, Mixer, STREAM_SCALE, StreamForm, update};
use crate::unset::is_false;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_cpu::streams::{MixingForm, MixingKind, MixingReadOut};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Settings of [`HyperConnections`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HyperConnectionsConfig {
    /// Number of streams.
    pub streams: usize,
    /// Whether the weights depend on the streams.
    pub dynamic: bool,
    /// Whether streams are not mixed with each other.
    #[serde(skip_serializing_if = "is_false")]
    pub identity: bool,
    /// Whether each stream starts as the embedding times a learned vector, instead of a copy.
    #[serde(skip_serializing_if = "is_false")]
    pub stream_scale: bool,
}

impl Default for HyperConnectionsConfig {
    fn default() -> Self {
        Self { streams: 4, dynamic: true, identity: false, stream_scale: false }
    }
}

/// n streams, mixed by learned matrices.
pub(crate) type HyperConnections = MixedStreams<Connection>;

/// More streams than any paper has tried; the square of this is stored at every site.
const MOST_STREAMS: usize = 64;

/// Scale of the dynamic parts at the start.
const DYNAMIC_SCALE: f64 = 0.01;

impl HyperConnectionsConfig {
    fn form(&self) -> StreamForm {
        let Self { streams, identity, stream_scale, .. } = *self;
        StreamForm { streams, mixes: !identity, readout: MixingReadOut::Sum, stream_scale }
    }
}

impl PolicyConfig for HyperConnectionsConfig {
    type Policy = HyperConnections;

    fn about(&self) -> About {
        About {
            kind: "hc",
            summary: "n streams, mixed by learned matrices at every sub-layer",
            equation: "h = sum_i pre_i H_i; H'_j = sum_i res_ij H_i + post_j F_l(h)",
            state: "n d",
            parameters: "L n (n + 2) static; + L (d (n + 3) + 2) dynamic",
            paper: "Zhu et al. 2024, arXiv 2409.19606",
        }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams(self, self.streams, MOST_STREAMS)
    }

    /// The read-out sums n streams and divides by their joint norm, so each write starts larger by
    /// `sqrt(n)`.
    fn branch_std(&self, dimensions: &Dimensions, matrix: Matrix) -> f64 {
        match matrix {
            Matrix::Output | Matrix::Down => {
                BASE_STD * (self.streams as f64 / dimensions.sites() as f64).sqrt()
            }
            _ => BASE_STD,
        }
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, n) = (dimensions.width as u64, self.streams as u64);
        let mixed = if self.identity { 0 } else { n };
        let weights = if self.dynamic { n * Cost::norm(d) + 2 * n * d * (mixed + 2) } else { 0 };
        self.form().cost(dimensions, weights)
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        vec![
            InitialGate::alike("pre (one stream)", 0, dimensions, 1.0),
            InitialGate::alike("res diagonal", 0, dimensions, 1.0),
            InitialGate::alike("post", 0, dimensions, 1.0),
        ]
    }

    /// The static mixing matrix starts as the identity and must not decay towards zero.
    fn update(&self, name: &str, shape: &[usize]) -> Update {
        if name.ends_with(".res") { Update::Plain } else { update(name, shape) }
    }

    /// The paper's start, where n equal streams are prenorm's. The head would read n times as much, which its norm undoes
    /// but for epsilon, so the last mixing divides by n. Streams that are not mixed cannot be divided so late; if they may
    /// start as something else than copies, they start as n-th parts, which readers multiply by n.
    fn as_prenorm<'a>(
        &'a self,
        prenorm: &'a PreNormModel<'a>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        let (last, n) = (prenorm.dimensions.sites() - 1, self.streams);
        let (share, apart) = (1.0 / n as f64, self.identity && self.stream_scale);
        Ok(Box::new(move |name, shape| {
            if name == STREAM_SCALE {
                return Some(filled(shape, if apart { share } else { 1.0 }));
            }
            let (site, part) = of_site(name)?;
            let is_last = site == last && !self.identity;
            match part {
                "pre" if apart => Some(pick(site, n, n as f64)),
                "post" if apart || is_last => Some(filled(shape, share)),
                "res" if is_last => Some(identity(n, share)),
                _ => None,
            }
        }))
    }

    /// `res` is stored `[source, target]`.
    fn fixed_mixers<'a>(
        &'a self,
        mixers: &'a BTreeMap<usize, Vec<f64>>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        if self.identity {
            return Err(self.refuse("identity is true, so there are no mixers to replace".into()));
        }
        let n = self.streams;
        Ok(Box::new(move |name, shape| {
            let (site, part) = of_site(name)?;
            let mixer = mixers.get(&site)?;
            match part {
                "res" => Some((0..n * n).map(|k| mixer[k % n * n + k / n] as f32).collect()),
                "res_weight" => Some(zeros(shape)),
                _ => None,
            }
        }))
    }

    fn without_mixers(&self) -> Option<ResidualConfig> {
        let unmixed = Self { identity: true, ..self.clone() };
        (!self.identity).then_some(ResidualConfig::HyperConnections(unmixed))
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> HyperConnections {
        let site = |site, weights: &mut Weights| Connection::new(self, site, dimensions, weights);
        MixedStreams::new(self.form(), dimensions, weights, site, |_| None)
    }
}

/// Weight on the stream that a site starts with, and none on the others.
fn pick(site: usize, n: usize, weight: f64) -> Vec<f32> {
    (0..n).map(|i| if i == site % n { weight as f32 } else { 0.0 }).collect()
}

/// The identity times a factor.
fn identity(n: usize, factor: f64) -> Vec<f32> {
    (0..n * n).map(|k| if k / n == k % n { factor as f32 } else { 0.0 }).collect()
}

/// The weights of one site.
#[derive(Module, Debug)]
pub struct Connection {
    pre: Param<Tensor<1>>,
    /// None where streams are not mixed, as its dynamic part.
    res: Option<Param<Tensor<2>>>,
    post: Param<Tensor<1>>,
    dynamic: Option<Dynamic>,
}

/// What a dynamic site adds to its weights.
#[derive(Module, Debug)]
pub(crate) struct Dynamic {
    norm: RmsNorm,
    pre_weight: Param<Tensor<1>>,
    res_weight: Option<Param<Tensor<2>>>,
    post_weight: Param<Tensor<1>>,
    mix_scale: Param<Tensor<1>>,
    post_scale: Param<Tensor<1>>,
}

impl Connection {
    fn new(
        config: &HyperConnectionsConfig,
        site: Site,
        dimensions: &Dimensions,
        weights: &mut Weights,
    ) -> Self {
        let (n, d, mixes) = (config.streams, dimensions.width, !config.identity);
        let name = |part: &str| format!("residual.{}.{part}", site.index);
        Self {
            pre: weights.param(name("pre"), [n], Init::Values(pick(site.index, n, 1.0))),
            res: mixes.then(|| weights.param(name("res"), [n, n], Init::Values(identity(n, 1.0)))),
            post: weights.param(name("post"), [n], Init::ONES),
            dynamic: config.dynamic.then(|| Dynamic {
                norm: RmsNorm::new(name("norm"), d, dimensions.norm_eps, weights),
                pre_weight: weights.param(name("pre_weight"), [d], Init::ZEROS),
                res_weight: mixes.then(|| weights.param(name("res_weight"), [d, n], Init::ZEROS)),
                post_weight: weights.param(name("post_weight"), [d], Init::ZEROS),
                mix_scale: weights.param(name("mix_scale"), [1], Init::Constant(DYNAMIC_SCALE)),
                post_scale: weights.param(name("post_scale"), [1], Init::Constant(DYNAMIC_SCALE)),
            }),
        }
    }
}

impl Mixer for Connection {
    fn mix(&self, streams: &Tensor<4>) -> Mix {
        let [batch, time, n, _] = streams.dims();
        let pre = self.pre.val().reshape([1, 1, n]).expand([batch, time, n]);
        // The paper's `res` is indexed [source, target]. Turned before it is expanded, not after: the
        // backward pass would sum a turned tensor, which Burn's GPU backends do wrongly
        // (docs/backends.md).
        let res = self
            .res
            .as_ref()
            .map(|res| res.val().transpose().reshape([1, 1, n, n]).expand([batch, time, n, n]));
        let post = self.post.val().reshape([1, 1, n]).expand([batch, time, n]);
        let mix = Mix { pre, res, post };
        match &self.dynamic {
            None => mix,
            Some(dynamic) => dynamic.add(streams.clone(), mix),
        }
    }

    fn form(&self) -> MixingForm {
        let kind = if self.dynamic.is_some() { MixingKind::Dynamic } else { MixingKind::Static };
        MixingForm { identity: self.res.is_none(), ..kind.into() }
    }

    fn params(&self) -> Vec<Tensor<1>> {
        let mut parts = vec![self.pre.val(), self.post.val()];
        parts.extend(self.res.as_ref().map(|res| res.val().flatten(0, 1)));
        if let Some(dynamic) = &self.dynamic {
            let gain = dynamic.norm.gain();
            let rows = dynamic
                .res_weight
                .as_ref()
                .map(|weight| (weight.val().transpose() * gain.clone().unsqueeze()).flatten(0, 1));
            parts.extend([
                dynamic.mix_scale.val(),
                dynamic.post_scale.val(),
                dynamic.pre_weight.val() * gain.clone(),
                dynamic.post_weight.val() * gain,
            ]);
            parts.extend(rows);
        }
        parts
    }
}

impl Dynamic {
    fn add(&self, streams: Tensor<4>, Mix { pre, res, post }: Mix) -> Mix {
        let [batch, time, n, d] = streams.dims();
        let normed = self.norm.forward(streams).reshape([batch * time * n, d]);
        let along = |weight: Tensor<2>, scale: &Param<Tensor<1>>| {
            normed.clone().matmul(weight).tanh() * scale.val().unsqueeze::<2>()
        };
        let more_pre = along(self.pre_weight.val().unsqueeze_dim(1), &self.mix_scale);
        let more_post = along(self.post_weight.val().unsqueeze_dim(1), &self.post_scale);
        let res = res.zip(self.res_weight.as_ref()).map(|(res, weight)| {
            let more = along(weight.val(), &self.mix_scale);
            res + more.reshape([batch, time, n, n]).swap_dims(2, 3)
        });
        Mix {
            pre: pre + more_pre.reshape([batch, time, n]),
            res,
            post: post + more_post.reshape([batch, time, n]),
        }
    }
}

#[cfg(test)]
mod tests;
