//! Hyper-Connections: n streams with learned mixing at every sub-layer.
//!
//! `h = sum_i pre_i H_i`, `H'_j = sum_i res_ij H_i + post_j F_l(h)`; the dynamic form adds to each
//! weight a bounded function of the streams, `scale tanh(N w)` with `N = rms(H) * norm`. The start
//! is PreNorm: `pre` picks one stream, `res` is the identity, `post` is one everywhere, and the
//! dynamic parts are zero. Zhu et al., "Hyper-Connections", arXiv 2409.19606.

use crate::norm::RmsNorm;
use crate::policy::{
    About, BASE_STD, Cost, InitialGate, InvalidPolicy, Matrix, PolicyConfig, check_streams,
};
use crate::site::{Dimensions, Site};
use crate::streams::{Mix, MixedStreams, Mixer, mixing_cost};
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Settings of [`HyperConnections`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HyperConnectionsConfig {
    /// Number of streams.
    pub streams: usize,
    /// Whether the weights depend on the streams.
    pub dynamic: bool,
}

impl Default for HyperConnectionsConfig {
    fn default() -> Self {
        Self { streams: 4, dynamic: true }
    }
}

/// n streams, mixed by learned matrices.
pub type HyperConnections = MixedStreams<Connection>;

/// More streams than any paper has tried; the square of this is stored at every site.
const MOST_STREAMS: usize = 64;

/// Scale of the dynamic parts at the start.
const DYNAMIC_SCALE: f64 = 0.01;

impl PolicyConfig for HyperConnectionsConfig {
    type Policy = HyperConnections;

    const ABOUT: About = About {
        kind: "hc",
        summary: "n streams, mixed by learned matrices at every sub-layer",
        equation: "h = sum_i pre_i H_i; H'_j = sum_i res_ij H_i + post_j F_l(h)",
        state: "n d",
        parameters: "L n (n + 2) static; + L (d (n + 3) + 2) dynamic",
        paper: "Zhu et al. 2024, arXiv 2409.19606",
    };

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams::<Self>(self.streams, MOST_STREAMS)
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
        let weights = if self.dynamic { n * Cost::norm(d) + 2 * n * d * (n + 2) } else { 0 };
        mixing_cost(dimensions, n, weights)
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        vec![
            InitialGate::alike("pre (one stream)", 0, dimensions, 1.0),
            InitialGate::alike("res diagonal", 0, dimensions, 1.0),
            InitialGate::alike("post", 0, dimensions, 1.0),
        ]
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> HyperConnections {
        MixedStreams::new(self.streams, dimensions, weights, |site, weights| {
            Connection::new(self, site, dimensions, weights)
        })
    }
}

/// The weights of one site.
#[derive(Module, Debug)]
pub struct Connection {
    pre: Param<Tensor<1>>,
    res: Param<Tensor<2>>,
    post: Param<Tensor<1>>,
    dynamic: Option<Dynamic>,
}

/// What a dynamic site adds to its weights.
#[derive(Module, Debug)]
pub struct Dynamic {
    norm: RmsNorm,
    pre_weight: Param<Tensor<1>>,
    res_weight: Param<Tensor<2>>,
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
        let (n, d) = (config.streams, dimensions.width);
        let name = |part: &str| format!("residual.{}.{part}", site.index);
        let mut pick = vec![0.0; n];
        pick[site.index % n] = 1.0;
        let identity = (0..n * n).map(|k| if k / n == k % n { 1.0 } else { 0.0 }).collect();
        Self {
            pre: weights.param(name("pre"), [n], Init::Values(pick)),
            res: weights.param(name("res"), [n, n], Init::Values(identity)),
            post: weights.param(name("post"), [n], Init::ONES),
            dynamic: config.dynamic.then(|| Dynamic {
                norm: RmsNorm::new(name("norm"), d, dimensions.norm_eps, weights),
                pre_weight: weights.param(name("pre_weight"), [d], Init::ZEROS),
                res_weight: weights.param(name("res_weight"), [d, n], Init::ZEROS),
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
        let res = self.res.val().reshape([1, 1, n, n]).expand([batch, time, n, n]);
        let post = self.post.val().reshape([1, 1, n]).expand([batch, time, n]);
        let (pre, res, post) = match &self.dynamic {
            None => (pre, res, post),
            Some(dynamic) => dynamic.add(streams.clone(), pre, res, post),
        };
        // The paper's `res` is indexed [source, target].
        Mix { pre, res: res.swap_dims(2, 3), post }
    }
}

impl Dynamic {
    fn add(
        &self,
        streams: Tensor<4>,
        pre: Tensor<3>,
        res: Tensor<4>,
        post: Tensor<3>,
    ) -> (Tensor<3>, Tensor<4>, Tensor<3>) {
        let [batch, time, n, d] = streams.dims();
        let normed = self.norm.forward(streams).reshape([batch * time * n, d]);
        let along = |weight: Tensor<2>, scale: &Param<Tensor<1>>| {
            normed.clone().matmul(weight).tanh() * scale.val().unsqueeze::<2>()
        };
        let more_pre = along(self.pre_weight.val().unsqueeze_dim(1), &self.mix_scale);
        let more_res = along(self.res_weight.val(), &self.mix_scale);
        let more_post = along(self.post_weight.val().unsqueeze_dim(1), &self.post_scale);
        (
            pre + more_pre.reshape([batch, time, n]),
            res + more_res.reshape([batch, time, n, n]),
            post + more_post.reshape([batch, time, n]),
        )
    }
}
