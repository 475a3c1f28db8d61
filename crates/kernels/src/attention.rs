//! Causal self-attention as a whole sub-layer: projections, head norms, rotation, mixing, output.

use crate::bridge::{Input, Operation, Output, run};
use crate::seen::SeenTokens;
use burn::tensor::Tensor;
use hadal_cpu::Rows;
use hadal_cpu::attention::{HeadNorms, Shape, Slots, backward, forward};
use hadal_cpu::bias;
use hadal_cpu::linear::{self, Weight};
use std::sync::Arc;

/// Rotations of a run of positions.
#[derive(Clone, Debug)]
pub struct RopeTables {
    /// `[time, head_dim / 2]`
    pub cos: Arc<[f32]>,
    /// `[time, head_dim / 2]`
    pub sin: Arc<[f32]>,
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// How many positions back a token sees, itself included; everything if none.
    pub window: Option<u32>,
}

/// The parameters of an attention.
pub struct AttentionWeights {
    /// `[heads * head_dim, d]`
    pub q: Tensor<2>,
    /// `[kv_heads * head_dim, d]`
    pub k: Tensor<2>,
    /// `[kv_heads * head_dim, d]`
    pub v: Tensor<2>,
    /// `[d, heads * head_dim]`
    pub o: Tensor<2>,
    /// Norms over each head, if there are any.
    pub norms: Option<HeadGains>,
    /// Of queries, keys and values side by side, `[(heads + 2 kv_heads) * head_dim]`.
    pub bias: Option<Tensor<1>>,
    /// `[d]`
    pub output_bias: Option<Tensor<1>>,
}

/// RMS norms over each head, before the rotation.
pub struct HeadGains {
    /// `[head_dim]`
    pub query: Tensor<1>,
    /// `[head_dim]`
    pub key: Tensor<1>,
    /// Added to the mean square.
    pub eps: f64,
}

/// Attends within each row of `x`, from its first position on. With `recompute`, everything but `x` is
/// computed again for the backward pass instead of being kept.
///
/// There is no plain form here: it is the model's own attention, which also knows caches and depth slots.
/// Call this only where [`crate::fuses`] says so.
///
/// # Shapes
/// - `x` and output: `[B, T, d]`
pub fn attention(
    x: Tensor<3>,
    weights: AttentionWeights,
    shape: AttentionShape,
    rope: &RopeTables,
    recompute: bool,
) -> Tensor<3> {
    let (operation, inputs) = prepare(x, weights, shape, rope, recompute);
    run(operation, inputs)
}

/// Attends from rows that continue what was seen before, and adds them to it. Without a backward pass:
/// call this only on a device without autodiff.
///
/// # Shapes
/// - `x` and output: `[B, T, d]`
/// - `rope`: the T positions behind those seen
pub fn continued_attention(
    x: Tensor<3>,
    weights: AttentionWeights,
    shape: AttentionShape,
    rope: &RopeTables,
    seen: SeenTokens,
) -> Tensor<3> {
    let (attention, inputs) = prepare(x, weights, shape, rope, false);
    run(Continued { attention, seen }, inputs)
}

pub(crate) fn prepare(
    x: Tensor<3>,
    weights: AttentionWeights,
    shape: AttentionShape,
    rope: &RopeTables,
    recompute: bool,
) -> (Attention, Vec<Input>) {
    let AttentionWeights { q, k, v, o, norms, bias, output_bias } = weights;
    let eps = norms.as_ref().map(|norms| norms.eps as f32);
    let x_shape = x.dims();
    let mut inputs: Vec<Input> = vec![x.into(), q.into(), k.into(), v.into(), o.into()];
    if let Some(norms) = norms {
        inputs.extend([norms.query.into(), norms.key.into()]);
    }
    let mut place = |bias: Option<Tensor<1>>| {
        bias.map(|bias| {
            inputs.push(bias.into());
            inputs.len() - 1
        })
    };
    let (bias, output_bias) = (place(bias), place(output_bias));
    let rope = rope.clone();
    let operation = Attention { x: x_shape, shape, rope, eps, bias, output_bias, recompute };
    (operation, inputs)
}

/// An attention with what it has seen before.
#[derive(Debug)]
struct Continued {
    attention: Attention,
    seen: SeenTokens,
}

impl Operation for Continued {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let attention = &self.attention;
        let joined = attention.joined(inputs);
        let mixed = self.seen.attend(&joined, &attention.shape(inputs), attention.x[0]);
        let values = attention.outputs(&mixed, inputs);
        Output { values, shape: attention.x.to_vec(), saved: Vec::new() }
    }

    fn backward(&self, _: Rows, _: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        unreachable!("a continued attention is run without autodiff")
    }
}

/// Inputs are x, the four matrices, then gains if there are any, then biases if there are any.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) x: [usize; 3],
    shape: AttentionShape,
    rope: RopeTables,
    eps: Option<f32>,
    /// Which input it is, as below.
    bias: Option<usize>,
    output_bias: Option<usize>,
    pub(crate) recompute: bool,
}

impl Attention {
    pub(crate) fn width(&self) -> usize {
        self.x[2]
    }

    pub(crate) fn mixed_width(&self) -> usize {
        self.shape.heads * self.shape.head_dim
    }

    pub(crate) fn shape<'a>(&'a self, inputs: &'a [Rows]) -> Shape<'a> {
        let AttentionShape { heads, kv_heads, head_dim, window } = self.shape;
        let norms = self.eps.map(|eps| HeadNorms {
            query: inputs[5].values(),
            key: inputs[6].values(),
            eps,
        });
        let (cos, sin) = (&self.rope.cos, &self.rope.sin);
        Shape { time: self.x[1], heads, kv_heads, head_dim, cos, sin, norms, window }
    }

    pub(crate) fn projections<'a>(&self, inputs: &'a [Rows]) -> [Weight<'a>; 3] {
        [1, 2, 3].map(|i| Weight::new(inputs[i].values(), self.width()))
    }

    pub(crate) fn output<'a>(&self, inputs: &'a [Rows]) -> [Weight<'a>; 1] {
        [Weight::new(inputs[4].values(), self.mixed_width())]
    }

    fn bias<'a>(&self, inputs: &'a [Rows]) -> Option<&'a [f32]> {
        self.bias.map(|place| inputs[place].values())
    }

    /// `[q | k | v]` of every token.
    fn joined(&self, inputs: &[Rows]) -> Vec<f32> {
        let x = inputs[0].values();
        let joined = linear::forward(x, self.width(), &self.projections(inputs));
        biased(joined, self.bias(inputs))
    }

    /// Of the rows `x`.
    pub(crate) fn queries(&self, x: &[f32], inputs: &[Rows]) -> Vec<f32> {
        let [q, _, _] = self.projections(inputs);
        let bias = self.bias(inputs).map(|bias| &bias[..self.mixed_width()]);
        biased(linear::forward(x, self.width(), &[q]), bias)
    }

    /// `[k | v]` of the rows `x`.
    pub(crate) fn key_values(&self, x: &[f32], inputs: &[Rows]) -> Vec<f32> {
        let [_, k, v] = self.projections(inputs);
        let bias = self.bias(inputs).map(|bias| &bias[self.mixed_width()..]);
        biased(linear::forward(x, self.width(), &[k, v]), bias)
    }

    /// What comes of mixed values.
    pub(crate) fn outputs(&self, mixed: &[f32], inputs: &[Rows]) -> Vec<f32> {
        let values = linear::forward(mixed, self.mixed_width(), &self.output(inputs));
        biased(values, self.output_bias.map(|place| inputs[place].values()))
    }

    /// The gradients of gains and biases, as far as there are any, in the order of the inputs. `parts` are the
    /// gradients of queries, keys and values in columns, and `d` that of the rows that were put out.
    pub(crate) fn small_gradients(
        &self,
        gains: [Vec<f32>; 2],
        parts: &[(&[f32], usize)],
        d: &[f32],
    ) -> Vec<Vec<f32>> {
        let mut gradients = Vec::new();
        if self.eps.is_some() {
            gradients.extend(gains);
        }
        if self.bias.is_some() {
            let each = parts.iter().flat_map(|(part, width)| bias::gradient(part, *width));
            gradients.push(each.collect());
        }
        if self.output_bias.is_some() {
            gradients.push(bias::gradient(d, self.width()));
        }
        gradients
    }

    pub(crate) fn key_value_width(&self) -> usize {
        2 * self.shape.kv_heads * self.shape.head_dim
    }

    /// The joined projections, the mixed values and the logarithms of the sums.
    fn intermediates(&self, inputs: &[Rows]) -> [Vec<f32>; 3] {
        let joined = self.joined(inputs);
        let out = forward(&joined, &self.shape(inputs), &Slots::default());
        [joined, out.mixed, out.log_sums]
    }
}

impl Operation for Attention {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let saved = self.intermediates(inputs);
        let values = self.outputs(&saved[1], inputs);
        let saved = if keep && !self.recompute { saved.into() } else { Vec::new() };
        Output { values, shape: self.x.to_vec(), saved }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let [joined, mixed, log_sums] = match <[Vec<f32>; 3]>::try_from(saved) {
            Ok(saved) => saved,
            Err(_) => self.intermediates(inputs),
        };
        let mut out =
            linear::backward(d.values(), &mixed, self.mixed_width(), &self.output(inputs));
        let heads = {
            let (shape, slots) = (self.shape(inputs), Slots::default());
            backward(&out.x, &joined, &mixed, &log_sums, &shape, &slots)
        };
        drop((joined, mixed));
        let x = inputs[0].values();
        let projections =
            linear::backward(&heads.joined, x, self.width(), &self.projections(inputs));
        let mut gradients = vec![projections.x];
        gradients.extend(projections.weights);
        gradients.push(out.weights.remove(0));
        let width = self.mixed_width() + self.key_value_width();
        let gains = [heads.query_gain, heads.key_gain];
        gradients.extend(self.small_gradients(gains, &[(&heads.joined, width)], d.values()));
        gradients
    }
}

fn biased(mut rows: Vec<f32>, bias: Option<&[f32]>) -> Vec<f32> {
    if let Some(bias) = bias {
        bias::add(&mut rows, bias);
    }
    rows
}
