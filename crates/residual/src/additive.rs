//! One stream to which every sub-layer adds: the module of PreNorm, LayerNorm Scaling, PostNorm, DeepNorm, Mix-LN,
//! Sandwich, output norms, KEEL and lambdas.
//!
//! They differ in the places of their norms and in what they multiply. At sub-layer l
//!
//! `x' = after_l(carry_l x + factor_l write_l(sub_l(scale_l before_l(x))))`
//!
//! where each of the three norms may be missing, and the head reads `final_norm(x)`, or x where there is none. Some change
//! the stream between blocks, too (`BlockNumbers`), or weigh its channels (`ChannelGate`).
//!
//! # Absent sub-layers
//! What happens between blocks belongs to a block: it happens if one of the block's sub-layers is there. Without both, the
//! block is no more, as in a model from which it was cut.

mod junctions;
mod parts;

pub(crate) use parts::{AdditiveSite, Backout, BlockMix, ChannelGate, EmbedNorm};

use crate::fused::{FusedOptions, Junction};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::Cost;
use crate::probe::{Place, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site, SubLayerKind};
use crate::traversal::Traversal;
use crate::weights::Weights;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_cpu::streams::Stream;
use hadal_kernels::rms;
use parts::BlockNumbers;

/// The stream's norms and weights.
#[derive(Module, Debug)]
pub struct Additive {
    embed_norm: Option<EmbedNorm>,
    sites: Vec<AdditiveSite>,
    /// One for each block, all of one kind, or none at all.
    blocks: Vec<BlockNumbers>,
    backout: Option<Backout>,
    final_norm: Option<RmsNorm>,
    width: usize,
    eps: f64,
}

/// The stream, and what of earlier depths is added to it later.
pub struct AdditiveState {
    pub(crate) x: Tensor<3>,
    /// The stream before the first block.
    embedding: Tensor<3>,
    /// The stream that the read-out takes off, once it is known.
    middle: Option<Tensor<3>>,
    /// The sub-layer that wrote last.
    last: Option<Site>,
}

impl AdditiveState {
    /// Whether a sub-layer of this block wrote.
    fn is_in(&self, block: usize) -> bool {
        self.last.is_some_and(|site| site.block() == block)
    }
}

impl Additive {
    /// One norm for each sub-layer, which `site` puts in its place, and none before the head.
    pub(crate) fn new(
        dimensions: &Dimensions,
        weights: &mut Weights,
        mut site: impl FnMut(Site, RmsNorm) -> AdditiveSite,
    ) -> Self {
        let norms = sub_layer_norms(dimensions, weights);
        Self {
            embed_norm: None,
            sites: dimensions.each_site().zip(norms).map(|(at, norm)| site(at, norm)).collect(),
            blocks: Vec::new(),
            backout: None,
            final_norm: None,
            width: dimensions.width,
            eps: dimensions.norm_eps,
        }
    }

    /// The same with a norm before the head.
    pub(crate) fn with_final_norm(self, dimensions: &Dimensions, weights: &mut Weights) -> Self {
        Self { final_norm: Some(final_norm(dimensions, weights)), ..self }
    }

    /// The same with a norm of the embedding.
    pub(crate) fn with_embed_norm(self, embed_norm: Option<EmbedNorm>) -> Self {
        Self { embed_norm, ..self }
    }

    /// The same with a number after each block.
    pub(crate) fn with_scales(self, scales: Vec<Param<Tensor<1>>>) -> Self {
        Self { blocks: scales.into_iter().map(BlockNumbers::After).collect(), ..self }
    }

    /// The same with a mix before each block, and perhaps a stream that the read-out takes off.
    pub(crate) fn with_mixes(self, mixes: Vec<BlockMix>, backout: Option<Backout>) -> Self {
        Self { blocks: mixes.into_iter().map(BlockNumbers::Before).collect(), backout, ..self }
    }

    /// The norm before a reader and its factor, if it has one.
    fn before(&self, reader: Place) -> Option<(&RmsNorm, f64)> {
        match reader {
            Place::Site(site) => {
                let AdditiveSite { before, scale, .. } = &self.sites[site.index];
                Some((before.as_ref()?, *scale))
            }
            Place::Out => Some((self.final_norm.as_ref()?, 1.0)),
        }
    }

    /// The stream at a sub-layer: what comes before a block comes before the first sub-layer of it that is there.
    fn begun(&self, site: Site, state: &AdditiveState) -> Tensor<3> {
        let x = state.x.clone();
        match self.blocks.get(site.block()) {
            Some(BlockNumbers::Before(mix)) if !state.is_in(site.block()) => {
                mix.forward(x, state.embedding.clone())
            }
            _ => x,
        }
    }

    /// What comes after a block, if one of its sub-layers was there.
    fn ended(&self, block: usize, mut state: AdditiveState) -> AdditiveState {
        if let Some(BlockNumbers::After(scale)) = self.blocks.get(block)
            && state.is_in(block)
        {
            state.x = state.x * scale.val().unsqueeze();
        }
        if self.backout.as_ref().is_some_and(|backout| backout.blocks == block + 1) {
            state.middle = Some(state.x.clone());
        }
        state
    }
}

/// A norm and an addition at each sub-layer, and the final norm.
pub(crate) fn additive_cost(dimensions: &Dimensions) -> Cost {
    let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
    Cost { flops: sites * (Cost::norm(d) + d) + Cost::norm(d), state: d }
}

/// The same with a multiplication of a row at each sub-layer.
pub(crate) fn with_scaling(cost: Cost, dimensions: &Dimensions) -> Cost {
    Cost { flops: cost.flops + dimensions.sites() as u64 * dimensions.width as u64, ..cost }
}

/// The number, from 0, that a sub-layer had before blocks were cut out.
pub(crate) fn depth_of_site(site: Site, dimensions: &Dimensions) -> usize {
    2 * dimensions.depth_of(site.block()) + site.index % 2
}

impl Residual for Additive {
    type State = AdditiveState;
    /// The stream that the sub-layer's write is added to.
    type Ticket = Tensor<3>;

    fn open(&self, embedding: Tensor<3>) -> AdditiveState {
        let x = match &self.embed_norm {
            Some(norm) => norm.forward(embedding),
            None => embedding,
        };
        AdditiveState { embedding: x.clone(), x, middle: None, last: None }
    }

    fn read(
        &self,
        site: Site,
        state: &AdditiveState,
        traversal: &mut Traversal,
    ) -> Read<Tensor<3>> {
        let x = self.begun(site, state);
        show(traversal, Place::Site(site), Signal::Reading, || x.clone());
        let input = match self.before(Place::Site(site)) {
            None => x.clone(),
            Some((norm, 1.0)) => norm.forward(x.clone()),
            Some((norm, scale)) => norm.forward(x.clone()) * scale,
        };
        Read::all(input, x)
    }

    fn write(
        &self,
        site: Site,
        state: AdditiveState,
        x: Tensor<3>,
        y: Tensor<3>,
        traversal: &mut Traversal,
    ) -> AdditiveState {
        let AdditiveSite { write, gate, factor, carry, after, .. } = &self.sites[site.index];
        let mut x = if *carry == 1.0 { x } else { x * *carry };
        let mut y = match write {
            Some(norm) => norm.forward(y),
            None => y,
        };
        if let Some(gate) = gate {
            let (open, carried) = gate.weights();
            let [batch, time, width] = y.dims();
            show(traversal, Place::Site(site), Signal::Gates, || {
                open.clone().unsqueeze::<3>().expand([batch, time, width])
            });
            y = rms(y, self.eps) * open.unsqueeze();
            x = x * carried.unsqueeze();
        }
        let sum = x + if *factor == 1.0 { y } else { y * *factor };
        let x = match after {
            Some(norm) => norm.forward(sum),
            None => sum,
        };
        self.without(site, AdditiveState { x, last: Some(site), ..state })
    }

    /// A block ends where its MLP would be.
    fn without(&self, site: Site, state: AdditiveState) -> AdditiveState {
        match site.kind() {
            SubLayerKind::Attention => state,
            SubLayerKind::Mlp => self.ended(site.block(), state),
        }
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        self.adding(junctions, options.keep)
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        self.of_junctions(junctions)
    }

    fn close(&self, state: AdditiveState, traversal: &mut Traversal) -> Tensor<3> {
        let AdditiveState { mut x, embedding, middle, .. } = state;
        if let Some(Backout { weight, .. }) = &self.backout {
            x = x - middle.unwrap_or(embedding) * weight.val().unsqueeze();
        }
        show(traversal, Place::Out, Signal::Reading, || x.clone());
        match &self.final_norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}
