//! How kernels are recorded, and the backward pass of each. Gradients themselves are not recorded: there are no second
//! derivatives.

use super::Cubes;
use super::sources::Manner;
use crate::path::Planes;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;

/// A step of the graph: its parents, what it keeps, its settings, and how the gradients of the parents follow from that of
/// its output.
macro_rules! step {
    ($name:ident($($parent:ident),+) keeps($($kept:ident),+) with($($setting:ident: $type:ty),*)
        |$d:ident| $back:expr) => {
        #[derive(Debug)]
        struct $name {
            $($setting: $type),*
        }

        impl<B: Cubes> Backward<B, { [$(stringify!($parent)),+].len() }> for $name {
            type State = [FloatTensor<B>; [$(stringify!($kept)),+].len()];

            fn backward(
                self,
                ops: Ops<Self::State, { [$(stringify!($parent)),+].len() }>,
                gradients: &mut Gradients,
                _: &mut Checkpointer,
            ) {
                let Self { $($setting),* } = self;
                let [$($kept),+] = ops.state;
                let $d = gradients.consume::<B>(&ops.node);
                let ($($parent),+) = $back;
                for (parent, gradient) in ops.parents.into_iter().zip([$($parent),+]) {
                    if let Some(parent) = parent {
                        gradients.register::<B>(parent.id, gradient);
                    }
                }
            }
        }
    };
}

step! { RmsNorm(x, gain) keeps(a, b, inverse) with(planes: Planes)
|d| B::rms_norm_back(a, b, inverse, d, planes) }
step! { Pool(streams, query) keeps(a, b, kept) with(planes: Planes)
|d| B::pool_back(a, b, kept, d, planes) }
step! { Gates(streams, query, bias) keeps(a, b, kept) with(competitive: bool)
|d| B::gates_back(a, b, kept, d, competitive) }
step! { GatedWrite(streams, write, gates) keeps(a, b, c) with(planes: Planes)
|d| B::gated_write_back(a, b, c, d, planes) }
step! { Read(weights, streams) keeps(a, b) with(planes: Planes)
|d| B::read_back(a, b, d, planes) }
step! { Mix(weights, streams, write) keeps(a, b, c) with(planes: Planes)
|d| B::mix_back(a, b, c, d, planes) }
step! { Turn(direction, write, gain) keeps(a, b, kept) with(planes: Planes)
|d| B::turn_back(a, b, kept, d, planes) }
step! { Attach(reading, source, query) keeps(a, b, kept, whole) with(index: usize, manner: Manner)
|d| {
    let (d_source, d_query) = B::source_back(a, b, kept, whole, d.clone(), index, manner);
    (d, d_source, d_query)
} }

/// Records a step if anything is learned through it.
macro_rules! record {
    ($step:expr, $nodes:expr, $kept:expr, $output:expr) => {
        match $step.prepare::<C>($nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish($kept, $output),
            OpsKind::UnTracked(prepared) => prepared.finish($output),
        }
    };
}

/// A tensor that nothing is learned through.
macro_rules! constant {
    ($tensor:expr) => {
        <FloatTensor<Self>>::new($tensor)
    };
}

impl<B: Cubes, C: CheckpointStrategy> Cubes for Autodiff<B, C> {
    fn rms_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [x.node(), gain.node()];
        let (x, gain) = (x.into_primitive(), gain.into_primitive());
        let (y, inverse) = B::rms_norm(x.clone(), gain.clone(), epsilon, planes);
        let kept = [x, gain, inverse.clone()];
        (record!(RmsNorm { planes }, nodes, kept, y), constant!(inverse))
    }

    fn rms_norm_back(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        inverse: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [x, gain, inverse, dy] = [x, gain, inverse, dy].map(|tensor| tensor.into_primitive());
        let (dx, d_gain) = B::rms_norm_back(x, gain, inverse, dy, planes);
        (constant!(dx), constant!(d_gain))
    }

    fn pool(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [streams.node(), query.node()];
        let (streams, query) = (streams.into_primitive(), query.into_primitive());
        let (reading, kept) = B::pool(streams.clone(), query.clone(), epsilon, planes);
        let state = [streams, query, kept.clone()];
        (record!(Pool { planes }, nodes, state, reading), constant!(kept))
    }

    fn pool_back(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_reading: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [streams, query, kept, d_reading].map(|tensor| tensor.into_primitive());
        let [streams, query, kept, d_reading] = inputs;
        let (d_streams, d_query) = B::pool_back(streams, query, kept, d_reading, planes);
        (constant!(d_streams), constant!(d_query))
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
        let read_from = [streams.node(), query.node()];
        let gated_by = [streams.node(), gate_query.node(), bias.node()];
        let inputs = [streams, query, gate_query, bias].map(|tensor| tensor.into_primitive());
        let [streams, query, gate_query, bias] = inputs;
        let (reading, gates, kept) = B::gated_pool(
            streams.clone(),
            query.clone(),
            gate_query.clone(),
            bias,
            epsilon,
            competitive,
            planes,
        );
        let state = [streams.clone(), query, kept.clone()];
        let reading = record!(Pool { planes }, read_from, state, reading);
        let state = [streams, gate_query, kept.clone()];
        let gates = record!(Gates { competitive }, gated_by, state, gates);
        (reading, gates, constant!(kept))
    }

    fn gates_back(
        streams: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_gates: FloatTensor<Self>,
        competitive: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [streams, query, kept, d_gates].map(|tensor| tensor.into_primitive());
        let [streams, query, kept, d_gates] = inputs;
        let (streams, query, bias) = B::gates_back(streams, query, kept, d_gates, competitive);
        (constant!(streams), constant!(query), constant!(bias))
    }

    fn gated_write(
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        planes: Planes,
    ) -> FloatTensor<Self> {
        let nodes = [streams.node(), write.node(), gates.node()];
        let kept = [streams, write, gates].map(|tensor| tensor.into_primitive());
        let [streams, write, gates] = kept.clone();
        let after = B::gated_write(streams, write, gates, planes);
        record!(GatedWrite { planes }, nodes, kept, after)
    }

    fn gated_write_back(
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [streams, write, gates, d_after].map(|tensor| tensor.into_primitive());
        let [streams, write, gates, d_after] = inputs;
        let (streams, write, gates) = B::gated_write_back(streams, write, gates, d_after, planes);
        (constant!(streams), constant!(write), constant!(gates))
    }

    fn read(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        planes: Planes,
    ) -> FloatTensor<Self> {
        let nodes = [weights.node(), streams.node()];
        let kept = [weights, streams].map(|tensor| tensor.into_primitive());
        let [weights, streams] = kept.clone();
        let reading = B::read(weights, streams, planes);
        record!(Read { planes }, nodes, kept, reading)
    }

    fn read_back(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        d_reading: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [weights, streams, d_reading].map(|tensor| tensor.into_primitive());
        let [weights, streams, d_reading] = inputs;
        let (weights, streams) = B::read_back(weights, streams, d_reading, planes);
        (constant!(weights), constant!(streams))
    }

    fn mix(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        planes: Planes,
    ) -> FloatTensor<Self> {
        let nodes = [weights.node(), streams.node(), write.node()];
        let kept = [weights, streams, write].map(|tensor| tensor.into_primitive());
        let [weights, streams, write] = kept.clone();
        let after = B::mix(weights, streams, write, planes);
        record!(Mix { planes }, nodes, kept, after)
    }

    fn mix_back(
        weights: FloatTensor<Self>,
        streams: FloatTensor<Self>,
        write: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [weights, streams, write, d_after].map(|tensor| tensor.into_primitive());
        let [weights, streams, write, d_after] = inputs;
        let (weights, streams, write) = B::mix_back(weights, streams, write, d_after, planes);
        (constant!(weights), constant!(streams), constant!(write))
    }

    fn turn(
        direction: FloatTensor<Self>,
        write: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        epsilon: f32,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [direction.node(), write.node(), gain.node()];
        let inputs = [direction, write, gain].map(|tensor| tensor.into_primitive());
        let [direction, write, gain] = inputs;
        let (after, kept) = B::turn(direction.clone(), write.clone(), gain, epsilon, planes);
        let state = [direction, write, kept.clone()];
        (record!(Turn { planes }, nodes, state, after), constant!(kept))
    }

    fn turn_back(
        direction: FloatTensor<Self>,
        write: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        d_after: FloatTensor<Self>,
        planes: Planes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [direction, write, kept, d_after].map(|tensor| tensor.into_primitive());
        let [direction, write, kept, d_after] = inputs;
        let (direction, write, gain) = B::turn_back(direction, write, kept, d_after, planes);
        (constant!(direction), constant!(write), constant!(gain))
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
        let inputs = [first, second, third, fourth, query].map(|tensor| tensor.into_primitive());
        let [first, second, third, fourth, query] = inputs;
        constant!(B::score_sources(first, second, third, fourth, query, count, epsilon, manner))
    }

    fn weigh_sources(scores: FloatTensor<Self>, manner: Manner) -> FloatTensor<Self> {
        constant!(B::weigh_sources(scores.into_primitive(), manner))
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
        let inputs =
            [first, second, third, fourth, kept, before].map(|tensor| tensor.into_primitive());
        let [first, second, third, fourth, kept, before] = inputs;
        constant!(B::read_sources(first, second, third, fourth, kept, before, begin, count, manner))
    }

    /// The gradient of a reading goes through unchanged, so every source of it is given the same one.
    fn attach_source(
        reading: FloatTensor<Self>,
        source: FloatTensor<Self>,
        query: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        index: usize,
        manner: Manner,
    ) -> FloatTensor<Self> {
        let nodes = [reading.node(), source.node(), query.node()];
        let inputs = [source, query, kept, reading].map(|tensor| tensor.into_primitive());
        let reading = inputs[3].clone();
        record!(Attach { index, manner }, nodes, inputs, reading)
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
        let inputs =
            [source, query, kept, reading, d_reading].map(|tensor| tensor.into_primitive());
        let [source, query, kept, reading, d_reading] = inputs;
        let (d_source, d_query) =
            B::source_back(source, query, kept, reading, d_reading, index, manner);
        (constant!(d_source), constant!(d_query))
    }
}
