//! A traversal whose policy runs as one fused operation between every two sub-layers.

use crate::norm::RmsNorm;
use crate::probe::Place;
use crate::residual::SubLayers;
use crate::site::Site;
use crate::skip::StepMode;
use crate::traversal::Traversal;
use burn::tensor::{Device, Tensor};
use hadal_cpu::streams::{DecodeStream, Stream};
use hadal_kernels::{Junctions, Rows, lend};

/// What the backward pass may compute again instead of keeping it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// For policies with an invertible update: the share of rows whose state is copied; the state of the others is
    /// recomputed backwards. `None` copies every row.
    pub kept_share: Option<f64>,
    /// Sub-layers keep their input alone and run a second time in the backward pass.
    pub recompute: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self { kept_share: Some(0.01), recompute: false }
    }
}

/// What a fused form is made for.
#[derive(Clone, Copy, Debug)]
pub struct FusedOptions<'a> {
    /// What changes from step to step of training.
    pub mode: &'a StepMode,
    /// What the backward pass may compute again.
    pub memory: Memory,
    /// Whether there will be a backward pass.
    pub keep: bool,
}

/// The way from one present sub-layer to the next: from a write to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Junction {
    /// The sub-layer that wrote; `None` before the first one.
    pub from: Option<Site>,
    /// What reads next.
    pub to: Place,
}

/// One flat tensor of a junction's parameters, in order.
pub(crate) fn join(parts: Vec<Tensor<1>>) -> Tensor<1> {
    Tensor::cat(parts, 0)
}

/// The same, but the list may be empty.
pub(crate) fn join_any(mut parts: Vec<Tensor<1>>, device: &Device) -> Tensor<1> {
    match parts.len() {
        0 => Tensor::zeros([0], device),
        1 => parts.swap_remove(0),
        _ => join(parts),
    }
}

/// The gain of the norm before a reader.
pub(crate) fn gain(norms: &[RmsNorm], final_norm: &RmsNorm, reader: Place) -> Tensor<1> {
    match reader {
        Place::Site(site) => norms[site.index].gain(),
        Place::Out => final_norm.gain(),
    }
}

/// The sub-layers that junctions lead to, in order.
pub(crate) fn readers(junctions: &[Junction]) -> impl Iterator<Item = Site> {
    junctions.iter().filter_map(|junction| match junction.to {
        Place::Site(site) => Some(site),
        Place::Out => None,
    })
}

/// The junctions of a traversal past these sub-layers.
pub(crate) fn junctions(present: &[Site]) -> Vec<Junction> {
    let from = std::iter::once(None).chain(present.iter().copied().map(Some));
    let to = present.iter().copied().map(Place::Site).chain([Place::Out]);
    from.zip(to).map(|(from, to)| Junction { from, to }).collect()
}

/// A policy as a stream, with the parameters of each of its junctions.
pub struct Fused {
    /// The depth state before the first junction.
    pub stream: Box<dyn Stream>,
    /// One for each junction, in the layout of the stream.
    pub params: Vec<Tensor<1>>,
}

impl Fused {
    /// The same for one token at a time; `None` where the tensors cannot be read.
    pub(crate) fn decode(self) -> Option<FusedDecode> {
        let params = self.params.into_iter().map(lend).collect::<Option<_>>()?;
        Some(FusedDecode { stream: self.stream.decode(), params })
    }

    /// From the embedding to the head's input. A probe can tap what sub-layers return, but sees no signal.
    pub(crate) fn traverse(
        self,
        embedding: Tensor<3>,
        layers: &mut dyn SubLayers,
        present: &[Site],
        traversal: &mut Traversal,
    ) -> Tensor<3> {
        let mut junctions = Junctions::new(self.stream);
        let mut params = self.params.into_iter();
        let mut next = |write| match params.next() {
            Some(params) => junctions.forward(write, params),
            None => unreachable!("a junction without parameters"),
        };
        let (mut input, mut route) = next(embedding);
        for &site in present {
            (input, route) = next(traversal.tap(site, layers.run(site, input, route.as_ref())));
        }
        input
    }
}

/// A policy for one token at a time, without tensors.
#[derive(Debug)]
pub struct FusedDecode {
    stream: Box<dyn DecodeStream>,
    /// One for each junction.
    params: Vec<Rows>,
}

impl FusedDecode {
    /// How many inputs stand side by side behind a junction: more than one before an attention whose queries, keys and
    /// values have their own.
    pub fn inputs(&self, junction: usize) -> usize {
        self.stream.inputs(junction)
    }

    /// Goes through a junction: from a write, or the embedding at the first, to what the next sub-layer is given, or
    /// finally the head. Says whether the token runs that sub-layer.
    ///
    /// # Shapes
    /// - `write`: `[d]`
    /// - `input`: `[inputs d]`, see [`FusedDecode::inputs`]
    pub fn step(&mut self, junction: usize, write: &[f32], input: &mut [f32]) -> bool {
        self.stream.step(junction, write, self.params[junction].values(), input)
    }
}
