//! Mixture-of-Depths: some blocks run for a few tokens of each sequence, and a router chooses them.
//!
//! In a routed block each token has a weight `z_t = <w, x_t>`. Of a sequence of T tokens the
//! `k = ceil(capacity T)` with the largest weights run, the earlier ones where weights are equal:
//!
//! `x'_t = x_t + z_t (a_t + m_t)` with `a = attn(norm(x))` and `m = mlp(norm(x + a))`, else `x'_t = x_t`.
//!
//! The paper writes `z_t f_t`; that f is all that the block writes, attention and MLP together, is our
//! reading. Tokens that do not run have no keys in the block. The factor z sends gradient into the router.
//! All other blocks are PreNorm's. Raposo et al., "Mixture-of-Depths: Dynamically allocating compute in
//! transformer-based language models", arXiv 2404.02258.

mod router;

use crate::additive::additive_cost;
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InvalidPolicy, Numbering, PolicyConfig, Update};
use crate::probe::{Place, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site, SubLayerKind};
use crate::skip::SkippedKeys;
use crate::traversal::Traversal;
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use router::{Choice, Inside, Routers, Routing};
use serde::{Deserialize, Serialize};

/// Settings of [`MixtureOfDepths`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MixtureOfDepthsConfig {
    /// Share of each sequence's tokens that run a routed block.
    pub capacity: f64,
    /// One block in every `every` is routed: the last of them.
    pub every: usize,
}

/// The paper's best: an eighth of the tokens in every other block.
impl Default for MixtureOfDepthsConfig {
    fn default() -> Self {
        Self { capacity: 0.125, every: 2 }
    }
}

impl MixtureOfDepthsConfig {
    fn routing(&self) -> Routing {
        Routing { capacity: self.capacity, every: self.every }
    }
}

impl PolicyConfig for MixtureOfDepthsConfig {
    type Policy = MixtureOfDepths;

    fn about(&self) -> About {
        About {
            kind: "mod",
            summary: "prenorm with blocks that run for a few tokens alone; a router chooses them",
            equation: "x' = x + F_l(x); in a routed block x' = x + z (attention + mlp), z = w.x, for the top tokens alone",
            state: "2 d",
            parameters: "33 d + 65 for each routed block",
            paper: "Raposo et al. 2024 (Mixture-of-Depths), arXiv 2404.02258",
        }
    }

    fn check(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        let Self { capacity, every } = *self;
        if !(capacity > 0.0 && capacity <= 1.0) {
            return Err(self.refuse(format!(
                "capacity is {capacity}, but it is the share of tokens that run a routed block: above 0, at most 1"
            )));
        }
        let blocks = dimensions.full_depth();
        if every == 0 || every > blocks {
            return Err(self.refuse(format!(
                "every is {every}, but one block in so many is routed: with {blocks} blocks it is between 1 and {blocks}"
            )));
        }
        Ok(())
    }

    fn never_prenorm(&self) -> &'static str {
        "its routed blocks run some tokens only, and weigh what they write by the router"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (plain, routing) = (additive_cost(dimensions), self.routing().cost(dimensions));
        Cost { flops: plain.flops + routing.flops, state: plain.state + routing.state }
    }

    /// No block waits for its end there.
    fn handed_over(&self, _: usize, dimensions: &Dimensions) -> u64 {
        additive_cost(dimensions).state
    }

    fn kept_plainly(&self, dimensions: &Dimensions) -> u64 {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        (sites + 1) * d + self.routing().kept(dimensions)
    }

    /// The router and its predictor are judged by their decisions, not by their size.
    fn update(&self, name: &str, shape: &[usize]) -> Update {
        if name.contains(".predictor.") { Update::Plain } else { Update::by_shape(shape) }
    }

    fn skipped_keys(&self) -> SkippedKeys {
        SkippedKeys::Drop
    }

    fn running(&self, block: usize, time: usize, dimensions: &Dimensions) -> usize {
        let routing = self.routing();
        if routing.routes(block, dimensions) { routing.running(time) } else { time }
    }

    fn deciding(&self, site: Site, dimensions: &Dimensions) -> u64 {
        let decides = self.routing().routes(site.block(), dimensions) && !ends_block(site);
        if decides { Routing::deciding(dimensions.width as u64) } else { 0 }
    }

    fn depends_on_depth(&self) -> bool {
        true
    }

    fn numbering(&self) -> Numbering {
        Numbering::Blocks
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> MixtureOfDepths {
        MixtureOfDepths {
            norms: sub_layer_norms(dimensions, weights),
            final_norm: final_norm(dimensions, weights),
            routers: self.routing().init(dimensions, weights),
        }
    }
}

/// PreNorm whose routed blocks run for chosen tokens alone.
#[derive(Module, Debug)]
pub struct MixtureOfDepths {
    norms: Vec<RmsNorm>,
    final_norm: RmsNorm,
    routers: Routers,
}

/// The one stream.
pub struct Stream {
    /// What the next sub-layer reads, `[B, T, d]`
    x: Tensor<3>,
    /// The unfinished part of a routed block.
    inside: Option<Inside>,
    /// The losses that predictors learn from.
    lessons: Vec<Tensor<1>>,
}

/// Whether a block ends at a site.
fn ends_block(site: Site) -> bool {
    site.kind() == SubLayerKind::Mlp
}

impl Residual for MixtureOfDepths {
    type State = Stream;
    /// `None` in blocks that are not routed.
    type Ticket = Option<Choice>;

    fn open(&self, embedding: Tensor<3>) -> Stream {
        Stream { x: embedding, inside: None, lessons: Vec::new() }
    }

    fn read(&self, site: Site, stream: &Stream, traversal: &mut Traversal) -> Read<Option<Choice>> {
        let Stream { x, inside, .. } = stream;
        show(traversal, Place::Site(site), Signal::Reading, || x.clone());
        let choice = match inside {
            Some(inside) => Some(inside.choice.clone()),
            None => self.routers.choose(site, x, traversal),
        };
        let input = self.norms[site.index].forward(x.clone());
        let Some(choice) = choice else { return Read::all(input, None) };
        show(traversal, Place::Site(site), Signal::Skipped, || choice.skips());
        Read { input, route: choice.route(), ticket: Some(choice) }
    }

    fn write(
        &self,
        site: Site,
        stream: Stream,
        choice: Option<Choice>,
        y: Tensor<3>,
        _: &mut Traversal,
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
        if ends_block(site) {
            Stream { x: inside.leave(), inside: None, lessons }
        } else {
            Stream { x: inside.reading(), inside: Some(inside), lessons }
        }
    }

    /// A routed block ends where its MLP would be, even without it.
    fn without(&self, site: Site, stream: Stream) -> Stream {
        match stream {
            Stream { inside: Some(inside), lessons, .. } if ends_block(site) => {
                Stream { x: inside.leave(), inside: None, lessons }
            }
            stream => stream,
        }
    }

    /// The mean over routed blocks, so that depth does not decide how much of a clipped gradient is theirs.
    fn extra_loss(&self, stream: &Stream) -> Option<Tensor<1>> {
        let blocks = stream.lessons.len();
        let sum = stream.lessons.iter().cloned().reduce(|sum, lesson| sum + lesson)?;
        Some(sum / blocks as f64)
    }

    fn close(&self, Stream { x, .. }: Stream, traversal: &mut Traversal) -> Tensor<3> {
        show(traversal, Place::Out, Signal::Reading, || x.clone());
        self.final_norm.forward(x)
    }
}

#[cfg(test)]
mod tests;
