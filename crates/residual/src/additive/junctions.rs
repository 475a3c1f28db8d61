//! The fused form of [`Additive`]: what each of its parts is at a junction.

use super::Additive;
use super::parts::BlockNumbers;
use crate::fused::{Junction, join_any};
use crate::norm::RmsNorm;
use crate::probe::Place;
use crate::site::Site;
use burn::module::Param;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Additive as Stream, AdditiveStep, Stream as Carried};

/// The sources of a fused stream: the stream before the first block, and the one that the read-out takes off.
const EMBEDDING: usize = 0;
const MIDDLE: usize = 1;

/// What happens to the stream between two blocks.
#[derive(Default)]
struct Between<'a> {
    /// What it is multiplied by.
    scale: Option<&'a Param<Tensor<1>>>,
    /// The source that is added to it, and its share.
    added: Option<(usize, Share<'a>)>,
}

/// How much of a source is added.
#[derive(Clone, Copy)]
enum Share<'a> {
    /// So much.
    Given(&'a Param<Tensor<1>>),
    /// It is taken off.
    TakenOff(&'a Param<Tensor<1>>),
}

impl Share<'_> {
    fn value(self) -> Tensor<1> {
        match self {
            Self::Given(share) => share.val(),
            Self::TakenOff(share) => share.val().neg(),
        }
    }
}

impl Additive {
    /// The fused form; `None` for a traversal without a parameter.
    pub(super) fn adding(&self, junctions: &[Junction], keep: bool) -> Option<Box<dyn Carried>> {
        let middle = self.middle(junctions);
        let step = |(index, junction): (usize, &Junction)| {
            let writer = junction.from.map(|site| &self.sites[site.index]);
            let between = self.between(junction, middle);
            AdditiveStep {
                factor: writer.map_or(1.0, |site| site.factor as f32),
                write_norm: writer.is_some_and(|site| site.write.is_some() || site.gate.is_some()),
                carry: writer.map_or(1.0, |site| site.carry as f32),
                weighted: writer.is_some_and(|site| site.gate.is_some()),
                post: match writer {
                    Some(site) => site.after.is_some(),
                    None => self.norms_embedding(),
                },
                hold: match (index, middle) {
                    (0, _) => self.adds_embedding(middle).then_some(EMBEDDING),
                    (index, Some(middle)) => (index == middle).then_some(MIDDLE),
                    _ => None,
                },
                scaled: between.scale.is_some(),
                source: between.added.map(|(source, _)| source),
                pre: self.before(junction.to).map(|(_, scale)| scale as f32),
            }
        };
        let steps: Vec<AdditiveStep> = junctions.iter().enumerate().map(step).collect();
        if steps.iter().all(|step| step.params(self.width) == 0) {
            return None;
        }
        Some(Box::new(Stream::new(self.width, self.eps as f32, steps, keep)))
    }

    /// The parameters of every junction.
    pub(super) fn of_junctions(&self, junctions: &[Junction]) -> Vec<Tensor<1>> {
        let middle = self.middle(junctions);
        let of = |junction: &Junction| {
            let writer = junction.from.map(|site| &self.sites[site.index]);
            let gate = writer.and_then(|site| site.gate.as_ref()).map(|gate| gate.weights());
            let (open, carried) = gate.unzip();
            let write = writer.and_then(|site| site.write.as_ref()).map(RmsNorm::gain).or(open);
            let after = match writer {
                Some(site) => site.after.as_ref().map(RmsNorm::gain),
                None => self.embedding_gain(),
            };
            let Between { scale, added } = self.between(junction, middle);
            let share = added.map(|(_, share)| share.value());
            let before = self.before(junction.to).map(|(norm, _)| norm.gain());
            let parts = [write, carried, after, scale.map(Param::val), share, before];
            parts.into_iter().flatten().collect::<Vec<_>>()
        };
        let params: Vec<_> = junctions.iter().map(of).collect();
        let device = params.iter().flatten().next().map(Tensor::device).unwrap_or_default();
        params.into_iter().map(|parts| join_any(parts, &device)).collect()
    }

    /// The junction at which the stream is the one that the read-out takes off.
    fn middle(&self, junctions: &[Junction]) -> Option<usize> {
        junctions.iter().position(|junction| self.passes_middle(junction))
    }

    /// Whether [`Self::embedding_gain`] is there.
    fn norms_embedding(&self) -> bool {
        let reader = || self.before(Place::Site(Site::new(0)));
        self.embed_norm.as_ref().is_some_and(|norm| norm.gain.is_some() || reader().is_some())
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

    /// What happens between the blocks of a junction.
    fn between(&self, junction: &Junction, middle: Option<usize>) -> Between<'_> {
        let from = junction.from.map(|site| site.block());
        let to = match junction.to {
            Place::Site(site) => Some(site.block()),
            Place::Out => None,
        };
        let mut between = Between::default();
        if from != to {
            if let Some(BlockNumbers::After(number)) = from.and_then(|block| self.blocks.get(block))
            {
                between.scale = Some(number);
            }
            if let Some(BlockNumbers::Before(mix)) = to.and_then(|block| self.blocks.get(block)) {
                between.scale = Some(&mix.resid);
                between.added = Some((EMBEDDING, Share::Given(&mix.x0)));
            }
        }
        if let (None, Some(backout)) = (to, &self.backout) {
            let source = if middle == Some(0) { EMBEDDING } else { MIDDLE };
            between.added = Some((source, Share::TakenOff(&backout.weight)));
        }
        between
    }
}
