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
mod tests {
    use super::*;
    use crate::policies::prenorm::PreNormConfig;
    use crate::probe::{Place, Recorder, Signal};
    use crate::residual::{Read, Residual};
    use crate::streams::StreamState;
    use crate::testing::{
        assert_close, assert_gradients, assert_near, assert_streams_can_be_renamed, chosen,
        dimensions, drawn, normal, random, random_norms, traverse, values, watched, watching,
    };
    use crate::traversal::Traversal;
    use burn::tensor::Device;

    fn both_kinds() -> [HyperConnectionsConfig; 2] {
        [false, true].map(|dynamic| HyperConnectionsConfig {
            streams: 3,
            dynamic,
            ..Default::default()
        })
    }

    /// One token with the streams (1, 10) and (100, 1000).
    fn two_streams() -> StreamState {
        Tensor::from_floats([[[[1.0, 10.0], [100.0, 1000.0]]]], &Device::flex()).into()
    }

    #[test]
    fn the_start_is_prenorm() {
        let dimensions = dimensions(8, 3);
        let embedding = normal("embedding", [2, 3, 8]);
        let prenorm = random(&PreNormConfig::default(), &dimensions);
        let expected = traverse(&prenorm, embedding.clone(), &dimensions);
        for config in both_kinds() {
            let policy = chosen(&config, &dimensions, random_norms);
            // The read-out is three times PreNorm's, so the final norm's epsilon weighs less.
            assert_close(traverse(&policy, embedding.clone(), &dimensions), expected.clone(), 1e-5);
        }
    }

    #[test]
    fn streams_that_start_alike_stay_alike() {
        let dimensions = dimensions(8, 3);
        for config in both_kinds() {
            let policy = chosen(&config, &dimensions, random_norms);
            let mut seen = Recorder::of(&[Signal::Streams]);
            watched(&policy, normal("embedding", [2, 3, 8]), &dimensions, &mut seen);
            assert_eq!(seen.seen.len(), 6);
            for (_, _, streams) in seen.seen {
                let stream = |i| values(streams.clone().narrow(2, i, 1));
                assert_eq!(stream(1), stream(0));
                assert_eq!(stream(2), stream(0));
            }
        }
    }

    #[test]
    fn each_site_starts_with_the_next_stream() {
        let dimensions = dimensions(2, 2);
        let config = HyperConnectionsConfig { streams: 2, dynamic: false, ..Default::default() };
        let policy = chosen(&config, &dimensions, random_norms);
        for site in dimensions.each_site() {
            let mut seen = Recorder::of(&[Signal::Reading]);
            policy.read(site, &two_streams(), &mut watching(&mut seen));
            let reading = values(seen.get(Place::Site(site), Signal::Reading).unwrap());
            let expected = [[1.0, 10.0], [100.0, 1000.0]];
            assert_eq!(reading, expected[site.index % 2]);
        }
    }

    #[test]
    fn res_leads_from_its_row_to_its_column() {
        let config = HyperConnectionsConfig { streams: 2, dynamic: false, ..Default::default() };
        let policy = chosen(&config, &dimensions(2, 1), |name, _| match name {
            "residual.0.pre" => Some(vec![5.0, 7.0]),
            "residual.0.res" => Some(vec![1.0, 2.0, 3.0, 4.0]),
            "residual.0.post" => Some(vec![0.5, -1.0]),
            _ => None,
        });
        let site = Site::new(0);
        let mut seen = Recorder::of(&[Signal::Reading]);
        let Read { ticket, .. } = policy.read(site, &two_streams(), &mut watching(&mut seen));
        let reading = seen.get(Place::Site(site), Signal::Reading).unwrap();
        assert_eq!(values(reading), [705.0, 7050.0]);

        let output = Tensor::from_floats([[[2.0, 4.0]]], &Device::flex());
        let after = policy.write(site, two_streams(), ticket, output, &mut Traversal::default());
        // 1 (1, 10) + 3 (100, 1000) + 0.5 (2, 4), then 2 (1, 10) + 4 (100, 1000) - (2, 4).
        assert_eq!(values(after.streams), [302.0, 3012.0, 400.0, 4016.0]);
    }

    #[test]
    fn a_dynamic_site_adds_what_each_stream_asks_for() {
        let config = HyperConnectionsConfig { streams: 2, dynamic: true, ..Default::default() };
        let policy = chosen(&config, &dimensions(2, 1), |name, _| match name {
            "residual.0.pre" => Some(vec![5.0, 7.0]),
            "residual.0.res" => Some(vec![1.0, 2.0, 3.0, 4.0]),
            "residual.0.post" => Some(vec![0.5, -1.0]),
            "residual.0.norm" => Some(vec![2.0, 1.0]),
            "residual.0.pre_weight" => Some(vec![0.3, -0.2]),
            "residual.0.res_weight" => Some(vec![0.1, -0.6, 0.3, 0.4]),
            "residual.0.post_weight" => Some(vec![-0.5, 0.1]),
            "residual.0.mix_scale" => Some(vec![0.7]),
            "residual.0.post_scale" => Some(vec![0.9]),
            _ => None,
        });
        let streams = Tensor::from_floats([[[[3.0, 4.0], [1.0, 0.0]]]], &Device::flex()).into();
        let mut seen = Recorder::of(&[Signal::PoolWeights, Signal::Mixing, Signal::Gates]);
        policy.read(Site::new(0), &streams, &mut watching(&mut seen));
        let found = |signal| values(seen.get(Place::Site(Site::new(0)), signal).unwrap());

        let normed =
            [[2.0 * 3.0 / 12.5f32.sqrt(), 4.0 / 12.5f32.sqrt()], [2.0 / 0.5f32.sqrt(), 0.0]];
        let along = |i: usize, w: [f32; 2]| (normed[i][0] * w[0] + normed[i][1] * w[1]).tanh();
        let pre = |i, start| start + 0.7 * along(i, [0.3, -0.2]);
        let post = |i, start| start + 0.9 * along(i, [-0.5, 0.1]);
        let res = |i, j: usize, start| start + 0.7 * along(i, [[0.1, 0.3], [-0.6, 0.4]][j]);
        // The norm's epsilon is two millionths of the smaller stream's mean square.
        assert_near(&found(Signal::PoolWeights), &[pre(0, 5.0), pre(1, 7.0)], 2e-6);
        assert_near(&found(Signal::Gates), &[post(0, 0.5), post(1, -1.0)], 2e-6);
        // Signals are [target, source], the parameter is [source, target].
        let mixing = [res(0, 0, 1.0), res(1, 0, 3.0), res(0, 1, 2.0), res(1, 1, 4.0)];
        assert_near(&found(Signal::Mixing), &mixing, 2e-6);
    }

    /// Random parameters with the streams renamed: the new stream i is the old `order[i]`.
    fn renamed(order: [usize; 3], dimensions: &Dimensions) -> HyperConnections {
        let config = HyperConnectionsConfig { streams: 3, dynamic: true, ..Default::default() };
        let rename = |row: &[f32]| order.map(|i| row[i]);
        chosen(&config, dimensions, |name, shape| {
            let around = if name.contains("norm") { 1.0 } else { 0.0 };
            let drawn = values(normal(name, [shape.iter().product()]) * 0.5 + around);
            Some(match name.rsplit('.').next() {
                Some("pre" | "post") => rename(&drawn).to_vec(),
                Some("res") => order.map(|i| rename(&drawn[3 * i..][..3])).concat(),
                Some("res_weight") => drawn.chunks(3).flat_map(rename).collect(),
                _ => drawn,
            })
        })
    }

    #[test]
    fn renaming_the_streams_renames_the_state_and_nothing_else() {
        assert_streams_can_be_renamed(renamed);
    }

    #[test]
    fn identity_is_mixing_by_the_identity() {
        let dimensions = dimensions(8, 3);
        let embedding = normal("embedding", [2, 3, 8]);
        for config in both_kinds() {
            let mixed = chosen(&config, &dimensions, |name, shape| {
                let at_start = name.ends_with(".res") || name.ends_with("res_weight");
                (!at_start).then(|| drawn(name, shape))
            });
            let alone = random(&HyperConnectionsConfig { identity: true, ..config }, &dimensions);
            let expected = traverse(&alone, embedding.clone(), &dimensions);
            assert_close(traverse(&mixed, embedding.clone(), &dimensions), expected, 1e-5);
        }
    }

    #[test]
    fn identity_starts_as_prenorm_and_has_the_right_slopes() {
        let dimensions = dimensions(8, 3);
        let embedding = normal("embedding", [2, 3, 8]);
        let prenorm = random(&PreNormConfig::default(), &dimensions);
        let expected = traverse(&prenorm, embedding.clone(), &dimensions);
        for config in both_kinds() {
            let config = HyperConnectionsConfig { identity: true, ..config };
            let policy = chosen(&config, &dimensions, random_norms);
            assert_close(traverse(&policy, embedding.clone(), &dimensions), expected.clone(), 1e-5);
            let config = HyperConnectionsConfig { streams: 2, stream_scale: true, ..config };
            // A stream near zero would bend too much for differences.
            assert_gradients(&config, &Dimensions::new(4, 1, 0.3));
        }
    }

    #[test]
    fn no_streams_or_too_many_are_refused() {
        for streams in [0, 65] {
            let config = HyperConnectionsConfig { streams, dynamic: false, ..Default::default() };
            assert!(config.check(&dimensions(8, 1)).is_err());
        }
    }
}
