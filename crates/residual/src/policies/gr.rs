//! Gated Residual: n streams that are only added to, read through a gate for each channel.
//!
//! `N_i = rms(H_i) (1 + gamma_i)` for each stream by itself and `v = vec(N)`. A sub-layer is given
//! `h = mean_i G_i * N_i`, `G = sigmoid(read_up silu(read_down v / n))`, and writes `H'_i = H_i + s_i sub_l(h)`,
//! `s = 2 sigmoid(write v / n)`. The read is the norm: there is none before a sub-layer, nor before the head, which reads
//! in the same way. Nothing mixes streams, so each is the embedding and a weighted sum of all writes. Qwen3.8-Flash-Next,
//! arXiv 2608.30320.
//!
//! `s` is known before the sub-layer runs, so a token can skip it where its largest `s_i` is below a threshold; that rule
//! is ours.

use crate::as_prenorm::{Chosen, PreNormModel, of_site, zeros};
use crate::fused::{FusedOptions, Junction, join, readers};
use crate::policy::{
    About, BASE_STD, Cost, InitialGate, InvalidPolicy, PolicyConfig, Released, Update,
    check_streams,
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
use burn::tensor::{
    Tensor,
    activation::{sigmoid, silu},
};
use hadal_cpu::streams::{Gr, GrSettings, Skip, Stream};
use hadal_kernels::rms;
use serde::{Deserialize, Serialize};

/// Settings of [`GatedResidual`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatedResidualConfig {
    /// Number of streams.
    pub streams: usize,
    /// Rank of the gate of the read; an eighth of the width unless it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// Tokens whose largest write gate is smaller than this skip the sub-layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_threshold: Option<Thresholds>,
    /// The share of the threshold that is taken off the largest gate of running tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_shrink: f64,
    /// What becomes of the keys of tokens that skip an attention.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_kv: SkippedKeys,
}

impl Default for GatedResidualConfig {
    fn default() -> Self {
        Self {
            streams: 4,
            rank: None,
            skip_threshold: None,
            skip_shrink: 0.0,
            skip_kv: SkippedKeys::Keep,
        }
    }
}

/// More streams than any paper has tried.
const MOST_STREAMS: usize = 64;

impl GatedResidualConfig {
    fn rank(&self, dimensions: &Dimensions) -> usize {
        self.rank.unwrap_or(dimensions.width / 8)
    }
}

impl PolicyConfig for GatedResidualConfig {
    type Policy = GatedResidual;

    fn about(&self) -> About {
        About {
            kind: "gr",
            summary: "n streams, each normalised by itself, read through a gate per channel, written with a gate per stream",
            equation: "h = mean_i G_i * rms(H_i) (1 + gamma_i); H'_i = H_i + s_i sub_l(h); G = sigmoid(U silu(D v / n)), s = 2 sigmoid(W v / n), v = vec of all",
            state: "n d",
            parameters: "(L + 1) n d (2 r + 1) + L n^2 d - d (L + 1), r = d/8",
            paper: "Qwen3.8-Flash-Next 2026, arXiv 2608.30320",
        }
    }

    fn released(&self) -> &'static [Released] {
        // Its rank, 320, is an eighth of its width.
        const {
            &[Released {
                name: "qwen3_8_next",
                models: "Qwen3.8-Flash-Next",
                settings: "streams=4",
            }]
        }
    }

    fn check(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams(self, self.streams, MOST_STREAMS)?;
        let (width, most) = (dimensions.width, self.streams * dimensions.width);
        match self.rank {
            None if width < 8 => {
                return Err(self.refuse(format!(
                    "the width is {width}, an eighth of which is no rank; set rank to 1 or more"
                )));
            }
            Some(rank) if rank == 0 || rank > most => {
                return Err(self.refuse(format!(
                    "rank is {rank}, but it must be between 1 and {most}, the features of all streams"
                )));
            }
            _ => (),
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

    /// A gain, though it is stored as a matrix: gains do not decay.
    fn update(&self, name: &str, shape: &[usize]) -> Update {
        if name.ends_with(".gamma") { Update::Plain } else { Update::by_shape(shape) }
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites, n) =
            (dimensions.width as u64, dimensions.sites() as u64, self.streams as u64);
        let rank = self.rank(dimensions) as u64;
        // Norms, both products of the gate, the gate itself and the mean.
        let read = n * Cost::norm(d) + 4 * rank * n * d + 3 * n * d;
        let write = 2 * n * n * d + 2 * n * d;
        Cost { flops: sites * (read + write) + read, state: n * d }
    }

    fn deciding(&self, _: Site, dimensions: &Dimensions) -> u64 {
        let n = self.streams as u64;
        2 * n * n * dimensions.width as u64
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        // Each sigmoid is around one half before the matrices are learned.
        vec![
            InitialGate::alike("read (about)", 0, dimensions, 0.5),
            InitialGate::alike("write (about)", 0, dimensions, 1.0),
        ]
    }

    /// Where `read_up` and `write` are zero, gates are one half and one, and streams stay equal: a reader's gain is the mean
    /// of `(1 + gamma_i) / 2`. The head's reader takes the place of the final norm. Equal gammas would let no stream ever
    /// become another than the rest, so they differ a little around that mean.
    fn as_prenorm<'a>(
        &'a self,
        prenorm: &'a PreNormModel<'a>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        if self.skip_threshold.is_some() {
            return Err(self.refuse(
                "tokens that skip a sub-layer get less than prenorm gives them; leave skip_threshold \
                 out, and set it when the model has been trained"
                    .to_owned(),
            ));
        }
        Ok(Box::new(move |name, shape| {
            let (reader, part) = match name.strip_prefix("residual.out.") {
                Some(part) => (None, part),
                None => of_site(name).map(|(site, part)| (Some(site), part))?,
            };
            match part {
                "read_up" | "write" => Some(zeros(shape)),
                "gamma" => Some(apart(name, shape, &prenorm.gain(reader)?)),
                _ => None,
            }
        }))
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> GatedResidual {
        let rank = self.rank(dimensions);
        let mut reader = |place: &str, writes: bool| {
            GatedReader::new([self.streams, rank], place, writes, dimensions, weights)
        };
        GatedResidual {
            sites: dimensions.each_site().map(|l| reader(&l.index.to_string(), true)).collect(),
            out: reader("out", false),
            eps: dimensions.norm_eps,
            skipping: self.skipping(),
        }
    }
}

/// How far gammas differ from stream to stream, as a share of the gain, where a trained model gets several.
const APART: f64 = 0.05;

/// Gammas of n streams whose mean reads through a prenorm model's gain.
fn apart(name: &str, shape: &[usize], gain: &[f32]) -> Vec<f32> {
    let width = gain.len().max(1);
    let drawn = Init::Normal { std: APART }.elements(name, 0, shape);
    let streams = drawn.len() / width;
    let mean = |channel: usize| {
        let all = drawn.iter().skip(channel).step_by(width);
        all.map(|&share| f64::from(share)).sum::<f64>() / streams as f64
    };
    let means: Vec<f64> = (0..width).map(mean).collect();
    let gamma = |(k, &share): (usize, &f32)| {
        let (gain, mean) = (f64::from(gain[k % width]), means[k % width]);
        (2.0 * gain * (1.0 + f64::from(share) - mean) - 1.0) as f32
    };
    drawn.iter().enumerate().map(gamma).collect()
}

/// How one sub-layer, or the head, reads the streams.
#[derive(Module, Debug)]
pub(crate) struct GatedReader {
    gamma: Param<Tensor<2>>,
    read_down: Param<Tensor<2>>,
    read_up: Param<Tensor<2>>,
    /// None for the head, which does not write.
    write: Option<Param<Tensor<2>>>,
}

/// What a reader finds.
struct Found {
    /// `[B, T, d]`
    h: Tensor<3>,
    /// The gates of the read, `[B, T, n, d]`
    open: Tensor<4>,
    /// The gates of the write, `[B, T, n]`
    gates: Option<Tensor<3>>,
}

impl GatedReader {
    fn new(
        [n, rank]: [usize; 2],
        place: &str,
        writes: bool,
        dimensions: &Dimensions,
        weights: &mut Weights,
    ) -> Self {
        let (d, wide) = (dimensions.width, n * dimensions.width);
        let name = |part: &str| format!("residual.{place}.{part}");
        let start = || Init::Normal { std: BASE_STD };
        Self {
            gamma: weights.param(name("gamma"), [n, d], Init::ZEROS),
            read_down: weights.param(name("read_down"), [rank, wide], start()),
            read_up: weights.param(name("read_up"), [wide, rank], start()),
            write: writes.then(|| weights.param(name("write"), [n, wide], start())),
        }
    }

    /// # Shapes
    /// - `streams`: `[B, T, n, d]`
    fn find(&self, streams: &Tensor<4>, eps: f64) -> Found {
        let [batch, time, n, d] = streams.dims();
        let normed = rms(streams.clone(), eps) * (self.gamma.val() + 1.0).unsqueeze();
        let all = normed.clone().reshape([batch, time, n * d]) / n as f64;
        let low = silu(project(all.clone(), self.read_down.val().transpose()));
        let open = sigmoid(project(low, self.read_up.val().transpose()));
        let open: Tensor<4> = open.reshape([batch, time, n, d]);
        let h = (open.clone() * normed).mean_dim(2).squeeze_dim(2);
        let gates =
            self.write.as_ref().map(|write| sigmoid(project(all, write.val().transpose())) * 2.0);
        Found { h, open, gates }
    }

    /// The parameters of the fused form.
    fn params(&self) -> Tensor<1> {
        let flat = |matrix: &Param<Tensor<2>>| matrix.val().flatten(0, 1);
        let mut parts = vec![flat(&self.gamma) + 1.0, flat(&self.read_down)];
        parts.extend(self.write.as_ref().map(flat));
        parts.push(flat(&self.read_up));
        join(parts)
    }
}

/// `h = mean_i G_i * rms(H_i) (1 + gamma_i); H'_i = H_i + s_i sub_l(h)`.
#[derive(Module, Debug)]
pub struct GatedResidual {
    sites: Vec<GatedReader>,
    out: GatedReader,
    eps: f64,
    #[module(skip)]
    skipping: Option<Skipping>,
}

impl GatedResidual {
    fn rule(&self, sites: impl Iterator<Item = Site>, mode: &StepMode) -> Option<Skip> {
        Some(self.skipping.as_ref()?.rule(sites, &mode.forced))
    }

    fn read_at(
        &self,
        place: Place,
        reader: &GatedReader,
        streams: &Tensor<4>,
        traversal: &mut Traversal,
    ) -> Found {
        let found = reader.find(streams, self.eps);
        show(traversal, place, Signal::Reading, || found.h.clone());
        // How much of a stream is read, over its channels.
        show_streams(traversal, place, Signal::PoolWeights, || {
            let n = found.open.dims()[2] as f64;
            found.open.clone().mean_dim(3) / n
        });
        found
    }
}

impl Residual for GatedResidual {
    /// `[B, T, n, d]`
    type State = Tensor<4>;
    type Ticket = Opening;

    fn open(&self, embedding: Tensor<3>) -> Tensor<4> {
        let [n, _] = self.out.gamma.dims();
        embedding.unsqueeze_dim::<4>(2).repeat_dim(2, n)
    }

    fn read(&self, site: Site, streams: &Tensor<4>, traversal: &mut Traversal) -> Read<Opening> {
        let place = Place::Site(site);
        let Found { h, gates, .. } =
            self.read_at(place, &self.sites[site.index], streams, traversal);
        let gates = gates.unwrap_or_else(|| unreachable!("only the head's reader has no gates"));
        show_per_stream(traversal, place, Signal::Gates, || gates.clone());
        let rule = self.rule((0..self.sites.len()).map(Site::new), traversal.mode);
        let (ticket, route) = open(rule, site, gates, traversal);
        Read { input: h, route, ticket }
    }

    fn write(
        &self,
        site: Site,
        streams: Tensor<4>,
        Opening { gates, skipped }: Opening,
        output: Tensor<3>,
        traversal: &mut Traversal,
    ) -> Tensor<4> {
        let written = gates.unsqueeze_dim::<4>(3) * output.unsqueeze_dim::<4>(2);
        let streams = unless_skipped(skipped, streams.clone(), streams + written);
        show_streams(traversal, Place::Site(site), Signal::Streams, || streams.clone());
        streams
    }

    fn between(&self, _: Place, streams: &Tensor<4>) -> Option<Tensor<4>> {
        Some(streams.clone())
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        let reader = |junction: &Junction| match junction.to {
            Place::Site(site) => self.sites[site.index].params(),
            Place::Out => self.out.params(),
        };
        junctions.iter().map(reader).collect()
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        let [streams, width] = self.out.gamma.lazy_shape().dims();
        let [rank, _] = self.out.read_down.lazy_shape().dims();
        let settings = GrSettings {
            width,
            streams,
            rank,
            eps: self.eps as f32,
            exact: options.memory.kept_share.is_none(),
            skip: self.rule(readers(junctions), options.mode),
        };
        Some(Box::new(Gr::new(settings, junctions.len() - 1, options.keep)))
    }

    fn set_skipping(&mut self, skipping: Option<Skipping>) {
        self.skipping = skipping;
    }

    fn close(&self, streams: Tensor<4>, traversal: &mut Traversal) -> Tensor<3> {
        self.read_at(Place::Out, &self.out, &streams, traversal).h
    }
}

#[cfg(test)]
mod tests;
