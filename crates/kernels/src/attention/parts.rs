//! Attention in its parts, for models whose blocks leave keys and values to later ones (depth slots): the
//! projections are then needed outside the operation.

use super::inputs::Inputs;
use super::projected::{Asking, Projected};
use super::{AttentionShape, HeadGains, RopeTables};
use crate::bridge::{Input, Operation, Output, run};
use crate::path::precision;
use burn::tensor::Tensor;
use hadal_cpu::attention::{HeadNorms, Keys, Shape, Slots};
use hadal_cpu::linear::Weight;
use hadal_cpu::{Precision, Route, Rows};

/// `[x Wq^T | x Wk^T | x Wv^T]`.
///
/// # Shapes
/// - `x`: `[B, T, d]`, or `[B, T, 3 d]` if each has an input of its own
/// - output: `[B, T, sum of the weights' rows]`
pub fn project_heads(x: Tensor<3>, weights: [Tensor<2>; 3]) -> Tensor<3> {
    let [batch, time, _] = x.dims();
    let layout = Inputs::of(&x, &weights[0]);
    let outs = weights.each_ref().map(|weight| weight.dims()[0]);
    let [q, k, v] = weights;
    let operation = ProjectHeads { rows: [batch, time], layout, outs, precision: precision() };
    run(operation, vec![x.into(), q.into(), k.into(), v.into()])
}

#[derive(Debug)]
struct ProjectHeads {
    /// Batch and time.
    rows: [usize; 2],
    layout: Inputs,
    outs: [usize; 3],
    precision: Precision,
}

impl ProjectHeads {
    fn weights<'a>(&self, inputs: &'a [Rows]) -> [Weight<'a>; 3] {
        [1, 2, 3].map(|i| Weight::new(inputs[i].values(), self.layout.width()))
    }
}

impl Operation for ProjectHeads {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let (x, weights) = (inputs[0].values(), self.weights(inputs));
        let values = self.layout.forward(x, &weights, 0..3, self.precision);
        let [batch, time] = self.rows;
        Output { values, shape: vec![batch, time, self.outs.iter().sum()], saved: Vec::new() }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let (x, weights) = (inputs[0].values(), self.weights(inputs));
        let gradient = self.layout.backward(d.values(), x, &weights, 0..3, self.precision);
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

/// What [`mix_heads`] attends from. It lives for one call, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum Projections<'a> {
    /// `[q | k | v]` of every token, `[B, T, (heads + 2 kv heads) * head_dim]`
    Joined(Tensor<3>),
    /// Queries of the tokens on a route, which must not be empty, and keys of all tokens.
    Routed {
        /// `[1, running, heads * head_dim]`
        queries: Tensor<3>,
        /// Keys then values of every token, `[B, T, 2 kv heads * head_dim]`
        key_values: Tensor<3>,
        /// The tokens that ask.
        route: &'a Route,
    },
}

/// Attends within each sequence and to the slots of the same token.
///
/// # Shapes
/// - output: `[B, T, heads * head_dim]`, or `[1, running, heads * head_dim]` with a route
pub fn mix_heads(
    projections: Projections,
    norms: Option<HeadGains>,
    slots: Option<DepthSlots>,
    shape: AttentionShape,
    rope: &RopeTables,
) -> Tensor<3> {
    let (mut inputs, time, rows, asking): (Vec<Input>, _, _, _) = match projections {
        Projections::Joined(joined) => {
            let [batch, time, _] = joined.dims();
            (vec![joined.into()], time, [batch, time], None)
        }
        Projections::Routed { queries, key_values, route } => {
            let time = key_values.dims()[1];
            let asking = Asking { route: route.clone(), keys: Keys::All };
            (vec![queries.into(), key_values.into()], time, [1, route.len()], Some(asking))
        }
    };
    let mixing = MixHeads {
        rows,
        time,
        shape,
        rope: rope.clone(),
        eps: norms.as_ref().map(|norms| norms.eps as f32),
        slots: slots.as_ref().map_or(0, |slots| slots.keys.dims()[2]),
        asking,
        precision: precision(),
    };
    if let Some(slots) = slots {
        inputs.extend([slots.keys.into(), slots.values.into()]);
    }
    if let Some(norms) = norms {
        inputs.extend([norms.query.into(), norms.key.into()]);
    }
    run(mixing, inputs)
}

/// Inputs are projections, then slots if there are any, then gains if there are any.
#[derive(Debug)]
struct MixHeads {
    /// Batch and time of the output.
    rows: [usize; 2],
    time: usize,
    shape: AttentionShape,
    rope: RopeTables,
    eps: Option<f32>,
    slots: usize,
    asking: Option<Asking>,
    precision: Precision,
}

impl MixHeads {
    fn projected<'a>(&self, inputs: &'a [Rows]) -> Projected<&'a [f32]> {
        match &self.asking {
            None => Projected::Joined(inputs[0].values()),
            Some(asking) => Projected::Apart {
                queries: inputs[0].values(),
                key_values: inputs[1].values(),
                asking: asking.clone(),
            },
        }
    }

    /// Inputs after the projections.
    fn rest<'a>(&self, inputs: &'a [Rows]) -> &'a [Rows] {
        &inputs[if self.asking.is_some() { 2 } else { 1 }..]
    }

    fn slots<'a>(&self, inputs: &'a [Rows]) -> Slots<'a> {
        match (self.slots, self.rest(inputs)) {
            (count @ 1.., [keys, values, ..]) => {
                Slots { count, keys: keys.values(), values: values.values() }
            }
            _ => Slots::default(),
        }
    }

    fn shape<'a>(&'a self, inputs: &'a [Rows]) -> Shape<'a> {
        let gains = &self.rest(inputs)[if self.slots > 0 { 2 } else { 0 }..];
        let norms =
            self.eps.map(|eps| HeadNorms { query: gains[0].values(), key: gains[1].values(), eps });
        self.shape.with(self.time, &self.rope, norms)
    }
}

impl Operation for MixHeads {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let (shape, slots) = (self.shape(inputs), self.slots(inputs));
        let out = self.projected(inputs).mix(&shape, &slots, self.precision);
        let saved = if keep { vec![out.mixed.clone(), out.log_sums] } else { Vec::new() };
        let [batch, time] = self.rows;
        let shape = vec![batch, time, self.shape.heads * self.shape.head_dim];
        Output { values: out.mixed, shape, saved }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let (shape, slots) = (self.shape(inputs), self.slots(inputs));
        let projected = self.projected(inputs);
        let [mixed, log_sums] = [&saved[0], &saved[1]];
        let d = projected.mix_backward(d.values(), mixed, log_sums, &shape, &slots, self.precision);
        let mut gradients = match d.projected {
            Projected::Joined(joined) => vec![joined],
            Projected::Apart { queries, key_values, .. } => vec![queries, key_values],
        };
        if self.slots > 0 {
            gradients.extend(d.slots);
        }
        gradients.extend(d.gains);
        gradients
    }
}
