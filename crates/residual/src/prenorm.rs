//! PreNorm: `x' = x + F_l(x)`, the residual stream of GPT-2 and of almost every model since.
//!
//! Every sub-layer adds to one stream, so the stream's norm grows with depth and each later write
//! weighs less. Xiong et al., "On Layer Normalization in the Transformer Architecture",
//! arXiv 2002.04745. With `capacity` it is the original Mixture-of-Depths, in
//! [`crate::mixture_of_depths`].

use crate::fused::{Fused, Memory, Passage, gain};
use crate::mixture_of_depths::{Choice, Inside, MixtureOfDepths, Routing, ends_block};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InvalidPolicy, PolicyConfig};
use crate::probe::{Place, Probe, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::skip::{Conduct, SkippedKeys};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Additive, AdditiveStep};
use serde::{Deserialize, Serialize};

/// Settings of [`PreNorm`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PreNormConfig {
    /// Share of each sequence's tokens that run a routed block. Without it no block is routed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<f64>,
    /// One block in so many is routed, the last of them.
    #[serde(skip_serializing_if = "is_usual")]
    pub every: usize,
}

/// The paper's best: every other block.
const EVERY: usize = 2;

fn is_usual(every: &usize) -> bool {
    *every == EVERY
}

impl Default for PreNormConfig {
    fn default() -> Self {
        Self { capacity: None, every: EVERY }
    }
}

impl PreNormConfig {
    fn routing(&self) -> Option<Routing> {
        Some(Routing { capacity: self.capacity?, every: self.every })
    }
}

impl PolicyConfig for PreNormConfig {
    type Policy = PreNorm;

    const ABOUT: About = About {
        kind: "prenorm",
        summary: "every sub-layer adds to one stream; the baseline, and with a capacity Mixture-of-Depths",
        equation: "x' = x + F_l(x); in a routed block x' = x + z (attention + mlp), z = w.x, for the top tokens alone",
        state: "d (2 d in a routed block)",
        parameters: "0 (33 d + 65 for each routed block)",
        paper: "Xiong et al. 2020, arXiv 2002.04745; capacity: Raposo et al. 2024, arXiv 2404.02258",
    };

    fn check(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        match self.routing() {
            Some(routing) => routing.check::<Self>(dimensions),
            None if is_usual(&self.every) => Ok(()),
            None => Err(Self::refuse(format!(
                "every is {}, but no block is routed without a capacity, such as capacity=0.125",
                self.every
            ))),
        }
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let plain = additive_cost(dimensions);
        let routing = self.routing().map(|routing| routing.cost(dimensions)).unwrap_or_default();
        Cost {
            flops: plain.flops + routing.flops,
            state: plain.state + routing.state,
            saved: plain.saved + routing.saved,
        }
    }

    fn skipped_keys(&self) -> SkippedKeys {
        if self.capacity.is_some() { SkippedKeys::Drop } else { SkippedKeys::Keep }
    }

    fn running(&self, block: usize, time: usize) -> usize {
        match self.routing() {
            Some(routing) if routing.routes(block) => routing.running(time),
            _ => time,
        }
    }

    fn deciding(&self, site: Site, width: u64) -> u64 {
        match self.routing() {
            Some(routing) if routing.routes(site.block()) && !ends_block(site) => {
                Routing::deciding(width)
            }
            _ => 0,
        }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> PreNorm {
        PreNorm {
            norms: sub_layer_norms(dimensions, weights),
            final_norm: final_norm(dimensions, weights),
            mixture: self.routing().map(|routing| routing.init(dimensions, weights)),
        }
    }
}

/// A norm and an addition at each sub-layer, and the final norm; one stream is kept at each read.
pub(crate) fn additive_cost(dimensions: &Dimensions) -> Cost {
    let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
    Cost { flops: sites * (Cost::norm(d) + d) + Cost::norm(d), state: d, saved: (sites + 1) * d }
}

/// `x' = x + F_l(x)`.
#[derive(Module, Debug)]
pub struct PreNorm {
    norms: Vec<RmsNorm>,
    final_norm: RmsNorm,
    mixture: Option<MixtureOfDepths>,
}

/// The one stream.
pub struct Stream {
    /// What the next sub-layer reads, `[B, T, d]`
    x: Tensor<3>,
    /// What is still to be done with it in a routed block.
    inside: Option<Inside>,
    /// What predictors are to learn from.
    lessons: Vec<Tensor<1>>,
}

impl Residual for PreNorm {
    type State = Stream;
    /// Nothing where everybody runs by design.
    type Ticket = Option<Choice>;

    fn open(&self, embedding: Tensor<3>) -> Stream {
        Stream { x: embedding, inside: None, lessons: Vec::new() }
    }

    fn read(&self, site: Site, stream: &Stream, probe: &mut dyn Probe) -> Read<Option<Choice>> {
        let Stream { x, inside, .. } = stream;
        show(probe, Place::Site(site), Signal::Reading, || x.clone());
        let choice = match (inside, &self.mixture) {
            (Some(inside), _) => Some(inside.choice.clone()),
            (None, Some(mixture)) => mixture.choose(site, x, probe),
            (None, None) => None,
        };
        let input = self.norms[site.index].forward(x.clone());
        let Some(choice) = choice else { return Read::all(input, None) };
        show(probe, Place::Site(site), Signal::Skipped, || choice.skips());
        Read { input, route: choice.route(), ticket: Some(choice) }
    }

    fn write(
        &self,
        site: Site,
        stream: Stream,
        choice: Option<Choice>,
        y: Tensor<3>,
        _: &mut dyn Probe,
    ) -> Stream {
        let Stream { x, inside, mut lessons } = stream;
        let Some(mut choice) = choice else {
            return Stream { x: x + y, inside, lessons };
        };
        let inside = match inside {
            Some(inside) => inside,
            None => {
                lessons.extend(choice.take_lesson());
                Inside::enter(choice, x)
            }
        };
        let inside = inside.write(y);
        match ends_block(site) {
            true => Stream { x: inside.leave(), inside: None, lessons },
            false => Stream { x: inside.reading(), inside: Some(inside), lessons },
        }
    }

    /// A routed block ends where its MLP would be, even without it.
    fn pass(&self, site: Site, stream: Stream) -> Stream {
        match stream {
            Stream { inside: Some(inside), lessons, .. } if ends_block(site) => {
                Stream { x: inside.leave(), inside: None, lessons }
            }
            stream => stream,
        }
    }

    fn conduct(&mut self, conduct: &Conduct) {
        if let Some(mixture) = &mut self.mixture {
            mixture.learn(conduct.learning);
        }
    }

    /// The mean over routed blocks, so that depth does not decide how much of a clipped gradient is theirs.
    fn extra_loss(&self, stream: &Stream) -> Option<Tensor<1>> {
        let blocks = stream.lessons.len();
        let sum = stream.lessons.iter().cloned().reduce(|sum, lesson| sum + lesson)?;
        Some(sum / blocks as f64)
    }

    fn fused(&self, passages: &[Passage], _: &Memory, keep: bool) -> Option<Fused> {
        if self.mixture.is_some() {
            return None;
        }
        let reader = |passage: &Passage| gain(&self.norms, &self.final_norm, passage.to);
        let params: Vec<_> = passages.iter().map(reader).collect();
        let steps = vec![AdditiveStep { pre: Some(1.0), ..Default::default() }; passages.len()];
        let (width, eps) = (params[0].dims()[0], self.final_norm.eps() as f32);
        Some(Fused { stream: Box::new(Additive::new(width, eps, steps, keep)), params })
    }

    fn close(&self, Stream { x, .. }: Stream, probe: &mut dyn Probe) -> Tensor<3> {
        show(probe, Place::Out, Signal::Reading, || x.clone());
        self.final_norm.forward(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Recorder;
    use crate::testing::{
        assert_close, dimensions, fresh, growth_by_block, normal, random, watched,
    };

    #[test]
    fn the_head_reads_the_embedding_and_every_write() {
        let dimensions = dimensions(8, 3);
        let policy = random(&PreNormConfig::default(), &dimensions);
        let embedding = normal("embedding", [2, 3, 8]);
        let mut seen = Recorder::of(&[Signal::Write]);
        let out = watched(&policy, embedding.clone(), &dimensions, &mut seen);
        assert_eq!(seen.seen.len(), 6);
        let sum =
            seen.seen.into_iter().fold(embedding, |sum, (_, _, write)| sum + write.squeeze_dim(2));
        assert_close(out, policy.final_norm.forward(sum), 1e-6);
    }

    #[test]
    fn each_sub_layer_reads_through_its_own_norm() {
        let dimensions = dimensions(8, 2);
        let policy = random(&PreNormConfig::default(), &dimensions);
        let x = normal("x", [2, 3, 8]);
        for site in dimensions.each_site() {
            let name = format!(
                "layers.{}.{}_norm.weight",
                site.index / 2,
                if site.index % 2 == 0 { "attn" } else { "mlp" }
            );
            let gain = normal(&name, [8]) * 0.5 + 1.0;
            let Read { input, .. } =
                policy.read(site, &policy.open(x.clone()), &mut crate::probe::Silent);
            assert_close(input, hadal_kernels::rms(x.clone(), 1e-6) * gain.unsqueeze(), 1e-6);
        }
    }

    #[test]
    fn the_stream_grows_within_the_bounds_of_xiong() {
        let dimensions = dimensions(40, 12);
        let growth = growth_by_block(&fresh(&PreNormConfig::default(), &dimensions), &dimensions);
        for (block, mean_square) in growth.iter().enumerate() {
            let l = (block + 1) as f64;
            let (least, most) = (1.0 + l / 2.0, 1.0 + 1.5 * l);
            assert!((least..=most).contains(mean_square), "{mean_square} after {l} blocks");
        }
        // An independent simulation found 4.96, 10.53 and 15.45; both averages are noisy.
        for (blocks, expected) in [(4, 4.96), (8, 10.53), (12, 15.45)] {
            let found = growth[blocks - 1];
            assert!((found / expected - 1.0).abs() < 0.1, "{found} after {blocks} blocks");
        }
    }
}
