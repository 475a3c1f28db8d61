//! The fused form of [`Additive`]: what each of its parts is at a junction.

use super::Additive;
use super::parts::BlockNumbers;
use crate::fused::{Fused, Junction, join_any};
use crate::norm::RmsNorm;
use crate::probe::Place;
use crate::site::Site;
use burn::module::Param;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Additive as Stream, AdditiveStep};

/// The sources of a fused stream: the stream before the first block, and the one that the read-out takes off.
const EMBEDDING: usize = 0;
const MIDDLE: usize = 1;

/// A number that is a parameter, as the fused form takes it.
type Number = Option<Tensor<1>>;

impl Additive {
    pub(super) fn as_junctions(&self, junctions: &[Junction], keep: bool) -> Option<Fused> {
        let middle = junctions.iter().position(|junction| self.passes_middle(junction));
        let (mut steps, mut params) = (Vec::new(), Vec::new());
        for (index, junction) in junctions.iter().enumerate() {
            let writer = junction.from.map(|site| &self.sites[site.index]);
            let gate = writer.and_then(|site| site.gate.as_ref()).map(|gate| gate.weights());
            let (open, carried) = gate.unzip();
            let write = writer.and_then(|site| site.write.as_ref()).map(RmsNorm::gain).or(open);
            let after = match writer {
                Some(site) => site.after.as_ref().map(RmsNorm::gain),
                None => self.embedding_gain(),
            };
            let (scale, added) = self.between(junction, middle);
            let (source, share) = added.unzip();
            let before = self.before(junction.to);
            steps.push(AdditiveStep {
                factor: writer.map_or(1.0, |site| site.factor as f32),
                write_norm: write.is_some(),
                carry: writer.map_or(1.0, |site| site.carry as f32),
                weighted: carried.is_some(),
                post: after.is_some(),
                hold: match (index, middle) {
                    (0, _) => self.adds_embedding(middle).then_some(EMBEDDING),
                    (index, Some(middle)) => (index == middle).then_some(MIDDLE),
                    _ => None,
                },
                scaled: scale.is_some(),
                source,
                pre: before.map(|(_, scale)| scale as f32),
            });
            let before = before.map(|(norm, _)| norm.gain());
            let parts = [write, carried, after, scale, share, before];
            params.push(parts.into_iter().flatten().collect::<Vec<_>>());
        }
        let device = params.iter().flatten().next()?.device();
        let params = params.into_iter().map(|parts| join_any(parts, &device)).collect();
        let stream = Stream::new(self.width, self.eps as f32, steps, keep);
        Some(Fused { stream: Box::new(stream), params })
    }

    /// The gain of the norm of the embedding, ones if it has none.
    fn embedding_gain(&self) -> Option<Tensor<1>> {
        let norm = self.embed_norm.as_ref()?;
        let ones = || {
            let (norm, _) = self.before(Place::Site(Site::new(0)))?;
            Some(Tensor::ones([self.width], &norm.gain().device()))
        };
        norm.gain.as_ref().map(Param::val).or_else(ones)
    }

    /// Whether the stream that the read-out takes off is the one of this junction.
    fn passes_middle(&self, junction: &Junction) -> bool {
        let Some(backout) = &self.backout else { return false };
        let before = junction.from.map_or(0, |site| site.block() + 1);
        let after = match junction.to {
            Place::Site(site) => site.block() + 1,
            Place::Out => usize::MAX,
        };
        before <= backout.blocks && backout.blocks < after
    }

    /// Whether a junction adds the stream before the first block; the first one makes it.
    fn adds_embedding(&self, middle: Option<usize>) -> bool {
        middle == Some(0) || matches!(self.blocks.first(), Some(BlockNumbers::Before(_)))
    }

    /// What the stream is multiplied by between two blocks, and the source that is added to it with its share.
    fn between(
        &self,
        junction: &Junction,
        middle: Option<usize>,
    ) -> (Number, Option<(usize, Tensor<1>)>) {
        let from = junction.from.map(|site| site.block());
        let to = match junction.to {
            Place::Site(site) => Some(site.block()),
            Place::Out => None,
        };
        let (mut scale, mut added) = (None, None);
        if from != to {
            if let Some(BlockNumbers::After(number)) = from.and_then(|block| self.blocks.get(block))
            {
                scale = Some(number.val());
            }
            if let Some(BlockNumbers::Before(mix)) = to.and_then(|block| self.blocks.get(block)) {
                scale = Some(mix.resid.val());
                added = Some((EMBEDDING, mix.x0.val()));
            }
        }
        if let (None, Some(backout)) = (to, &self.backout) {
            let source = if middle == Some(0) { EMBEDDING } else { MIDDLE };
            added = Some((source, backout.weight.val().neg()));
        }
        (scale, added)
    }
}
