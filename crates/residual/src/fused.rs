//! A traversal whose policy runs as one fused operation between every two sub-layers.

use crate::norm::RmsNorm;
use crate::probe::Place;
use crate::residual::SubLayers;
use crate::site::Site;
use burn::tensor::Tensor;
use hadal_cpu::streams::{DecodeStream, Stream};
use hadal_kernels::{Junctions, Rows, share};

/// What the backward pass may compute again instead of keeping it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// MGR's streams are not kept but computed backwards, except for this share of rows, those with the
    /// widest gates. `None` keeps all of them.
    pub inversion: Option<f64>,
    /// Sub-layers keep their input alone and run a second time in the backward pass.
    pub recompute: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self { inversion: Some(0.01), recompute: false }
    }
}

/// The way from one present sub-layer to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The sub-layer that wrote; none in front of the first one.
    pub from: Option<Site>,
    /// Who reads next.
    pub to: Place,
}

/// One flat tensor of a junction's parameters, in order.
pub(crate) fn join(parts: Vec<Tensor<1>>) -> Tensor<1> {
    Tensor::cat(parts, 0)
}

/// The gain of the norm in front of a reader.
pub(crate) fn gain(norms: &[RmsNorm], final_norm: &RmsNorm, reader: Place) -> Tensor<1> {
    match reader {
        Place::Site(site) => norms[site.index].gain(),
        Place::Out => final_norm.gain(),
    }
}

/// The sub-layers that passages lead to, in order.
pub(crate) fn readers(passages: &[Passage]) -> impl Iterator<Item = Site> {
    passages.iter().filter_map(|passage| match passage.to {
        Place::Site(site) => Some(site),
        Place::Out => None,
    })
}

/// The passages of a traversal past these sub-layers.
pub(crate) fn passages(present: &[Site]) -> Vec<Passage> {
    let from = std::iter::once(None).chain(present.iter().copied().map(Some));
    let to = present.iter().copied().map(Place::Site).chain([Place::Out]);
    from.zip(to).map(|(from, to)| Passage { from, to }).collect()
}

/// A policy as a stream, with the parameters of each of its junctions.
pub struct Fused {
    /// The depth state before the first junction.
    pub stream: Box<dyn Stream>,
    /// One for each passage, in the layout of the stream.
    pub params: Vec<Tensor<1>>,
}

impl Fused {
    /// The same for one token at a time; nothing where tensors are out of reach.
    pub(crate) fn walking(self) -> Option<Walking> {
        let params = self.params.into_iter().map(share).collect::<Option<_>>()?;
        Some(Walking { walk: self.stream.decode(), params })
    }

    /// From the embedding to the head's input.
    pub(crate) fn traverse(
        self,
        embedding: Tensor<3>,
        layers: &mut dyn SubLayers,
        present: &[Site],
    ) -> Tensor<3> {
        let mut junctions = Junctions::new(self.stream);
        let mut params = self.params.into_iter();
        let mut pass = |write| match params.next() {
            Some(params) => junctions.pass(write, params),
            None => unreachable!("a passage without parameters"),
        };
        let (mut input, mut route) = pass(embedding);
        for &site in present {
            (input, route) = pass(layers.run(site, input, route.as_ref()));
        }
        input
    }
}

/// A policy for one token at a time, without tensors.
#[derive(Debug)]
pub struct Walking {
    walk: Box<dyn DecodeStream>,
    /// One for each junction.
    params: Vec<Rows>,
}

impl Walking {
    /// Goes through a junction: from a write, or the embedding at the first, to what the next sub-layer is given, or
    /// finally the head. Says whether the token runs that sub-layer.
    ///
    /// # Shapes
    /// - `write` and `input`: `[d]`
    pub fn pass(&mut self, junction: usize, write: &[f32], input: &mut [f32]) -> bool {
        self.walk.step(junction, write, self.params[junction].values(), input)
    }
}
