//! Attention in its parts, for models whose blocks leave keys and values to later ones (depth slots): the
//! joined projections are then needed outside the operation.

use crate::attention::{AttentionShape, HeadGains, RopeTables};
use crate::bridge::{Input, Operation, Output, run};
use burn::tensor::Tensor;
use hadal_cpu::Rows;
use hadal_cpu::attention::{HeadNorms, Shape, Slots, backward, forward};
use hadal_cpu::linear::{self, Weight};

/// `[x Wq^T | x Wk^T | x Wv^T]`. Call this only where [`crate::fuses`] says so.
///
/// # Shapes
/// - `x`: `[B, T, d]`
/// - output: `[B, T, sum of the weights' rows]`
pub fn project_heads(x: Tensor<3>, weights: [Tensor<2>; 3]) -> Tensor<3> {
    let x_shape = x.dims();
    let outs = weights.each_ref().map(|weight| weight.dims()[0]);
    let [q, k, v] = weights;
    run(ProjectHeads { x: x_shape, outs }, vec![x.into(), q.into(), k.into(), v.into()])
}

#[derive(Debug)]
struct ProjectHeads {
    x: [usize; 3],
    outs: [usize; 3],
}

impl ProjectHeads {
    fn weights<'a>(&self, inputs: &'a [Rows]) -> [Weight<'a>; 3] {
        [1, 2, 3].map(|i| Weight::new(inputs[i].values(), self.x[2]))
    }
}

impl Operation for ProjectHeads {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let values = linear::forward(inputs[0].values(), self.x[2], &self.weights(inputs));
        let [batch, time, _] = self.x;
        Output { values, shape: vec![batch, time, self.outs.iter().sum()], saved: Vec::new() }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let x = inputs[0].values();
        let gradient = linear::backward(d.values(), x, self.x[2], &self.weights(inputs));
        std::iter::once(gradient.x).chain(gradient.weights).collect()
    }
}

/// Keys and values that earlier blocks left for the same tokens, normalised and rotated.
#[derive(Clone, Debug)]
pub struct DepthSlots {
    /// `[B, T, slots, kv heads * head_dim]`
    pub keys: Tensor<4>,
    /// `[B, T, slots, kv heads * head_dim]`
    pub values: Tensor<4>,
}

/// Attends within each row of joined projections and to the slots of the same token. Call this only where
/// [`crate::fuses`] says so.
///
/// # Shapes
/// - `joined`: `[B, T, (heads + 2 kv heads) * head_dim]`
/// - output: `[B, T, heads * head_dim]`
pub fn mix_heads(
    joined: Tensor<3>,
    norms: Option<HeadGains>,
    slots: Option<DepthSlots>,
    shape: AttentionShape,
    rope: &RopeTables,
) -> Tensor<3> {
    let [batch, time, _] = joined.dims();
    let (mixing, inputs) = Mixing::prepare(vec![joined.into()], time, norms, slots, shape, rope);
    run(MixHeads { batch, mixing }, inputs)
}

/// An attention whose inputs are projections, then slots if there are any, then gains if there are any.
#[derive(Debug)]
pub(crate) struct Mixing {
    time: usize,
    shape: AttentionShape,
    rope: RopeTables,
    eps: Option<f32>,
    slots: usize,
    /// Inputs that are projections.
    projections: usize,
}

impl Mixing {
    pub(crate) fn prepare(
        projections: Vec<Input>,
        time: usize,
        norms: Option<HeadGains>,
        slots: Option<DepthSlots>,
        shape: AttentionShape,
        rope: &RopeTables,
    ) -> (Self, Vec<Input>) {
        let mixing = Self {
            time,
            shape,
            rope: rope.clone(),
            eps: norms.as_ref().map(|norms| norms.eps as f32),
            slots: slots.as_ref().map_or(0, |slots| slots.keys.dims()[2]),
            projections: projections.len(),
        };
        let mut inputs = projections;
        if let Some(slots) = slots {
            inputs.extend([slots.keys.into(), slots.values.into()]);
        }
        if let Some(norms) = norms {
            inputs.extend([norms.query.into(), norms.key.into()]);
        }
        (mixing, inputs)
    }

    /// Width of the mixed values.
    pub(crate) fn width(&self) -> usize {
        self.shape.heads * self.shape.head_dim
    }

    pub(crate) fn slots<'a>(&self, inputs: &'a [Rows]) -> Slots<'a> {
        let [keys, values] = [0, 1].map(|i| inputs.get(self.projections + i));
        match (self.slots, keys, values) {
            (count @ 1.., Some(keys), Some(values)) => {
                Slots { count, keys: keys.values(), values: values.values() }
            }
            _ => Slots::default(),
        }
    }

    pub(crate) fn shape<'a>(&'a self, inputs: &'a [Rows]) -> Shape<'a> {
        let AttentionShape { heads, kv_heads, head_dim, window } = self.shape;
        let gains = self.projections + if self.slots > 0 { 2 } else { 0 };
        let norms = self.eps.map(|eps| HeadNorms {
            query: inputs[gains].values(),
            key: inputs[gains + 1].values(),
            eps,
        });
        let (cos, sin) = (&self.rope.cos, &self.rope.sin);
        Shape { time: self.time, heads, kv_heads, head_dim, cos, sin, norms, window }
    }

    /// Gradients in the order of the inputs.
    pub(crate) fn gradients(
        &self,
        mut projections: Vec<Vec<f32>>,
        slots: [Vec<f32>; 2],
        gains: [Vec<f32>; 2],
    ) -> Vec<Vec<f32>> {
        if self.slots > 0 {
            projections.extend(slots);
        }
        projections.extend(gains);
        projections
    }
}

#[derive(Debug)]
struct MixHeads {
    batch: usize,
    mixing: Mixing,
}

impl Operation for MixHeads {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let Self { batch, mixing } = self;
        let out = forward(inputs[0].values(), &mixing.shape(inputs), &mixing.slots(inputs));
        let saved = if keep { vec![out.mixed.clone(), out.log_sums] } else { Vec::new() };
        let shape = vec![*batch, mixing.time, mixing.width()];
        Output { values: out.mixed, shape, saved }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let (shape, slots) = (self.mixing.shape(inputs), self.mixing.slots(inputs));
        let joined = inputs[0].values();
        let gradient = backward(d.values(), joined, &saved[0], &saved[1], &shape, &slots);
        self.mixing.gradients(
            vec![gradient.joined],
            [gradient.slot_keys, gradient.slot_values],
            [gradient.query_gain, gradient.key_gain],
        )
    }
}
