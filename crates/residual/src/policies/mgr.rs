//! Multi-Gate Residuals: n streams, gated writes, attention-pooled reads.
//!
//! Stream 1 is the embedding and the first n-1 sub-layers append theirs. From then on every stream
//! moves towards the write by its own gate, `s'_i = s_i + beta_i (f - s_i)`, with
//! `u_i = w . rms(s_i) / sqrt(d)` and (Eq. 2, 3)
//!
//! - independent: `beta_i = sigmoid(u_i + b_i)`
//! - competitive: `beta_i = exp(u_i + b_i) / (exp(b_0) + sum_j exp(u_j + b_j))`
//!
//! A reader pools the streams, `h = sum_i softmax_i(w . rms(s_i) / sqrt(d)) s_i` (Eq. 1). No stream
//! can grow beyond the largest write, and every update can be undone. Gates start nearly closed, by
//! Eq. 14: `beta = 1/X`, `X = sqrt(gated / 21) (e^3 + 1)`. arXiv 2605.23259.

mod gate;
mod streams;

use crate::fused::{FusedOptions, Junction, gain, join, readers};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InitialGate, InvalidPolicy, PolicyConfig, check_streams};
use crate::pool::Pooled;
use crate::probe::{Place, Signal, show, show_per_stream, show_streams};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::skip::{Opening, SkippedKeys, Skipping, StepMode, Thresholds, is_default, open};
use crate::traversal::Traversal;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use gate::{IndependentStart, MultiGateKind, StreamGate, scaled};
use hadal_cpu::streams::mgr::{self, Gate, Mgr, Settings};
use hadal_cpu::streams::{Skip, Stream};
use serde::{Deserialize, Serialize};
use streams::{Reading, Streams};

/// Settings of [`MultiGate`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MultiGateConfig {
    /// Number of streams.
    pub streams: usize,
    /// How gates relate to each other.
    pub gate: MultiGateKind,
    /// How the independent gate starts; without effect on the competitive one.
    #[serde(skip_serializing_if = "is_default")]
    pub independent_start: IndependentStart,
    /// Tokens whose widest gate is smaller than this skip the sub-layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_threshold: Option<Thresholds>,
    /// The share of the threshold that is taken off the widest gate of running tokens; the other gates follow.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_shrink: f64,
    /// What becomes of the keys of tokens that skip an attention.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_kv: SkippedKeys,
}

impl Default for MultiGateConfig {
    fn default() -> Self {
        Self {
            streams: 4,
            gate: MultiGateKind::default(),
            independent_start: IndependentStart::default(),
            skip_threshold: None,
            skip_shrink: 0.0,
            skip_kv: SkippedKeys::Keep,
        }
    }
}

/// Beyond twice the deepest model, where every sub-layer would have a stream of its own.
const MOST_STREAMS: usize = 16_384;

impl MultiGateConfig {
    /// Sub-layers that gate instead of appending.
    fn gated(&self, dimensions: &Dimensions) -> usize {
        dimensions.sites().saturating_sub(self.streams - 1)
    }

    /// X of Eq. 14: the inverse of the initial gate.
    fn inverse_gate(&self, dimensions: &Dimensions) -> f64 {
        (self.gated(dimensions) as f64 / 21.0).sqrt() * (3f64.exp() + 1.0)
    }

    /// The n that enters Eq. 14.
    fn competitors(&self) -> f64 {
        match (self.gate, self.independent_start) {
            (MultiGateKind::Independent, IndependentStart::Derived) => 1.0,
            _ => self.streams as f64,
        }
    }

    /// `ln(X - n)` of Eq. 14; zero where it does not exist, which only matters to models whose weights are
    /// made up: fresh ones are refused there.
    fn initial_logit(&self, dimensions: &Dimensions) -> f64 {
        let rest = self.inverse_gate(dimensions) - self.competitors();
        if rest > 0.0 { rest.ln() } else { 0.0 }
    }
}

impl PolicyConfig for MultiGateConfig {
    type Policy = MultiGate;

    fn about(&self) -> About {
        About {
            kind: "mgr",
            summary: "n streams with gated writes and attention-pooled reads; bounded and invertible",
            equation: "h = sum_i softmax_i(w.rms(s_i)/sqrt(d)) s_i; s'_i = s_i + beta_i (F_l(h) - s_i)",
            state: "n d",
            parameters: "d L + (d + n [+ 1]) (L - n + 1)",
            paper: "Multi-Gate Residuals 2026, arXiv 2605.23259",
        }
    }

    fn check(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams(self, self.streams, MOST_STREAMS)?;
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

    /// The first sub-layers fill the streams.
    fn always_run(&self) -> usize {
        self.streams.saturating_sub(1)
    }

    fn check_start(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        let (x, n) = (self.inverse_gate(dimensions), self.competitors());
        if self.gated(dimensions) == 0 || x > n {
            return Ok(());
        }
        Err(self.refuse(format!(
            "{} streams leave {} gated sub-layers in {} blocks, and Eq. 14 has no initial gate there: \
             sqrt({}/21) (e^3 + 1) = {x:.2} must exceed {n}; use fewer streams or more blocks",
            self.streams,
            self.gated(dimensions),
            dimensions.blocks,
            self.gated(dimensions),
        )))
    }

    fn never_prenorm(&self) -> &'static str {
        "its gates take from a stream what they give to a write"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites, n) =
            (dimensions.width as u64, dimensions.sites() as u64, self.streams as u64);
        let gated = self.gated(dimensions) as u64;
        // Readers see the streams present: 2, .. n, then always n. One RMS per changed stream.
        let read: u64 = (1..=sites).map(|l| n.min(l + 1)).sum();
        let changed = 1 + (sites - gated) + gated * n;
        Cost {
            flops: read * 4 * d
                + gated * n * 5 * d
                + changed * 2 * d
                + sites * Cost::norm(d)
                + Cost::norm(d),
            state: n.min(sites + 1) * d,
        }
    }

    /// A stream for the embedding and each write, up to their number.
    fn handed_over(&self, blocks: usize, dimensions: &Dimensions) -> u64 {
        (self.streams.min(2 * blocks + 1) * dimensions.width) as u64
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        if self.gated(dimensions) == 0 || self.check_start(dimensions).is_err() {
            return Vec::new();
        }
        let (x, n) = (self.inverse_gate(dimensions), self.streams as f64);
        let first = self.streams - 1;
        match self.gate {
            MultiGateKind::Competitive => vec![
                InitialGate::alike("beta", first, dimensions, 1.0 / x),
                InitialGate::alike("forget", first, dimensions, 1.0 - n / x),
            ],
            MultiGateKind::Independent => {
                let beta = 1.0 / (1.0 + x - self.competitors());
                vec![InitialGate::alike("beta", first, dimensions, beta)]
            }
        }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> MultiGate {
        let sites = dimensions.sites();
        let start = self.initial_logit(dimensions) as f32;
        MultiGate {
            norms: sub_layer_norms(dimensions, weights),
            queries: (1..sites).map(|l| query(&l.to_string(), dimensions, weights)).collect(),
            out: query("out", dimensions, weights),
            gates: (self.streams - 1..sites)
                .map(|l| StreamGate::new(self, l, start, dimensions, weights))
                .collect(),
            final_norm: final_norm(dimensions, weights),
            streams: self.streams,
            eps: dimensions.norm_eps,
            skipping: self.skipping(),
        }
    }
}

fn query(place: &str, dimensions: &Dimensions, weights: &mut Weights) -> Param<Tensor<1>> {
    weights.param(format!("residual.{place}.pool.weight"), [dimensions.width], Init::ZEROS)
}

/// `h = sum_i alpha_i s_i; s'_i = s_i + beta_i (F_l(h) - s_i)`.
#[derive(Module, Debug)]
pub struct MultiGate {
    norms: Vec<RmsNorm>,
    /// The queries of every sub-layer but the first, which reads the embedding.
    queries: Vec<Param<Tensor<1>>>,
    out: Param<Tensor<1>>,
    /// The gates of every sub-layer after the streams are filled.
    gates: Vec<StreamGate>,
    final_norm: RmsNorm,
    streams: usize,
    eps: f64,
    #[module(skip)]
    skipping: Option<Skipping>,
}

impl MultiGate {
    fn rule(&self, sites: impl Iterator<Item = Site>, mode: &StepMode) -> Option<Skip> {
        Some(self.skipping.as_ref()?.rule(sites, &mode.forced))
    }

    fn gate(&self, site: Site) -> Option<&StreamGate> {
        self.gates.get(site.index.checked_sub(self.streams - 1)?)
    }
}

impl Residual for MultiGate {
    type State = Streams;
    /// `None` while streams are being filled.
    type Ticket = Option<Opening>;

    fn open(&self, embedding: Tensor<3>) -> Streams {
        Streams::new(embedding, self.streams, self.eps)
    }

    fn read(
        &self,
        site: Site,
        streams: &Streams,
        traversal: &mut Traversal,
    ) -> Read<Option<Opening>> {
        let place = Place::Site(site);
        let query = site.index.checked_sub(1).map(|query| scaled(&self.queries[query]));
        let (Reading { value: h, weights }, gates) = streams.read(query, self.gate(site), self.eps);
        if let Some(weights) = weights {
            show_per_stream(traversal, place, Signal::PoolWeights, || weights);
        }
        show(traversal, place, Signal::Reading, || h.clone());
        if let Some(gates) = &gates {
            show_per_stream(traversal, place, Signal::Gates, || gates.clone());
        }
        let decision = gates.map(|gates| {
            let rule = self.rule((0..self.norms.len()).map(Site::new), traversal.mode);
            open(rule, site, gates, traversal)
        });
        let (ticket, route) = decision.map_or((None, None), |(open, route)| (Some(open), route));
        Read { input: self.norms[site.index].forward(h), route, ticket }
    }

    fn write(
        &self,
        site: Site,
        streams: Streams,
        opening: Option<Opening>,
        output: Tensor<3>,
        traversal: &mut Traversal,
    ) -> Streams {
        let streams = match opening {
            None => streams.with(output, self.eps),
            Some(opening) => streams.moved(opening, output, self.eps),
        };
        show_streams(traversal, Place::Site(site), Signal::Streams, || streams.all());
        streams
    }

    /// Later gates expect every stream to be there.
    fn required_because(&self, site: Site) -> Option<&'static str> {
        (site.index < self.streams - 1 && !self.gates.is_empty())
            .then_some("it fills one of the streams that all later gates expect")
    }

    fn between(&self, _: Place, streams: &Streams) -> Option<Tensor<4>> {
        Some(streams.all())
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        let params = junctions.iter().map(|junction| {
            let mut parts = Vec::new();
            if let Some(gate) = junction.from.and_then(|site| self.gate(site)) {
                parts.extend([scaled(&gate.weight), gate.bias.val()]);
            }
            if junction.from.is_some() {
                parts.push(scaled(match junction.to {
                    Place::Out => &self.out,
                    Place::Site(site) => &self.queries[site.index - 1],
                }));
            }
            parts.push(gain(&self.norms, &self.final_norm, junction.to));
            // The gates of the next sub-layer decide which tokens run it, before it runs.
            if self.skipping.is_some()
                && let Place::Site(site) = junction.to
                && let Some(gate) = self.gate(site)
            {
                parts.extend([scaled(&gate.weight), gate.bias.val()]);
            }
            join(parts)
        });
        params.collect()
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        let gate = match self.gates.first().map(|gate| gate.kind) {
            Some(MultiGateKind::Independent) => Gate::Independent,
            _ => Gate::Competitive,
        };
        let settings = Settings {
            width: self.out.lazy_shape()[0],
            eps: self.eps as f32,
            streams: self.streams,
            gate,
            memory: match options.memory.kept_share {
                Some(share) => mgr::Memory::Inversion { share },
                None => mgr::Memory::Exact,
            },
            skip: self.rule(readers(junctions), options.mode),
        };
        Some(Box::new(Mgr::new(settings, junctions.len(), options.keep)))
    }

    fn set_skipping(&mut self, skipping: Option<Skipping>) {
        self.skipping = skipping;
    }

    fn close(&self, streams: Streams, traversal: &mut Traversal) -> Tensor<3> {
        let Pooled { value, weights } = streams.pool(scaled(&self.out), self.eps);
        show(traversal, Place::Out, Signal::Reading, || value.clone());
        show_per_stream(traversal, Place::Out, Signal::PoolWeights, || weights);
        self.final_norm.forward(value)
    }
}

#[cfg(test)]
mod tests;
