//! MUDDFormer: after every block, averages over the outputs of all blocks so far, with weights that depend on the token.
//!
//! `X_0` is the embedding and `X_i` what block i produced. With `c` ways,
//!
//! ```text
//! A = up gelu(down rms(X_i)) + weights      [c, i + 1] for each token; gelu with the error function
//! way w = sum_{j <= i} A[w, j] X_j
//! ```
//!
//! One way is what the next block is given. Four are what its attention makes queries, keys and values of, each with a
//! norm of its own, and what the block adds to. Behind the last block there is one way, the read-out. With `norms`
//! (PrePostDANorm, which deep models need) sources are `source_norm_j rms(X_j)`, `down` reads `weight_norm rms(X_i)`,
//! and ways become `X_i + way`, the last of them `X_i + out_norm rms(way)`.
//!
//! At the start `up` is zero and the weights are one for `X_i` alone, with norms zero: PreNorm. Xiao et al.,
//! "MUDDFormer", arXiv 2502.12170. MUDDFormer-2.8B is four ways, with more hidden units than ways times sources.

use crate::additive::additive_cost;
use crate::as_prenorm::{Chosen, PreNormModel, of_site};
use crate::averages::Averages;
use crate::fused::{FusedOptions, Junction, gain};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{
    About, Cost, InvalidPolicy, PolicyConfig, Released, Update, travels_by_number,
};
use crate::pool::project;
use crate::probe::{Place, Signal, show, show_per_stream, show_streams};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site, SubLayerKind};
use crate::traversal::Traversal;
use crate::unset::is_false;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_cpu::streams::{DenseSettings, Stream};
use hadal_kernels::rms;
use serde::{Deserialize, Serialize};

/// Query, key, value and residual.
const FOUR: usize = 4;

/// The start of the last norm where there are norms: small, so that the model begins as PreNorm.
const SMALL: f64 = 0.001;

/// Settings of [`Mudd`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MuddConfig {
    /// Averages after a block: one for the next block, or four for its query, key, value and residual.
    pub ways: usize,
    /// Whether sources and averages are normalised.
    #[serde(skip_serializing_if = "is_false")]
    pub norms: bool,
}

impl Default for MuddConfig {
    fn default() -> Self {
        Self { ways: FOUR, norms: false }
    }
}

impl MuddConfig {
    /// Ways after a block, counted from 1.
    fn ways_after(&self, block: usize, dimensions: &Dimensions) -> usize {
        if block == dimensions.blocks { 1 } else { self.ways }
    }
}

impl PolicyConfig for MuddConfig {
    type Policy = Mudd;

    fn about(&self) -> About {
        About {
            kind: "mudd",
            summary: "prenorm blocks followed by averages over all earlier blocks with weights of each token, for query, \
                      key, value and residual",
            equation: "A = up gelu(down rms(X_i)) + a; way_w = sum_{j<=i} A_wj X_j after block i",
            state: "(blocks + 1) d, with four ways (blocks + 4) d",
            parameters: "m d + m^2 + m for each block i = 1..blocks, m = ways (i + 1), one way after the last",
            paper: "Xiao et al. 2025, arXiv 2502.12170",
        }
    }

    fn released(&self) -> &'static [Released] {
        const { &[Released { name: "muddformer", models: "MUDDFormer", settings: "ways=4" }] }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        match self.ways {
            1 | FOUR => Ok(()),
            ways => Err(self.refuse(format!(
                "ways is {ways}, but there can be 1, for the next block, or 4, for its query, key, value and residual"
            ))),
        }
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let base = additive_cost(dimensions);
        let (d, blocks) = (dimensions.width as u64, dimensions.blocks as u64);
        let mut cost = Cost { state: (blocks + self.ways as u64) * d, ..base };
        for block in 1..=dimensions.blocks {
            let ways = self.ways_after(block, dimensions) as u64;
            let (sources, m) = (block as u64 + 1, ways * (block as u64 + 1));
            cost.flops += Cost::rms(d) + 2 * m * (d + m) + 2 * sources * ways * d;
            if ways == FOUR as u64 {
                cost.flops += 2 * Cost::norm(d);
            }
            if self.norms {
                // Gain of what `down` reads, source, last way, and the sums.
                cost.flops += d + 2 * Cost::norm(d) + ways * d;
            }
        }
        cost
    }

    /// Every output so far, and the averages behind the last one.
    fn handed_over(&self, blocks: usize, dimensions: &Dimensions) -> u64 {
        let ways = blocks.checked_sub(1).map_or(0, |_| self.ways_after(blocks, dimensions));
        ((blocks + 1 + ways) * dimensions.width) as u64
    }

    /// Averages weigh the blocks before their place, so they belong to the place.
    fn travels(&self, name: &str, _: &Dimensions) -> Option<(usize, String)> {
        travels_by_number(name, self.numbering()).filter(|_| !name.starts_with("residual.block."))
    }

    /// As it starts; queries, keys and values read through prenorm's one gain.
    fn as_prenorm<'a>(
        &'a self,
        prenorm: &'a PreNormModel<'a>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        Ok(Box::new(|name, _| match of_site(name)? {
            (site, "k_norm" | "v_norm") => prenorm.gain(Some(site)),
            _ => None,
        }))
    }

    fn update(&self, name: &str, shape: &[usize]) -> Update {
        // One row for each way, but no matrix.
        if name.ends_with(".weights") { Update::Plain } else { Update::by_shape(shape) }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Mudd {
        let (d, eps) = (dimensions.width, dimensions.norm_eps);
        let norms = sub_layer_norms(dimensions, weights);
        let apart = (1..dimensions.blocks)
            .filter(|_| self.ways == FOUR)
            .map(|block| {
                let mut norm = |part: &str| {
                    RmsNorm::new(format!("residual.{}.{part}_norm", 2 * block), d, eps, weights)
                };
                [norm("k"), norm("v")]
            })
            .collect();
        let source_norm = |block: usize, weights: &mut Weights| {
            let name = format!("residual.block.{block}.source_norm");
            self.norms.then(|| RmsNorm::new(name, d, eps, weights))
        };
        let embedding_norm = source_norm(0, weights);
        let ends = (1..=dimensions.blocks)
            .map(|block| {
                let ways = self.ways_after(block, dimensions);
                let (sources, m) = (block + 1, ways * (block + 1));
                let name = |part: &str| format!("residual.block.{block}.{part}");
                // One-hot on what the block produced; with norms that is added anyway.
                let newest = |at: usize| f32::from(u8::from(!self.norms && at % sources == block));
                let start = Init::Values((0..m).map(newest).collect());
                // The paper's N(0, 1/d), read as a variance.
                let std = (d as f64).sqrt().recip();
                BlockEnd {
                    weights: weights.param(name("weights"), [ways, sources], start),
                    down: weights.param(name("down"), [m, d], Init::Normal { std }),
                    up: weights.param(name("up"), [m, m], Init::ZEROS),
                    norms: source_norm(block, weights).map(|source| EndNorms {
                        source,
                        weight: RmsNorm::new(name("weight_norm"), d, eps, weights),
                        out: weights.param(name("out_norm"), [d], Init::Constant(SMALL)),
                    }),
                }
            })
            .collect();
        Mudd {
            norms,
            apart,
            embedding_norm,
            ends,
            final_norm: final_norm(dimensions, weights),
            eps,
        }
    }
}

/// PreNorm blocks with averages of each token's own after each.
#[derive(Module, Debug)]
pub struct Mudd {
    norms: Vec<RmsNorm>,
    /// Of keys and values, for every block but the first; none with one way.
    apart: Vec<[RmsNorm; 2]>,
    /// Of the embedding as a source.
    embedding_norm: Option<RmsNorm>,
    ends: Vec<BlockEnd>,
    final_norm: RmsNorm,
    eps: f64,
}

/// What happens behind a block.
#[derive(Module, Debug)]
struct BlockEnd {
    /// `[ways, sources]`
    weights: Param<Tensor<2>>,
    /// `[ways sources, d]`
    down: Param<Tensor<2>>,
    /// `[ways sources, ways sources]`
    up: Param<Tensor<2>>,
    norms: Option<EndNorms>,
}

/// The norms of a block's end.
#[derive(Module, Debug)]
struct EndNorms {
    /// Of what the block produced, as a source.
    source: RmsNorm,
    /// Of what the weights are computed from.
    weight: RmsNorm,
    /// Gain of the last way, `[d]`.
    out: Param<Tensor<1>>,
}

/// The stream inside a block, and what averages are taken of.
pub struct MuddState {
    x: Tensor<3>,
    /// One for the embedding and each finished block.
    sources: Vec<Tensor<3>>,
    /// What the next attention makes queries, keys and values of, if they are not the stream.
    apart: Option<[Tensor<3>; 3]>,
    /// The first way's weights of the sources, where the stream or the query is an average. `[B, T, sources]`
    weights: Option<Tensor<3>>,
}

impl BlockEnd {
    fn ways(&self) -> usize {
        self.weights.val().dims()[0]
    }

    /// The weights of each token, `[B, T, ways sources]`, from what the block produced.
    fn weigh(&self, x: Tensor<3>, eps: f64) -> Tensor<3> {
        let normed = match &self.norms {
            Some(norms) => norms.weight.forward(x),
            None => rms(x, eps),
        };
        let hidden = gelu(project(normed, self.down.val().transpose()));
        let all = self.weights.val().dims().iter().product();
        let fixed = self.weights.val().reshape([1, 1, all]);
        project(hidden, self.up.val().transpose()) + fixed
    }

    /// The ways, and the weights of the first of them.
    fn average(
        &self,
        x: Tensor<3>,
        sources: &[Tensor<3>],
        eps: f64,
    ) -> (Vec<Tensor<3>>, Tensor<3>) {
        let weights = self.weigh(x.clone(), eps);
        let (ways, count) = (self.ways(), sources.len());
        let average = |way: usize| {
            let sum = sources
                .iter()
                .enumerate()
                .map(|(j, source)| source.clone() * weights.clone().narrow(2, way * count + j, 1))
                .reduce(|sum, part| sum + part)
                .expect("the embedding is always there");
            match &self.norms {
                None => sum,
                Some(norms) if way + 1 == ways => {
                    x.clone() + rms(sum, eps) * norms.out.val().unsqueeze()
                }
                Some(_) => x.clone() + sum,
            }
        };
        ((0..ways).map(average).collect(), weights.clone().narrow(2, 0, count))
    }
}

/// `x (1 + erf(x / sqrt 2)) / 2`, whose gradient is exact, too.
fn gelu(x: Tensor<3>) -> Tensor<3> {
    let share = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0;
    x * share * 0.5
}

impl Mudd {
    fn end_block(&self, site: Site, state: MuddState) -> MuddState {
        let MuddState { x, mut sources, .. } = state;
        let end = &self.ends[site.block()];
        sources.push(match &end.norms {
            Some(norms) => norms.source.forward(x.clone()),
            None => x.clone(),
        });
        let (mut ways, weights) = end.average(x.clone(), &sources, self.eps);
        let x = ways.pop().unwrap_or(x);
        MuddState { x, sources, apart: ways.try_into().ok(), weights: Some(weights) }
    }
}

impl Averages for Mudd {
    fn settings(&self) -> DenseSettings {
        let (width, norms) = (self.final_norm.width(), self.embedding_norm.is_some());
        DenseSettings { width, eps: self.eps as f32, dynamic: true, norms }
    }

    fn blocks(&self) -> usize {
        self.ends.len()
    }

    fn ways(&self, block: usize) -> usize {
        self.ends[block].ways()
    }

    fn of_end(&self, block: Option<usize>) -> Vec<Tensor<1>> {
        let Some(end) = block.map(|block| &self.ends[block]) else {
            return self.embedding_norm.iter().map(RmsNorm::gain).collect();
        };
        let mut own: Vec<Tensor<1>> =
            [&end.weights, &end.down, &end.up].map(|matrix| matrix.val().flatten(0, 1)).into();
        if let Some(EndNorms { source, weight, out }) = &end.norms {
            own.extend([source.gain(), weight.gain(), out.val()]);
        }
        own
    }

    fn gains(&self, reader: Place, apart: bool) -> Vec<Tensor<1>> {
        let own = gain(&self.norms, &self.final_norm, reader);
        match reader {
            Place::Site(site) if apart => {
                let others = self.apart[site.block() - 1].iter().map(RmsNorm::gain);
                std::iter::once(own).chain(others).collect()
            }
            _ => vec![own],
        }
    }
}

impl Residual for Mudd {
    type State = MuddState;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> MuddState {
        let source = match &self.embedding_norm {
            Some(norm) => norm.forward(embedding.clone()),
            None => embedding.clone(),
        };
        MuddState { x: embedding, sources: vec![source], apart: None, weights: None }
    }

    fn read(&self, site: Site, state: &MuddState, traversal: &mut Traversal) -> Read<()> {
        let (place, norm) = (Place::Site(site), &self.norms[site.index]);
        if let Some(weights) = &state.weights {
            show_per_stream(traversal, place, Signal::PoolWeights, || weights.clone());
        }
        let Some([query, key, value]) = &state.apart else {
            show(traversal, place, Signal::Reading, || state.x.clone());
            return Read::all(norm.forward(state.x.clone()), ());
        };
        show(traversal, place, Signal::Reading, || query.clone());
        show_streams(traversal, place, Signal::Ways, || {
            Tensor::stack(vec![key.clone(), value.clone(), state.x.clone()], 2)
        });
        let [key_norm, value_norm] = &self.apart[site.block() - 1];
        let inputs = [
            norm.forward(query.clone()),
            key_norm.forward(key.clone()),
            value_norm.forward(value.clone()),
        ];
        Read::apart(inputs, ())
    }

    fn write(
        &self,
        site: Site,
        mut state: MuddState,
        _: (),
        y: Tensor<3>,
        _: &mut Traversal,
    ) -> MuddState {
        state.x = state.x + y;
        self.without(site, state)
    }

    /// The averages at the end of a block belong to the block, not to its MLP; those for an attention go with it.
    fn without(&self, site: Site, state: MuddState) -> MuddState {
        match site.kind() {
            SubLayerKind::Attention => MuddState { apart: None, weights: None, ..state },
            SubLayerKind::Mlp => self.end_block(site, state),
        }
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        self.averaging(junctions, options.keep)
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        self.of_junctions(junctions)
    }

    fn close(&self, state: MuddState, traversal: &mut Traversal) -> Tensor<3> {
        if let Some(weights) = &state.weights {
            show_per_stream(traversal, Place::Out, Signal::PoolWeights, || weights.clone());
        }
        show(traversal, Place::Out, Signal::Reading, || state.x.clone());
        self.final_norm.forward(state.x)
    }
}

#[cfg(test)]
mod tests;
