//! Kernels in CubeCL for what happens between sub-layers, one source for every runtime.
//!
//! They are inner operations: tensors in, tensors out, nothing hidden, so that fusion can order them by the tensors that
//! they name. [`autodiff`] records them, with backward passes written by hand. Each family has a file with its equations, its
//! kernels and their launches.
//!
//! A kernel has at most seven tensors, since WebGPU promises eight, and a kilobyte of shared memory. All units of a cube
//! pass the same barriers. Sums have a fixed order, see `sums.rs`.

// What a kernel takes is a list, and Burn's and CubeCL's macros want it spelt out.
#![allow(clippy::too_many_arguments)]

mod autodiff;
mod gated_write;
mod gates;
mod launch;
mod mixing;
mod pool;
mod pooled;
mod rms;
mod sources;
mod sums;
mod turn;

use crate::path::{Planes, planes};
use crate::streams::GateWeights;
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::CubeBackend;
pub(crate) use pooled::pool_sources;
use sources::Manner;

/// `[.., n, d]` without n.
fn without_streams(streams: &Shape) -> Shape {
    let mut dims = streams.to_vec();
    dims.remove(dims.len() - 2);
    Shape::from(dims)
}

/// `[.., n, d]` without d.
fn without_channels(streams: &Shape) -> Shape {
    let mut dims = streams.to_vec();
    dims.pop();
    Shape::from(dims)
}

/// `[.., d]` with one instead of d.
fn one_for_each(rows: &Shape) -> Shape {
    let mut dims = rows.to_vec();
    if let Some(last) = dims.last_mut() {
        *last = 1;
    }
    Shape::from(dims)
}

/// f32 in this shape.
fn floats(shape: Shape) -> TensorSpec {
    TensorSpec::new(shape, DType::F32)
}

/// `count` numbers for each row of `width`.
fn for_each_row(tensor: &TensorSpec, width: usize, count: usize) -> TensorSpec {
    floats(Shape::new([tensor.shape.num_elements() / width, count]))
}

/// The last dimension.
fn last(tensor: &TensorSpec) -> usize {
    tensor.shape.to_vec().last().copied().unwrap_or(1)
}

/// The last dimension but one.
fn streams_of(tensor: &TensorSpec) -> usize {
    let dims = tensor.shape.to_vec();
    dims[dims.len() - 2]
}

/// What pooling keeps.
fn pool_keeps(streams: &TensorSpec) -> TensorSpec {
    let n = streams_of(streams);
    for_each_row(streams, n * last(streams), pool::KEPT * n)
}

/// What gates keep.
fn gates_keep(streams: &TensorSpec) -> TensorSpec {
    let n = streams_of(streams);
    for_each_row(streams, n * last(streams), gates::kept_of(n))
}

/// The inner operations. Those whose names end with `back` are the backward passes of the others. All tensors are f32.
#[backend_extension(Cube, Autodiff, Fusion)]
pub(crate) trait Cubes: Backend {
    /// The normalised rows, and the inverse RMS of each.
    #[fusion(meta = |x, _gain, _epsilon, _planes| (
        x.clone(),
        floats(Shape::new([x.shape.num_elements() / last(x)])),
    ))]
    fn rms_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Gradients of `x` and `gain`.
    #[fusion(meta = |x, gain, _inverse, _dy, _planes| (x.clone(), gain.clone()))]
    fn rms_norm_back(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        inverse: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// What is read, and what is kept.
    #[fusion(meta = |streams, _query, _epsilon, _planes| (
        floats(without_streams(&streams.shape)),
        pool_keeps(streams),
    ))]
    fn pool(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Gradients of streams and query.
    #[fusion(meta = |streams, query, _kept, _d, _planes| (streams.clone(), query.clone()))]
    fn pool_back(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_reading: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// What is read, gates, and what is kept.
    #[fusion(meta = |streams, _query, _gate_query, _bias, _epsilon, _competitive, _planes| (
        floats(without_streams(&streams.shape)),
        floats(without_channels(&streams.shape)),
        gates_keep(streams),
    ))]
    fn gated_pool(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        gate_query: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f32,
        competitive: bool,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Gradients of streams, query and bias.
    #[fusion(meta = |streams, query, _kept, _d, competitive| (
        streams.clone(),
        query.clone(),
        floats(Shape::new([streams_of(streams) + usize::from(*competitive)])),
    ))]
    fn gates_back(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_gates: FloatTensor<Self>,
        competitive: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Streams after a gated write.
    #[fusion(meta = |streams, _write, _gates, _planes| streams.clone())]
    fn gated_write(
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        planes: Planes,
    ) -> FloatTensor<Self>;

    /// Gradients of streams, write and gates.
    #[fusion(meta = |streams, write, gates, _d, _planes| (
        streams.clone(),
        write.clone(),
        gates.clone(),
    ))]
    fn gated_write_back(
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// The weighted sum of streams.
    #[fusion(meta = |_weights, streams, _planes| floats(without_streams(&streams.shape)))]
    fn read(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        planes: Planes,
    ) -> FloatTensor<Self>;

    /// Gradients of weights and streams.
    #[fusion(meta = |weights, streams, _d, _planes| (weights.clone(), streams.clone()))]
    fn read_back(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        d_reading: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Streams after mixing and a write.
    #[fusion(meta = |_weights, streams, _write, _planes| streams.clone())]
    fn mix(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        planes: Planes,
    ) -> FloatTensor<Self>;

    /// Gradients of weights, streams and write.
    #[fusion(meta = |weights, streams, write, _d, _planes| (
        weights.clone(),
        streams.clone(),
        write.clone(),
    ))]
    fn mix_back(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// The turned direction, and what is kept.
    #[fusion(meta = |direction, _write, gain, _epsilon, _planes| (
        direction.clone(),
        for_each_row(gain, 1, turn::KEPT),
    ))]
    fn turn(
        direction: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Gradients of direction, write and gain.
    #[fusion(meta = |direction, write, _kept, _d, _planes| (
        direction.clone(),
        write.clone(),
        floats(one_for_each(&direction.shape)),
    ))]
    fn turn_back(
        direction: FloatTensor<Self>,
        write: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// The inverse RMS and scores of the first `count` of these sources; the others are not looked at.
    #[fusion(meta = |first, _second, _third, _fourth, _query, count, _epsilon, manner| {
        for_each_row(first, last(first), *count * manner.scored())
    })]
    fn score_sources(
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
        fourth: FloatTensor<Self>,
        query: FloatTensor<Self>,
        count: usize,
        epsilon: f32,
        manner: Manner,
    ) -> FloatTensor<Self>;

    /// What is kept of a reading, from the inverse RMS and scores of all sources.
    #[fusion(meta = |scores, manner| {
        for_each_row(scores, last(scores), manner.sources * manner.kept())
    })]
    fn weigh_sources(scores: FloatTensor<Self>, manner: Manner) -> FloatTensor<Self>;

    /// The weighted sum of the first `count` of these sources, which begin at `begin` of all, and of what was read `before`
    /// them; at the beginning that is not looked at.
    #[fusion(meta = |first, _second, _third, _fourth, _kept, _before, _begin, _count, _manner| {
        first.clone()
    })]
    fn read_sources(
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
        fourth: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        before: FloatTensor<Self>,
        begin: usize,
        count: usize,
        manner: Manner,
    ) -> FloatTensor<Self>;

    /// The same reading, through which this source and the query now learn.
    #[fusion(meta = |reading, _source, _query, _kept, _index, _manner| reading.clone())]
    fn attach_source(
        reading: FloatTensor<Self>,
        source: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        index: usize,
        manner: Manner,
    ) -> FloatTensor<Self>;

    /// Gradients of a source and of the query through it.
    #[fusion(meta = |source, query, _kept, _reading, _d, _index, _manner| {
        (source.clone(), query.clone())
    })]
    fn source_back(
        source: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        reading: FloatTensor<Self>,
        d_reading: FloatTensor<Self>,
        index: usize,
        manner: Manner,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl Cubes for CubeBackend {
    fn rms_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        rms::forward(x, gain, epsilon, planes)
    }

    fn rms_norm_back(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        inverse: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        rms::backward(x, gain, inverse, dy, planes)
    }

    fn pool(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        pool::forward(streams, query, epsilon, planes)
    }

    fn pool_back(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_reading: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        pool::backward(streams, query, kept, d_reading, planes)
    }

    fn gated_pool(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        gate_query: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f32,
        competitive: bool,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        gates::forward(streams, query, gate_query, bias, epsilon, competitive, planes)
    }

    fn gates_back(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_gates: FloatTensor<Self>,
        competitive: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        gates::backward(streams, query, kept, d_gates, competitive)
    }

    fn gated_write(
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        _: Planes,
    ) -> FloatTensor<Self> {
        gated_write::forward(streams, write, gates)
    }

    fn gated_write_back(
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        gated_write::backward(streams, write, gates, d_after, planes)
    }

    fn read(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        _: Planes,
    ) -> FloatTensor<Self> {
        mixing::read(weights, streams)
    }

    fn read_back(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        d_reading: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        mixing::read_back(weights, streams, d_reading, planes)
    }

    fn mix(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        _: Planes,
    ) -> FloatTensor<Self> {
        mixing::mix(weights, streams, write)
    }

    fn mix_back(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        mixing::mix_back(weights, streams, write, d_after, planes)
    }

    fn turn(
        direction: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        turn::forward(direction, write, gain, epsilon, planes)
    }

    fn turn_back(
        direction: FloatTensor<Self>,
        write: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        turn::backward(direction, write, kept, d_after, planes)
    }

    fn score_sources(
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
        fourth: FloatTensor<Self>,
        query: FloatTensor<Self>,
        count: usize,
        epsilon: f32,
        manner: Manner,
    ) -> FloatTensor<Self> {
        sources::scores([first, second, third, fourth], query, count, epsilon, manner)
    }

    fn weigh_sources(scores: FloatTensor<Self>, manner: Manner) -> FloatTensor<Self> {
        sources::weigh(scores, manner)
    }

    fn read_sources(
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
        fourth: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        before: FloatTensor<Self>,
        begin: usize,
        count: usize,
        manner: Manner,
    ) -> FloatTensor<Self> {
        let before = (begin > 0).then_some(before);
        sources::read([first, second, third, fourth], kept, before, begin, count, manner)
    }

    fn attach_source(
        reading: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: usize,
        _: Manner,
    ) -> FloatTensor<Self> {
        reading
    }

    fn source_back(
        source: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        reading: FloatTensor<Self>,
        d_reading: FloatTensor<Self>,
        index: usize,
        manner: Manner,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        sources::backward(source, query, kept, reading, d_reading, index, manner)
    }
}

/// [`crate::rms_norm()`].
pub(crate) fn rms_norm<const D: usize>(x: Tensor<D>, gain: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let (x, gain) = (x.into_dispatch(), gain.into_dispatch());
    Tensor::from_dispatch(Dispatch::rms_norm(x, gain, epsilon as f32, planes()).0)
}

/// [`crate::pool_streams()`].
pub(crate) fn pool_streams(
    streams: Tensor<4>,
    query: Tensor<1>,
    epsilon: f64,
) -> (Tensor<3>, Tensor<3>) {
    let [batch, time, n, _] = streams.dims();
    let (streams, query) = (streams.into_dispatch(), query.into_dispatch());
    let (reading, kept) = Dispatch::pool(streams, query, epsilon as f32, planes());
    let weights = Tensor::<2>::from_dispatch(kept).narrow(1, n, n).reshape([batch, time, n]);
    (Tensor::from_dispatch(reading), weights)
}

/// [`crate::pool_and_gate_streams()`].
pub(crate) fn pool_and_gate_streams(
    streams: Tensor<4>,
    query: Tensor<1>,
    gate: GateWeights,
    epsilon: f64,
) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
    let [batch, time, n, _] = streams.dims();
    let (streams, query) = (streams.into_dispatch(), query.into_dispatch());
    let GateWeights { query: gate_query, bias, competitive } = gate;
    let (reading, gates, kept) = Dispatch::gated_pool(
        streams,
        query,
        gate_query.into_dispatch(),
        bias.into_dispatch(),
        epsilon as f32,
        competitive,
        planes(),
    );
    let weights = Tensor::<2>::from_dispatch(kept).narrow(1, n, n).reshape([batch, time, n]);
    (Tensor::from_dispatch(reading), weights, Tensor::from_dispatch(gates))
}

/// [`crate::gated_write()`].
pub(crate) fn gated_write(streams: Tensor<4>, write: Tensor<3>, gates: Tensor<3>) -> Tensor<4> {
    let inputs = (streams.into_dispatch(), write.into_dispatch(), gates.into_dispatch());
    let (streams, write, gates) = inputs;
    Tensor::from_dispatch(Dispatch::gated_write(streams, write, gates, planes()))
}

/// [`crate::read_streams()`].
pub(crate) fn read_streams(weights: Tensor<3>, streams: Tensor<4>) -> Tensor<3> {
    let (weights, streams) = (weights.into_dispatch(), streams.into_dispatch());
    Tensor::from_dispatch(Dispatch::read(weights, streams, planes()))
}

/// [`crate::mix_streams()`].
pub(crate) fn mix_streams(
    res: Option<Tensor<4>>,
    post: Tensor<3>,
    streams: Tensor<4>,
    write: Tensor<3>,
) -> Tensor<4> {
    let post = post.unsqueeze_dim::<4>(3);
    let weights = match res {
        Some(res) => Tensor::cat(vec![res, post], 3),
        None => post,
    };
    let inputs = (weights.into_dispatch(), streams.into_dispatch(), write.into_dispatch());
    let (weights, streams, write) = inputs;
    Tensor::from_dispatch(Dispatch::mix(weights, streams, write, planes()))
}

/// [`crate::turn()`].
pub(crate) fn turn(
    direction: Tensor<3>,
    write: Tensor<3>,
    gain: Tensor<3>,
    epsilon: f64,
) -> Tensor<3> {
    let inputs = (direction.into_dispatch(), write.into_dispatch(), gain.into_dispatch());
    let (direction, write, gain) = inputs;
    let (after, _) = Dispatch::turn(direction, write, gain, epsilon as f32, planes());
    Tensor::from_dispatch(after)
}
