//! Deep Delta Learning: a write replaces what the state holds along its direction, instead of being added to it.
//!
//! The state X has n channels of d features, n copies of the embedding at first. With `h = sum_j read_j * X_j` (one
//! channel: `h = X`), `c = RMSNorm_l(h)`, `f = sub_l(c)` and its direction `k = f / sqrt(|f|^2 + 1e-10)`,
//!
//! `X'_j = X_j + beta (v_j - k . X_j) k`, `beta = 2 sigmoid(beta_weight . c + beta_bias)`,
//! `v = 4 sigmoid(target_weight h + target_bias)` or, linear, `v = target_weight c`.
//!
//! Along k the state goes from `k . X` towards v; nothing else changes. The skip has the eigenvalues 1 and `1 - beta`: a
//! gate of 0 keeps, 1 erases and writes, 2 reflects. Gates start at 1. Zhang et al., "Deep Delta Learning",
//! arXiv 2601.00417; its token convolutions are not here. No released model uses it.
//!
//! beta is known before the sub-layer runs, so a token can skip it where beta is below a threshold; that rule is ours.

use crate::fused::{FusedOptions, Junction, gain, join, readers};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{
    About, BASE_STD, Cost, InitialGate, InvalidPolicy, Matrix, PolicyConfig, Update,
};
use crate::pool::project;
use crate::probe::{Place, Signal, show, show_per_stream, show_streams};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::skip::{
    Opening, SkippedKeys, Skipping, StepMode, Thresholds, is_default, open, unless_skipped,
};
use crate::traversal::Traversal;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation::sigmoid};
use hadal_cpu::streams::{Ddl, DdlSettings, Skip, Stream, Target};
use hadal_kernels::rms;
use serde::{Deserialize, Serialize};

/// Settings of [`DeepDelta`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeepDeltaConfig {
    /// Channels of each feature.
    pub channels: usize,
    /// How the value that a write leaves along its direction is found.
    pub target: TargetKind,
    /// Tokens whose beta is smaller than this skip the sub-layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_threshold: Option<Thresholds>,
    /// The share of the threshold that is taken off the beta of running tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_shrink: f64,
    /// What becomes of the keys of tokens that skip an attention.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_kv: SkippedKeys,
}

/// How targets are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// `4 sigmoid(target_weight h + target_bias)`, as in the published code.
    #[default]
    Sigmoid,
    /// `target_weight c`, as in the paper.
    Linear,
}

impl Default for DeepDeltaConfig {
    fn default() -> Self {
        Self {
            channels: 1,
            target: TargetKind::Sigmoid,
            skip_threshold: None,
            skip_shrink: 0.0,
            skip_kv: SkippedKeys::Keep,
        }
    }
}

/// More channels than the paper has tried.
const MOST_CHANNELS: usize = 64;

/// Added to the square of a write's length.
const DIRECTION_EPS: f64 = 1e-10;

impl PolicyConfig for DeepDeltaConfig {
    type Policy = DeepDelta;

    fn about(&self) -> About {
        About {
            kind: "ddl",
            summary: "a write replaces what the state holds along its direction: erase, write or reflect, by one gate",
            equation: "X'_j = X_j + beta (v_j - k.X_j) k, k = F_l(h)/|F_l(h)|, beta = 2 sigmoid(w.c + b), v = 4 sigmoid(t h + b') or t c",
            state: "n d",
            parameters: "L (d + 1 + n d [+ n sigmoid]); + (L + 1) n d where n > 1",
            paper: "Zhang et al. 2026, arXiv 2601.00417",
        }
    }

    fn check(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        if self.channels == 0 || self.channels > MOST_CHANNELS {
            return Err(self.refuse(format!(
                "channels is {}, but a state has between 1 and {MOST_CHANNELS}",
                self.channels
            )));
        }
        self.skipping().map_or(Ok(()), |skipping| skipping.check(self, dimensions))
    }

    fn can_skip(&self) -> bool {
        true
    }

    fn skipping(&self) -> Option<Skipping> {
        let thresholds = self.skip_threshold.clone()?;
        Some(Skipping { thresholds, shrink: self.skip_shrink, keys: self.skip_kv })
    }

    fn set_skipping(&mut self, skipping: Option<Skipping>) -> Result<(), InvalidPolicy> {
        (self.skip_threshold, self.skip_shrink, self.skip_kv) = Skipping::fields(skipping);
        Ok(())
    }

    /// The size of a branch's output has no effect here, only its direction.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    /// The read starts as a mean and must not decay towards nothing.
    fn update(&self, name: &str, shape: &[usize]) -> Update {
        if name.ends_with(".read") { Update::Plain } else { Update::by_shape(shape) }
    }

    fn never_prenorm(&self) -> &'static str {
        "it replaces what its stream holds along a direction, where prenorm adds"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites, n) =
            (dimensions.width as u64, dimensions.sites() as u64, self.channels as u64);
        let read = Cost::norm(d) + if n > 1 { 2 * n * d } else { 0 };
        // Gate and targets; the length of the write, and for each channel a product and a step.
        let write = 2 * d + 2 * n * d + 2 * d + 4 * n * d;
        Cost { flops: sites * (read + write) + read, state: n * d }
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        // Around it, as the weights are small.
        vec![InitialGate::alike("beta (about)", 0, dimensions, 1.0)]
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> DeepDelta {
        let norms = sub_layer_norms(dimensions, weights);
        let mut reads = Vec::new();
        let mut sites = Vec::new();
        for site in dimensions.each_site() {
            let place = site.index.to_string();
            sites.push(Correction::new(self, &place, dimensions, weights));
            reads.extend(self.read(&place, dimensions, weights));
        }
        DeepDelta {
            norms,
            sites,
            reads,
            out: self.read("out", dimensions, weights),
            final_norm: final_norm(dimensions, weights),
            target: self.target,
            skipping: self.skipping(),
        }
    }
}

impl DeepDeltaConfig {
    /// The weights of the channels in a reading, if there are several.
    fn read(
        &self,
        place: &str,
        dimensions: &Dimensions,
        weights: &mut Weights,
    ) -> Option<Param<Tensor<2>>> {
        let n = self.channels;
        let start = Init::Constant(1.0 / n as f64);
        let name = format!("residual.{place}.read");
        (n > 1).then(|| weights.param(name, [dimensions.width, n], start))
    }
}

/// How one sub-layer corrects the state.
#[derive(Module, Debug)]
pub(crate) struct Correction {
    beta_weight: Param<Tensor<1>>,
    beta_bias: Param<Tensor<1>>,
    target_weight: Param<Tensor<2>>,
    /// None for linear targets.
    target_bias: Option<Param<Tensor<1>>>,
}

impl Correction {
    fn new(
        config: &DeepDeltaConfig,
        place: &str,
        dimensions: &Dimensions,
        weights: &mut Weights,
    ) -> Self {
        let (d, n) = (dimensions.width, config.channels);
        let name = |part: &str| format!("residual.{place}.{part}");
        let start = || Init::Normal { std: 0.5 / (d as f64).sqrt() };
        let biased = config.target == TargetKind::Sigmoid;
        Self {
            beta_weight: weights.param(name("beta_weight"), [d], start()),
            beta_bias: weights.param(name("beta_bias"), [1], Init::ZEROS),
            target_weight: weights.param(name("target_weight"), [n, d], start()),
            target_bias: biased.then(|| weights.param(name("target_bias"), [n], Init::ZEROS)),
        }
    }

    /// # Shapes
    /// - `c`, the normalised reading: `[B, T, d]`
    /// - output: `[B, T, 1]`
    fn beta(&self, c: Tensor<3>) -> Tensor<3> {
        let score = project(c, self.beta_weight.val().unsqueeze_dim(1));
        sigmoid(score + self.beta_bias.val().unsqueeze()) * 2.0
    }

    /// # Shapes
    /// - `h`, the reading, and `c`, the normalised one: `[B, T, d]`
    /// - output: `[B, T, n]`
    fn targets(&self, h: Tensor<3>, c: Tensor<3>) -> Tensor<3> {
        let weight = self.target_weight.val().transpose();
        match &self.target_bias {
            Some(bias) => sigmoid(project(h, weight) + bias.val().unsqueeze()) * 4.0,
            None => project(c, weight),
        }
    }
}

/// `X'_j = X_j + beta (v_j - k . X_j) k`.
#[derive(Module, Debug)]
pub struct DeepDelta {
    norms: Vec<RmsNorm>,
    sites: Vec<Correction>,
    /// Of every sub-layer, `[d, n]`; none with one channel.
    reads: Vec<Param<Tensor<2>>>,
    out: Option<Param<Tensor<2>>>,
    final_norm: RmsNorm,
    #[module(skip)]
    target: TargetKind,
    #[module(skip)]
    skipping: Option<Skipping>,
}

/// Where a write leads.
pub struct Aim {
    /// beta, and which tokens skip.
    opening: Opening,
    /// `[B, T, n]`
    targets: Tensor<3>,
}

impl DeepDelta {
    fn rule(&self, sites: impl Iterator<Item = Site>, mode: &StepMode) -> Option<Skip> {
        Some(self.skipping.as_ref()?.rule(sites, &mode.forced))
    }

    fn read_weights(&self, place: Place) -> Option<&Param<Tensor<2>>> {
        match place {
            Place::Site(site) => self.reads.get(site.index),
            Place::Out => self.out.as_ref(),
        }
    }

    /// `h = sum_j read_j * X_j`.
    ///
    /// # Shapes
    /// - `channels`: `[B, T, n, d]`
    fn reading(&self, place: Place, channels: &Tensor<4>, traversal: &mut Traversal) -> Tensor<3> {
        let h = match self.read_weights(place) {
            None => channels.clone().squeeze_dim(2),
            Some(read) => {
                let [batch, time, n, _] = channels.dims();
                show_per_stream(traversal, place, Signal::PoolWeights, || {
                    read.val().mean_dim(0).reshape([1, 1, n]).expand([batch, time, n])
                });
                let weighted = channels.clone() * read.val().transpose().unsqueeze();
                weighted.sum_dim(2).squeeze_dim(2)
            }
        };
        show(traversal, place, Signal::Reading, || h.clone());
        h
    }
}

impl Residual for DeepDelta {
    /// `[B, T, n, d]`
    type State = Tensor<4>;
    type Ticket = Aim;

    fn open(&self, embedding: Tensor<3>) -> Tensor<4> {
        let n = self.out.as_ref().map_or(1, |read| read.dims()[1]);
        embedding.unsqueeze_dim::<4>(2).repeat_dim(2, n)
    }

    fn read(&self, site: Site, channels: &Tensor<4>, traversal: &mut Traversal) -> Read<Aim> {
        let place = Place::Site(site);
        let h = self.reading(place, channels, traversal);
        let c = self.norms[site.index].forward(h.clone());
        let correction = &self.sites[site.index];
        let beta = correction.beta(c.clone());
        let targets = correction.targets(h, c.clone());
        show(traversal, place, Signal::Gates, || beta.clone());
        let rule = self.rule((0..self.sites.len()).map(Site::new), traversal.mode);
        let (opening, route) = open(rule, site, beta, traversal);
        Read { input: c, route, ticket: Aim { opening, targets } }
    }

    fn write(
        &self,
        site: Site,
        channels: Tensor<4>,
        Aim { opening: Opening { gates: beta, skipped }, targets }: Aim,
        output: Tensor<3>,
        traversal: &mut Traversal,
    ) -> Tensor<4> {
        let width = output.dims()[2] as f64;
        let direction = rms(output, DIRECTION_EPS / width) / width.sqrt();
        let direction: Tensor<4> = direction.unsqueeze_dim(2);
        let along = (channels.clone() * direction.clone()).sum_dim(3);
        let step = (targets.unsqueeze_dim::<4>(3) - along) * beta.unsqueeze_dim::<4>(3);
        let corrected = channels.clone() + step * direction;
        let channels = unless_skipped(skipped, channels, corrected);
        if channels.dims()[2] > 1 {
            show_streams(traversal, Place::Site(site), Signal::Streams, || channels.clone());
        }
        channels
    }

    fn between(&self, _: Place, channels: &Tensor<4>) -> Option<Tensor<4>> {
        (channels.dims()[2] > 1).then(|| channels.clone())
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        let reader = |junction: &Junction| {
            let gain = gain(&self.norms, &self.final_norm, junction.to);
            let mut parts = vec![gain.clone()];
            if let Place::Site(site) = junction.to {
                let Correction { beta_weight, beta_bias, target_weight, target_bias } =
                    &self.sites[site.index];
                let target = match target_bias {
                    Some(_) => target_weight.val(),
                    None => target_weight.val() * gain.clone().unsqueeze(),
                };
                parts.extend([beta_weight.val() * gain, beta_bias.val(), target.flatten(0, 1)]);
                parts.extend(target_bias.as_ref().map(Param::val));
            }
            let read = self.read_weights(junction.to);
            parts.extend(read.map(|read| read.val().transpose().flatten(0, 1)));
            join(parts)
        };
        junctions.iter().map(reader).collect()
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        let settings = DdlSettings {
            width: self.final_norm.width(),
            channels: self.out.as_ref().map_or(1, |read| read.lazy_shape()[1]),
            target: match self.target {
                TargetKind::Sigmoid => Target::Sigmoid,
                TargetKind::Linear => Target::Linear,
            },
            eps: self.final_norm.eps() as f32,
            exact: options.memory.kept_share.is_none(),
            skip: self.rule(readers(junctions), options.mode),
        };
        Some(Box::new(Ddl::new(settings, junctions.len() - 1, options.keep)))
    }

    fn set_skipping(&mut self, skipping: Option<Skipping>) {
        self.skipping = skipping;
    }

    fn close(&self, channels: Tensor<4>, traversal: &mut Traversal) -> Tensor<3> {
        self.final_norm.forward(self.reading(Place::Out, &channels, traversal))
    }
}

#[cfg(test)]
mod tests;
