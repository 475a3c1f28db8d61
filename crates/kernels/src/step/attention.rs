//! Attention of a single token to those before it.

use super::{LinearStep, Room, lend_some};
use crate::attention::{AttentionShape, AttentionWeights, HALVES, Inputs};
use crate::bridge::lend;
use burn::tensor::Tensor;
use hadal_cpu::Rows;
use hadal_cpu::attention::{HeadNorms, KeyValues, Shape};
use hadal_cpu::bias;
use hadal_cpu::linear;
use hadal_cpu::value_mix::ValueColumns;
use std::ops::Range;

/// [`crate::continued_attention()`] for a single token.
#[derive(Debug)]
pub struct AttentionStep {
    q: LinearStep,
    k: LinearStep,
    v: LinearStep,
    o: LinearStep,
    norms: Option<Norms>,
    bias: Option<Rows>,
    output_bias: Option<Rows>,
    shape: AttentionShape,
    values: Values,
}

/// What becomes of the values of an attention. It lives for one call, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum ValueStep {
    /// They are its own business.
    Own,
    /// Later ones mix them into theirs.
    First,
    /// Those of the first are mixed into them, with these weights, `[2]`; a half of each without them.
    Mixed(Option<Tensor<1>>),
}

#[derive(Debug)]
enum Values {
    Own,
    First,
    Mixed(Option<Rows>),
}

impl Values {
    /// Leaves a token's values to later attentions, or takes what the first one left.
    fn pass(&self, values: &mut [f32], first: &mut Vec<f32>) {
        match self {
            Self::Own => {}
            Self::First => {
                first.clear();
                first.extend_from_slice(values);
            }
            Self::Mixed(weights) => {
                let weights = weights.as_ref().map_or(HALVES, |weights| {
                    let weights = weights.values();
                    [weights[0], weights[1]]
                });
                let columns = ValueColumns { width: values.len(), values: values.len() };
                columns.mix(values, first, weights);
            }
        }
    }
}

#[derive(Debug)]
struct Norms {
    query: Rows,
    key: Rows,
    eps: f32,
}

/// The rotation of one position: cosines and sines, `[head_dim / 2]` each.
type Rotation<'a> = (&'a [f32], &'a [f32]);

impl AttentionStep {
    /// `None` if [`lend`] returns `None`.
    pub fn new(
        weights: AttentionWeights,
        shape: AttentionShape,
        values: ValueStep,
    ) -> Option<Self> {
        let AttentionWeights { q, k, v, o, norms, bias, output_bias } = weights;
        let norms = match norms {
            None => None,
            Some(gains) => Some(Norms {
                query: lend(gains.query)?,
                key: lend(gains.key)?,
                eps: gains.eps as f32,
            }),
        };
        Some(Self {
            q: LinearStep::new(q)?,
            k: LinearStep::new(k)?,
            v: LinearStep::new(v)?,
            o: LinearStep::new(o)?,
            norms,
            bias: lend_some(bias)?,
            output_bias: lend_some(output_bias)?,
            shape,
            values: match values {
                ValueStep::Own => Values::Own,
                ValueStep::First => Values::First,
                ValueStep::Mixed(weights) => Values::Mixed(lend_some(weights)?),
            },
        })
    }

    /// How many positions back a token sees, itself included; everything if none.
    pub fn window(&self) -> Option<u32> {
        self.shape.window
    }

    /// Reserves memory for this many tokens.
    pub fn reserve(&self, seen: &mut KeyValues, tokens: usize) {
        seen.reserve(tokens, self.shape.kv_heads, self.shape.head_dim);
    }

    /// Attends from a token to all before it, and adds it to them.
    ///
    /// # Shapes
    /// - `x`: `[d]`, or `[3 d]`: inputs of queries, keys and values side by side
    /// - `y`: `[d]`
    pub fn run(
        &self,
        x: &[f32],
        rotation: Rotation,
        seen: &mut KeyValues,
        room: &mut Room,
        y: &mut [f32],
    ) {
        let Room { joined, mixed, first_values, .. } = room;
        let shape = self.shape(rotation);
        self.project(x, 0..3, joined);
        self.values.pass(&mut joined[self.q.out() + self.k.out()..], first_values);
        mixed.resize(self.q.out(), 0.0);
        seen.step(joined, &shape, mixed);
        self.o.apply(mixed, y);
        add_bias(y, self.output_bias.as_ref(), 0);
    }

    /// Adds a token that does not ask to what was seen.
    ///
    /// # Shapes
    /// - `x`: as in [`AttentionStep::run`]
    pub fn add(&self, x: &[f32], rotation: Rotation, seen: &mut KeyValues, room: &mut Room) {
        let Room { joined, first_values, .. } = room;
        self.project(x, 1..3, joined);
        self.values.pass(&mut joined[self.k.out()..], first_values);
        seen.add(joined, 0, &self.shape(rotation));
    }

    /// Queries, keys and values of these kinds, side by side.
    fn project(&self, x: &[f32], kinds: Range<usize>, joined: &mut Vec<f32>) {
        let weights = [&self.q, &self.k, &self.v].map(LinearStep::weight);
        let inputs = Inputs::new(x.len(), self.q.inputs);
        joined.resize(weights[kinds.clone()].iter().map(|weight| weight.out).sum(), 0.0);
        let mut rest = joined.as_mut_slice();
        for kind in kinds.clone() {
            let (part, others) = rest.split_at_mut(weights[kind].out);
            linear::step(inputs.part(x, kind), &weights[kind..=kind], part);
            rest = others;
        }
        add_bias(joined, self.bias.as_ref(), if kinds.start == 0 { 0 } else { self.q.out() });
    }

    fn shape<'a>(&'a self, (cos, sin): Rotation<'a>) -> Shape<'a> {
        let AttentionShape { heads, kv_heads, head_dim, window } = self.shape;
        let norms = self.norms.as_ref().map(|norms| HeadNorms {
            query: norms.query.values(),
            key: norms.key.values(),
            eps: norms.eps,
        });
        Shape { time: 1, heads, kv_heads, head_dim, cos, sin, norms, window }
    }
}

/// Adds the elements of a bias from `first` on.
fn add_bias(row: &mut [f32], bias: Option<&Rows>, first: usize) {
    if let Some(bias) = bias {
        bias::add(row, &bias.values()[first..]);
    }
}
