//! Attention Residuals: each sub-layer attends over the outputs of all earlier ones.
//!
//! `h_l = sum_i softmax_i((q_l * g_l) . rms(v_i)) v_i`, where the sources `v_i` are the embedding
//! and every earlier sub-layer's output (full), or sums of them over blocks of sub-layers (block).
//! Queries start at zero, which is a plain mean. "Attention Residuals", arXiv 2603.15031.
//!
//! Forms: several heads, each with a softmax over its own channels (MHAR, arXiv 2607.27230); delta, where
//! the stream stays and the pool of finished blocks is added to what is read (arXiv 2605.18855), with a gate
//! or without; normed, where keys and values are both normalised, and three ways, where every attention but the first
//! pools for query, key and value each (Inkling-2 has both, but three ways at every sixth block alone).

mod fused;
mod reader;

use crate::as_prenorm::{Chosen, PreNormModel, of_site};
use crate::fused::{FusedOptions, Junction};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{
    About, Cost, InitialGate, InvalidPolicy, PolicyConfig, Released, travels_by_number,
};
use crate::pool::{Pooled, Source, pool_in_groups};
use crate::probe::{Place, Signal, show, show_per_stream, show_streams};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site, SubLayerKind};
use crate::traversal::Traversal;
use crate::unset::{is_false, is_one, is_zero};
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_cpu::streams::Stream;
use reader::Reader;
use serde::{Deserialize, Serialize};

/// Settings of [`AttentionResiduals`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttentionResidualsConfig {
    /// Number of blocks whose sums are the sources; 0 makes every sub-layer a source of its own.
    pub blocks: usize,
    /// Sub-layers to a block, instead of `blocks`; the last block takes the rest. 0 leaves it to `blocks`.
    #[serde(skip_serializing_if = "is_zero")]
    pub block_size: usize,
    /// Softmaxes, each over a group of neighbouring channels.
    #[serde(skip_serializing_if = "is_one")]
    pub heads: usize,
    /// Whether the stream stays and the pool is added to what is read.
    #[serde(skip_serializing_if = "is_false")]
    pub delta: bool,
    /// Whether a gate weighs the pool of the delta form.
    #[serde(skip_serializing_if = "is_false")]
    pub gated: bool,
    /// Whether values are normalised as keys are.
    #[serde(skip_serializing_if = "is_false")]
    pub normed: bool,
    /// Pools of an attention: one, or three for query, key and value. The first has one source and none.
    #[serde(skip_serializing_if = "is_one")]
    pub ways: usize,
}

/// Query, key and value.
const KINDS: usize = 3;

impl Default for AttentionResidualsConfig {
    fn default() -> Self {
        Self {
            blocks: 0,
            block_size: 0,
            heads: 1,
            delta: false,
            gated: false,
            normed: false,
            ways: 1,
        }
    }
}

impl AttentionResidualsConfig {
    /// Pools of a sub-layer, or of the read-out as the one after the last.
    fn pools(&self, site: usize, dimensions: &Dimensions) -> usize {
        let apart = site > 0
            && site < dimensions.sites()
            && Site::new(site).kind() == SubLayerKind::Attention;
        if apart { self.ways } else { 1 }
    }

    /// Sub-layers whose outputs are added into one source.
    fn block_size(&self, dimensions: &Dimensions) -> usize {
        match (self.block_size, self.blocks) {
            (0, 0) => 1,
            (0, blocks) => dimensions.sites().div_ceil(blocks),
            (size, _) => size,
        }
    }
}

impl PolicyConfig for AttentionResidualsConfig {
    type Policy = AttentionResiduals;

    fn about(&self) -> About {
        About {
            kind: "attnres",
            summary: "each sub-layer attends over all earlier outputs (full) or sums of them (block)",
            equation: "h_l = sum_i softmax_i((q_l * g_l) . rms(v_i)) v_i; v' = v, F_l(h_l)",
            state: "(L + 1) d full, (blocks + 1) d block",
            parameters: "2 d L",
            paper: "Attention Residuals 2026, arXiv 2603.15031",
        }
    }

    fn released(&self) -> &'static [Released] {
        const { &[Released { name: "kimi_k3", models: "Kimi K3", settings: "block_size=24" }] }
    }

    fn check(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        let Self { blocks, block_size, heads, delta, gated, normed, ways } = *self;
        let width = dimensions.width;
        let reason = if blocks > 0 && block_size > 0 {
            format!(
                "blocks is {blocks} and block_size {block_size}, but both say the same; leave one out"
            )
        } else if heads == 0 || !width.is_multiple_of(heads) {
            format!("heads is {heads}, but it must divide the width, which is {width}")
        } else if gated && !delta {
            "gated is true, but only the delta form has a gate; set delta to true as well"
                .to_owned()
        } else if normed && delta {
            "normed and delta are both true, but no such form is defined; leave one out".to_owned()
        } else if normed && heads > 1 {
            format!("normed is true and heads {heads}, but the normed form has one head")
        } else if ways != 1 && ways != KINDS {
            format!("ways is {ways}, but there can be 1, or 3 for query, key and value")
        } else if ways > 1 && delta {
            format!("ways is {ways} and delta true, but no such form is defined; leave one out")
        } else {
            return Ok(());
        };
        Err(self.refuse(reason))
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        match self.gated {
            true => vec![InitialGate::alike("gate", 1, dimensions, 0.0)],
            false => Vec::new(),
        }
    }

    /// The queries that read a sub-layer's output when it is new are those of the next reader.
    fn travels(&self, name: &str, dimensions: &Dimensions) -> Option<(usize, String)> {
        let (reader, rest) = name.strip_prefix("residual.")?.split_once('.')?;
        if !["query", "key_norm", "gate"].contains(&rest) {
            return travels_by_number(name, self.numbering());
        }
        let reader = match reader {
            "out" => dimensions.sites(),
            number => number.parse().ok()?,
        };
        let read = Site::new(usize::checked_sub(reader, 1)?);
        Some((read.block(), format!("{}.{rest}", read.index % 2)))
    }

    /// As it starts: what a zero query reads has the direction of the sum of its sources, which is prenorm's stream, and
    /// a closed gate reads nothing. Three ways read through prenorm's one gain.
    fn as_prenorm<'a>(
        &'a self,
        prenorm: &'a PreNormModel<'a>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        if self.normed {
            return Err(self.refuse(
                "normed is true, and a mean of normalised sources is not prenorm's stream; leave it out"
                    .to_owned(),
            ));
        }
        if self.delta && !self.gated && self.block_size(&prenorm.dimensions) > 1 {
            return Err(self.refuse(
                "without gates, blocks of several sub-layers are added to what is read before they are \
                 finished; set gated=true, whose gates start closed"
                    .to_owned(),
            ));
        }
        Ok(Box::new(|name, _| match of_site(name)? {
            (site, "k_norm" | "v_norm") => prenorm.gain(Some(site)),
            _ => None,
        }))
    }

    /// The mean of k sources is a k-th of their sum, so its square needs an epsilon of a k-th's square. There is one epsilon
    /// for all readers, and which is best depends on how the stream grows with depth.
    fn prenorm_epsilons(&self, dimensions: &Dimensions) -> Vec<f64> {
        let sources = 1 + dimensions.sites().div_ceil(self.block_size(dimensions));
        let most = if self.delta { 1.0 } else { (sources * sources) as f64 };
        std::iter::successors(Some(1.0), |share: &f64| Some(2.0 * share))
            .take_while(|&share| share <= most)
            .map(|share| 1.0 / share)
            .collect()
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let size = self.block_size(dimensions) as u64;
        // Reader l sees the embedding, the closed blocks and, inside a block, the open one.
        let pools = |l: u64| self.pools(l as usize, dimensions) as u64;
        let seen: u64 = (1..=sites).map(|l| pools(l) * (1 + l.div_ceil(size))).sum();
        let more: u64 = (1..=sites).map(|l| pools(l) - 1).sum();
        let opened = sites.div_ceil(size);
        if self.delta {
            // Reader l sees the embedding and the finished blocks, and adds their pool to the stream.
            let seen: u64 = (1..sites).map(|l| 1 + l / size).sum();
            return Cost {
                flops: seen * 4 * d + sites * (Cost::norm(d) + 4 * d) + Cost::norm(d),
                state: (opened + 2) * d,
            };
        }
        Cost {
            flops: seen * 4 * d
                + (sites + 1) * 2 * d
                + sites * (Cost::norm(d) + d)
                + (more + 1) * Cost::norm(d),
            state: (opened + 1) * d,
        }
    }

    /// The embedding, every block so far, finished or not, and the stream of the delta form.
    fn handed_over(&self, blocks: usize, dimensions: &Dimensions) -> u64 {
        let sources = 1 + (2 * blocks).div_ceil(self.block_size(dimensions));
        ((sources + usize::from(self.delta)) * dimensions.width) as u64
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> AttentionResiduals {
        let block_size = self.block_size(dimensions);
        let norms = sub_layer_norms(dimensions, weights);
        // A pool of one source needs no query: in the delta form, before the first finished block.
        let asks = |l: usize| !self.delta || l >= block_size;
        let readers = (1..dimensions.sites())
            .map(|l| {
                let pools = self.pools(l, dimensions);
                asks(l)
                    .then(|| Reader::new(&l.to_string(), self.normed, pools, dimensions, weights))
            })
            .collect();
        let gates = (1..dimensions.sites())
            .filter(|_| self.gated)
            .map(|l| weights.param(format!("residual.{l}.gate"), [1], Init::ZEROS))
            .collect();
        AttentionResiduals {
            norms,
            readers,
            gates,
            out: (!self.delta).then(|| Reader::new("out", self.normed, 1, dimensions, weights)),
            final_norm: final_norm(dimensions, weights),
            block_size,
            heads: self.heads,
            normed: self.normed,
            eps: dimensions.norm_eps,
        }
    }
}

/// `h_l = sum_i softmax_i((q_l * g_l) . rms(v_i)) v_i`.
#[derive(Module, Debug)]
pub struct AttentionResiduals {
    norms: Vec<RmsNorm>,
    /// The readers of every sub-layer but the first, which can only read the embedding.
    readers: Vec<Option<Reader>>,
    /// Of every sub-layer but the first; none unless they are asked for.
    gates: Vec<Param<Tensor<1>>>,
    /// None in the delta form, whose read-out is the stream.
    out: Option<Reader>,
    final_norm: RmsNorm,
    block_size: usize,
    heads: usize,
    normed: bool,
    eps: f64,
}

/// Finished sources, the sum of the block that is still open, and in the delta form the stream.
pub struct Sources {
    closed: Vec<Source>,
    open: Option<Tensor<3>>,
    stream: Option<Tensor<3>>,
    /// What the first sub-layer reads, as it is in every form.
    embedding: Tensor<3>,
}

impl AttentionResiduals {
    fn source(&self, value: Tensor<3>) -> Source {
        match self.normed {
            true => Source::normalised(value, self.eps),
            false => Source::new(value, self.eps),
        }
    }

    /// One pool, or three for query, key and value.
    fn pools(&self, reader: Option<&Reader>, sources: &Sources) -> Vec<Pooled> {
        let mut all = sources.closed.clone();
        if let Some(open) = sources.open.as_ref().filter(|_| sources.stream.is_none()) {
            all.push(self.source(open.clone()));
        }
        match reader {
            Some(reader) => {
                let pool = |question| pool_in_groups(&all, question, self.heads);
                reader.questions().into_iter().map(pool).collect()
            }
            // The embedding alone.
            None => {
                let value = all.swap_remove(0).value;
                let [batch, time, _] = value.dims();
                let weights = Tensor::ones([batch, time, 1], &value.device());
                vec![Pooled { value, weights }]
            }
        }
    }

    /// The first pool.
    fn pool(&self, reader: Option<&Reader>, sources: &Sources) -> Pooled {
        self.pools(reader, sources).swap_remove(0)
    }
}

impl Residual for AttentionResiduals {
    type State = Sources;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> Sources {
        let stream = self.out.is_none().then(|| embedding.clone());
        Sources { closed: vec![self.source(embedding.clone())], open: None, stream, embedding }
    }

    fn read(&self, site: Site, sources: &Sources, traversal: &mut Traversal) -> Read<()> {
        let (place, norm) = (Place::Site(site), &self.norms[site.index]);
        let Some(number) = site.index.checked_sub(1) else {
            show(traversal, place, Signal::Reading, || sources.embedding.clone());
            return Read::all(norm.forward(sources.embedding.clone()), ());
        };
        let reader = self.readers[number].as_ref();
        let mut pools = self.pools(reader, sources);
        let others = pools.split_off(1);
        let Pooled { value, weights } = pools.swap_remove(0);
        let gate = self.gates.get(number).map(|gate| gate.val().unsqueeze::<3>());
        show_per_stream(traversal, place, Signal::PoolWeights, || match gate.clone() {
            Some(gate) => weights * gate,
            None => weights,
        });
        let value = match gate {
            Some(gate) => value * gate,
            None => value,
        };
        let h = match &sources.stream {
            Some(stream) => stream.clone() + value,
            None => value,
        };
        show(traversal, place, Signal::Reading, || h.clone());
        let (input, apart) = (norm.forward(h), reader.and_then(Reader::apart));
        let (Some([key_norm, value_norm]), [key, value]) = (apart, others.as_slice()) else {
            return Read::all(input, ());
        };
        show_streams(traversal, place, Signal::Ways, || {
            Tensor::stack(vec![key.value.clone(), value.value.clone()], 2)
        });
        let [key, value] = [(key_norm, key), (value_norm, value)]
            .map(|(norm, pooled)| norm.forward(pooled.value.clone()));
        Read::apart([input, key, value], ())
    }

    fn write(
        &self,
        site: Site,
        mut sources: Sources,
        _: (),
        output: Tensor<3>,
        _: &mut Traversal,
    ) -> Sources {
        sources.stream = sources.stream.map(|stream| stream + output.clone());
        sources.open = Some(match sources.open {
            None => output,
            Some(sum) => sum + output,
        });
        self.without(site, sources)
    }

    /// A block ends with its last sub-layer, absent or not.
    fn without(&self, site: Site, mut sources: Sources) -> Sources {
        if (site.index + 1).is_multiple_of(self.block_size)
            && let Some(sum) = sources.open.take()
        {
            sources.closed.push(self.source(sum));
        }
        sources
    }

    /// Inside a block its running sum; between blocks, and in the delta form, what is read.
    fn between(&self, place: Place, sources: &Sources) -> Option<Tensor<4>> {
        let sums = place != Place::Out && sources.stream.is_none();
        sources.open.clone().filter(|_| sums).map(|sum| sum.unsqueeze_dim(2))
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        Some(fused::stream(self, junctions, options))
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        junctions.iter().map(|junction| self.params(junction)).collect()
    }

    fn close(&self, sources: Sources, traversal: &mut Traversal) -> Tensor<3> {
        if let Some(stream) = sources.stream {
            show(traversal, Place::Out, Signal::Reading, || stream.clone());
            return self.final_norm.forward(stream);
        }
        let Pooled { value, weights } = self.pool(self.out.as_ref(), &sources);
        show(traversal, Place::Out, Signal::Reading, || value.clone());
        show_per_stream(traversal, Place::Out, Signal::PoolWeights, || weights);
        self.final_norm.forward(value)
    }
}

#[cfg(test)]
mod tests;
