//! The fused forms: which writes make a source, and what each reader asks with.

use super::{AttentionResiduals, Reader};
use crate::fused::{FusedOptions, Junction, gain, join};
use crate::norm::RmsNorm;
use crate::probe::Place;
use crate::site::Site;
use burn::module::Param;
use burn::tensor::Tensor;
use hadal_cpu::streams::{AttnRes, AttnResJunction, DeltaAttnRes, DeltaJunction, Stream};

pub(super) fn stream(
    policy: &AttentionResiduals,
    junctions: &[Junction],
    options: &FusedOptions,
) -> Box<dyn Stream> {
    let (width, eps) = (policy.final_norm.width(), policy.eps as f32);
    let before = std::iter::once(None).chain(junctions.iter().map(|junction| junction.from));
    let steps = junctions.iter().zip(before);
    if policy.out.is_none() {
        let steps = steps.map(|(junction, before)| policy.delta_step(junction, before)).collect();
        Box::new(DeltaAttnRes::new(width, policy.heads, eps, steps, options.keep))
    } else {
        let steps = steps.map(|(junction, before)| policy.step(junction, before)).collect();
        let stream = AttnRes::new(width, eps, steps, options.keep).with_heads(policy.heads);
        Box::new(if policy.normed { stream.normed() } else { stream })
    }
}

impl AttentionResiduals {
    fn block(&self, site: Site) -> usize {
        site.index / self.block_size
    }

    /// Whether two writes belong to the same block; the embedding belongs to none.
    fn joins(&self, junction: &Junction, before: Option<Site>) -> bool {
        before.is_some()
            && before.map(|site| self.block(site)) == junction.from.map(|site| self.block(site))
    }

    fn reader(&self, place: Place) -> Option<&Reader> {
        match place {
            Place::Out => self.out.as_ref(),
            Place::Site(site) => self.readers[site.index.checked_sub(1)?].as_ref(),
        }
    }

    fn step(&self, junction: &Junction, before: Option<Site>) -> AttnResJunction {
        AttnResJunction {
            joins: self.joins(junction, before),
            query: self.reader(junction.to).is_some(),
            apart: self.reader(junction.to).is_some_and(|reader| reader.apart().is_some()),
        }
    }

    fn delta_step(&self, junction: &Junction, before: Option<Site>) -> DeltaJunction {
        let later = |site: Site| site.index > 0;
        DeltaJunction {
            joins: self.joins(junction, before),
            // A block ends before the first reader of another one; the read-out pools nothing.
            closes: match (junction.from, junction.to) {
                (None, _) => true,
                (Some(_), Place::Out) => false,
                (Some(from), Place::Site(to)) => self.block(from) != self.block(to),
            },
            pools: matches!(junction.to, Place::Site(site) if later(site)),
            query: self.reader(junction.to).is_some(),
            gate: self.gate(junction.to).is_some(),
        }
    }

    fn gate(&self, place: Place) -> Option<&Param<Tensor<1>>> {
        match place {
            Place::Out => None,
            Place::Site(site) => self.gates.get(site.index.checked_sub(1)?),
        }
    }

    /// Gate, queries and gains of a reader, as far as it has them.
    pub(super) fn params(&self, junction: &Junction) -> Tensor<1> {
        let norm = gain(&self.norms, &self.final_norm, junction.to);
        let reader = self.reader(junction.to);
        let mut parts: Vec<_> = self.gate(junction.to).map(Param::val).into_iter().collect();
        parts.extend(reader.map(Reader::questions).unwrap_or_default());
        parts.push(norm);
        parts.extend(reader.and_then(Reader::apart).into_iter().flatten().map(RmsNorm::gain));
        match parts.len() {
            1 => parts.swap_remove(0),
            _ => join(parts),
        }
    }
}
