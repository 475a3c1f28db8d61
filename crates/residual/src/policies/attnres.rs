//! Attention Residuals: each sub-layer attends over the outputs of all earlier ones.
//!
//! `h_l = sum_i softmax_i((q_l * g_l) . rms(v_i)) v_i`, where the sources `v_i` are the embedding
//! and every earlier sub-layer's output (full), or sums of them over blocks of sub-layers (block).
//! Queries start at zero, which is a plain mean. "Attention Residuals", arXiv 2603.15031.

use crate::fused::{Fused, FusedOptions, Junction, gain, join};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, PolicyConfig};
use crate::pool::{Pooled, Source, pool};
use crate::probe::{Place, Signal, show, show_per_stream};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::traversal::Traversal;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_cpu::streams::{AttnRes, AttnResJunction};
use serde::{Deserialize, Serialize};

/// Settings of [`AttentionResiduals`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttentionResidualsConfig {
    /// Number of blocks whose sums are the sources; 0 makes every sub-layer a source of its own.
    pub blocks: usize,
}

impl AttentionResidualsConfig {
    /// Sub-layers whose outputs are added into one source.
    fn block_size(&self, dimensions: &Dimensions) -> usize {
        match self.blocks {
            0 => 1,
            blocks => dimensions.sites().div_ceil(blocks),
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

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let size = self.block_size(dimensions) as u64;
        // Reader l sees the embedding, the closed blocks and, inside a block, the open one.
        let seen: u64 = (1..=sites).map(|l| 1 + l.div_ceil(size)).sum();
        let opened = sites.div_ceil(size);
        Cost {
            flops: seen * 4 * d + (sites + 1) * 2 * d + sites * (Cost::norm(d) + d) + Cost::norm(d),
            state: (opened + 1) * d,
            saved: (2 * sites + 1) * d,
        }
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> AttentionResiduals {
        AttentionResiduals {
            norms: sub_layer_norms(dimensions, weights),
            readers: (1..dimensions.sites())
                .map(|l| Reader::new(&l.to_string(), dimensions, weights))
                .collect(),
            out: Reader::new("out", dimensions, weights),
            final_norm: final_norm(dimensions, weights),
            block_size: self.block_size(dimensions),
            eps: dimensions.norm_eps,
        }
    }
}

/// A query over depth with the gain of its keys.
#[derive(Module, Debug)]
pub(crate) struct Reader {
    query: Param<Tensor<1>>,
    key_norm: Param<Tensor<1>>,
}

impl Reader {
    fn new(place: &str, dimensions: &Dimensions, weights: &mut Weights) -> Self {
        let d = dimensions.width;
        Self {
            query: weights.param(format!("residual.{place}.query"), [d], Init::ZEROS),
            key_norm: weights.param(format!("residual.{place}.key_norm"), [d], Init::ONES),
        }
    }

    fn read(&self, sources: &[Source]) -> Pooled {
        pool(sources, self.query.val() * self.key_norm.val())
    }
}

/// `h_l = sum_i softmax_i((q_l * g_l) . rms(v_i)) v_i`.
#[derive(Module, Debug)]
pub struct AttentionResiduals {
    norms: Vec<RmsNorm>,
    /// The readers of every sub-layer but the first, which can only read the embedding.
    readers: Vec<Reader>,
    out: Reader,
    final_norm: RmsNorm,
    block_size: usize,
    eps: f64,
}

/// Finished sources, and the sum of the block that is still open.
pub struct Sources {
    closed: Vec<Source>,
    open: Option<Tensor<3>>,
}

impl AttentionResiduals {
    fn pool(&self, reader: &Reader, sources: &Sources) -> Pooled {
        match &sources.open {
            None => reader.read(&sources.closed),
            Some(open) => {
                let mut all = sources.closed.clone();
                all.push(Source::new(open.clone(), self.eps));
                reader.read(&all)
            }
        }
    }
}

impl Residual for AttentionResiduals {
    type State = Sources;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> Sources {
        Sources { closed: vec![Source::new(embedding, self.eps)], open: None }
    }

    fn read(&self, site: Site, sources: &Sources, traversal: &mut Traversal) -> Read<()> {
        let h = match site.index.checked_sub(1) {
            None => sources.closed[0].value.clone(),
            Some(reader) => {
                let pooled = self.pool(&self.readers[reader], sources);
                show_per_stream(traversal, Place::Site(site), Signal::PoolWeights, || {
                    pooled.weights
                });
                pooled.value
            }
        };
        show(traversal, Place::Site(site), Signal::Reading, || h.clone());
        Read::all(self.norms[site.index].forward(h), ())
    }

    fn write(
        &self,
        site: Site,
        mut sources: Sources,
        _: (),
        output: Tensor<3>,
        _: &mut Traversal,
    ) -> Sources {
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
            sources.closed.push(Source::new(sum, self.eps));
        }
        sources
    }

    fn fused(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Fused> {
        let block = |site: Site| site.index / self.block_size;
        let before = std::iter::once(None).chain(junctions.iter().map(|junction| junction.from));
        let step = |(junction, before): (&Junction, Option<Site>)| AttnResJunction {
            joins: before.is_some() && before.map(block) == junction.from.map(block),
            query: junction.to != Place::Site(Site::new(0)),
        };
        let steps: Vec<_> = junctions.iter().zip(before).map(step).collect();
        let reader = |junction: &Junction| {
            let norm = gain(&self.norms, &self.final_norm, junction.to);
            let reader = match junction.to {
                Place::Out => &self.out,
                Place::Site(site) => match site.index.checked_sub(1) {
                    None => return norm,
                    Some(reader) => &self.readers[reader],
                },
            };
            join(vec![reader.query.val() * reader.key_norm.val(), norm])
        };
        let params: Vec<_> = junctions.iter().map(reader).collect();
        let width = self.final_norm.gain().dims()[0];
        Some(Fused {
            stream: Box::new(AttnRes::new(width, self.eps as f32, steps, options.keep)),
            params,
        })
    }

    fn close(&self, sources: Sources, traversal: &mut Traversal) -> Tensor<3> {
        let Pooled { value, weights } = self.pool(&self.out, &sources);
        show(traversal, Place::Out, Signal::Reading, || value.clone());
        show_per_stream(traversal, Place::Out, Signal::PoolWeights, || weights);
        self.final_norm.forward(value)
    }
}

#[cfg(test)]
mod tests;
