//! Causal self-attention with grouped queries, rotary positions, and optionally the depth slots of
//! Mixture-of-Depths Attention (arXiv 2603.15619): one softmax over the keys of this layer and, for
//! the same token, the keys left by earlier blocks. A sliding window ends the sequence at its far side.

mod plain;

use crate::config::{AttentionBias, ModelConfig, ValueResidual};
use crate::layers::Linear;
use crate::mlp::DepthProjection;
use crate::rope::Rope;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_kernels::{
    Asking, AttentionCall, AttentionShape, AttentionWeights, DepthSlots, FirstValues, HeadGains,
    Projections, Route, SeenTokens, attention, continued_attention, gather, mix_heads, mix_values,
    project_heads, scatter,
};
use hadal_residual::{Init, Matrix, RmsNorm, Weights};

/// Keys and values, ready to be attended to: normalised and rotated.
#[derive(Clone, Debug)]
pub(crate) struct KeyValue {
    /// `[B, kv heads, T, head_dim]`
    pub(crate) key: Tensor<4>,
    /// `[B, kv heads, T, head_dim]`
    pub(crate) value: Tensor<4>,
}

/// Grouped-query attention.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    /// How much of the first attention's values and of its own it takes, `[2]`, if that is learned.
    value_mix: Option<Param<Tensor<1>>>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// How many positions back a token sees, itself included.
    #[module(skip)]
    window: Option<usize>,
}

impl Attention {
    pub(crate) fn new(block: usize, config: &ModelConfig, weights: &mut Weights) -> Self {
        let (d, q, kv) = (config.d_model, config.n_heads * config.head_dim, config.kv_width());
        let std = |matrix| config.residual.branch_std(&config.dimensions(), matrix);
        let name = |part: &str| format!("layers.{block}.attn.{part}");
        let bias = config.attention_bias.is_some();
        let output_bias = config.attention_bias == Some(AttentionBias::All);
        let mut linear = |part: &str, shape, matrix, bias| {
            Linear::new(&name(part), shape, std(matrix), bias, weights)
        };
        let (q, k, v, o) = (
            linear("q", [q, d], Matrix::Query, bias),
            linear("k", [kv, d], Matrix::Key, bias),
            linear("v", [kv, d], Matrix::Value, bias),
            linear("o", [d, q], Matrix::Output, output_bias),
        );
        let mut head_norm = |part: &str| {
            let name = format!("{}.weight", name(part));
            config.qk_norm.then(|| RmsNorm::new(name, config.head_dim, config.norm_eps, weights))
        };
        let (q_norm, k_norm) = (head_norm("q_norm"), head_norm("k_norm"));
        let mixes = config.value_residual == ValueResidual::Learned && block > 0;
        let value_mix = mixes.then(|| weights.param(name("value_mix"), [2], Init::Constant(0.5)));
        Self {
            q,
            k,
            v,
            o,
            q_norm,
            k_norm,
            value_mix,
            heads: config.n_heads,
            kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            window: config.window(block),
        }
    }

    /// Features of an input and of the output.
    pub(crate) fn width(&self) -> usize {
        self.q.weight().dims()[1]
    }

    /// How many positions back a token sees, itself included; everything if none.
    pub(crate) fn window(&self) -> Option<usize> {
        self.window
    }

    /// The whole sub-layer as one operation, for rows that begin at their first position. A route must not be empty.
    ///
    /// # Shapes
    /// - `x`: `[B, T, d]`, or `[B, T, 3 d]`: inputs of queries, keys and values side by side; so for all that follow
    /// - output: `[B, T, d]`
    pub(crate) fn fused(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        asking: Option<Asking>,
        first_values: Option<Tensor<3>>,
        recompute: bool,
    ) -> Tensor<3> {
        attention(x, self.weights(), self.call(rope, asking, first_values, recompute))
    }

    /// The same for rows that continue what was seen before and are added to it. A route may be empty.
    pub(crate) fn continued(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        asking: Option<Asking>,
        first_values: Option<Tensor<3>>,
        seen: SeenTokens,
    ) -> Tensor<3> {
        continued_attention(x, self.weights(), self.call(rope, asking, first_values, false), seen)
    }

    fn call<'a>(
        &self,
        rope: &'a Rope,
        asking: Option<Asking>,
        first_values: Option<Tensor<3>>,
        recompute: bool,
    ) -> AttentionCall<'a> {
        let first_values = first_values.map(|values| self.mixed_with(values));
        AttentionCall { shape: self.shape(), rope: rope.tables(), asking, first_values, recompute }
    }

    /// The first attention's values, as this one takes them.
    fn mixed_with(&self, values: Tensor<3>) -> FirstValues {
        FirstValues { values, weights: self.value_mix() }
    }

    /// The learned weights of the first attention's values and of its own.
    pub(crate) fn value_mix(&self) -> Option<Tensor<1>> {
        self.value_mix.as_ref().map(Param::val)
    }

    /// The sub-layer with depth slots, and what it can leave to later blocks: the projected keys, and the values that it
    /// attends to. All tokens leave something, even those off the route. A route must not be empty.
    pub(crate) fn with_slots(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        slots: &[KeyValue],
        route: Option<&Route>,
        first_values: Option<Tensor<3>>,
    ) -> (Tensor<3>, [Tensor<3>; 2]) {
        let [batch, time, _] = x.dims();
        let AttentionWeights { q, k, v, norms, bias, .. } = self.weights();
        let mix = |rows| match first_values {
            None => rows,
            Some(values) => mix_values(rows, self.mixed_with(values)),
        };
        let (projections, own) = match route {
            None => {
                let joined = project_heads(x, [q, k, v]);
                let joined = match bias {
                    None => joined,
                    Some(bias) => joined + bias.unsqueeze(),
                };
                let joined = mix(joined);
                let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
                let part = |at, width| joined.clone().narrow(2, at, width);
                let own = [part(queries, keys), part(queries + keys, keys)];
                (Projections::Joined(joined), own)
            }
            Some(route) => {
                let [queries, keys, values] = self.inputs(x);
                let queries = self.q.forward(gather(queries, route));
                let (key, value) = (self.k.forward(keys), mix(self.v.forward(values)));
                let key_values = Tensor::cat(vec![key.clone(), value.clone()], 2);
                (Projections::Routed { queries, key_values, route }, [key, value])
            }
        };
        let slots = depth_slots(slots);
        let output = mix_heads(projections, norms, slots, self.shape(), rope.tables());
        let output = self.o.forward(output);
        let output = match route {
            None => output,
            Some(route) => scatter(output, route, [batch, time]),
        };
        (output, own)
    }

    /// The matrices, gains and biases.
    pub(crate) fn weights(&self) -> AttentionWeights {
        let norms = self.q_norm.as_ref().zip(self.k_norm.as_ref());
        AttentionWeights {
            q: self.q.weight(),
            k: self.k.weight(),
            v: self.v.weight(),
            o: self.o.weight(),
            norms: norms.map(|(query, key)| HeadGains {
                query: query.gain(),
                key: key.gain(),
                eps: query.eps(),
            }),
            bias: self.bias(),
            output_bias: self.o.bias(),
        }
    }

    /// The biases of queries, keys and values side by side.
    fn bias(&self) -> Option<Tensor<1>> {
        Some(Tensor::cat(vec![self.q.bias()?, self.k.bias()?, self.v.bias()?], 0))
    }

    /// The sizes.
    pub(crate) fn shape(&self) -> AttentionShape {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        // A window beyond u32 is wider than any text.
        let window = self.window.map(|window| u32::try_from(window).unwrap_or(u32::MAX));
        AttentionShape { heads, kv_heads, head_dim, window }
    }

    /// What queries, keys and values are made of: the same, unless they stand side by side.
    ///
    /// # Shapes
    /// - `x`: `[B, T, d]` or `[B, T, 3 d]`
    /// - output: `[B, T, d]` each
    fn inputs(&self, x: Tensor<3>) -> [Tensor<3>; 3] {
        let width = self.width();
        match x.dims()[2] == width {
            true => [x.clone(), x.clone(), x],
            false => [0, 1, 2].map(|kind| x.clone().narrow(2, kind * width, width)),
        }
    }

    /// This layer's keys before norms and rotation, and the values that it attends to.
    ///
    /// # Shapes
    /// - `x`: as in [`Attention::inputs`]
    /// - `first_values` and output: `[B, T, kv heads * head_dim]`
    pub(crate) fn key_value(
        &self,
        x: Tensor<3>,
        first_values: Option<Tensor<3>>,
    ) -> [Tensor<3>; 2] {
        let [_, keys, values] = self.inputs(x);
        let (key, value) = (self.k.forward(keys), self.v.forward(values));
        let value = match (first_values, self.value_mix()) {
            (None, _) => value,
            (Some(first), None) => (first + value) * 0.5,
            (Some(first), Some(weights)) => {
                let weight = |at| weights.clone().narrow(0, at, 1).unsqueeze::<3>();
                first * weight(0) + value * weight(1)
            }
        };
        [key, value]
    }

    /// The slot that this block's MLP leaves: it gets the same norm and rotation as a key of this layer.
    pub(crate) fn depth_slot(
        &self,
        projection: &DepthProjection,
        x: Tensor<3>,
        rope: &Rope,
    ) -> KeyValue {
        self.finish_slot([projection.key.forward(x.clone()), projection.value.forward(x)], rope)
    }

    /// Normalises and rotates projected keys. All that has the shape of this layer's keys and values may come.
    pub(crate) fn finish_slot(&self, [key, value]: [Tensor<3>; 2], rope: &Rope) -> KeyValue {
        KeyValue {
            key: rope.apply(split_heads(key, self.kv_heads, self.k_norm.as_ref())),
            value: split_heads(value, self.kv_heads, None),
        }
    }
}

/// Slots in the form that a fused operation takes; `None` if there are none.
fn depth_slots(slots: &[KeyValue]) -> Option<DepthSlots> {
    (!slots.is_empty()).then(|| DepthSlots {
        keys: side_by_side(slots.iter().map(|slot| slot.key.clone())),
        values: side_by_side(slots.iter().map(|slot| slot.value.clone())),
    })
}

/// Slots `[B, heads, T, head_dim]` of each token one after another: `[B, T, slots, heads * head_dim]`.
fn side_by_side(slots: impl Iterator<Item = Tensor<4>>) -> Tensor<4> {
    let rows = slots.map(|slot| {
        let [batch, heads, time, dim] = slot.dims();
        slot.swap_dims(1, 2).reshape([batch, time, 1, heads * dim])
    });
    Tensor::cat(rows.collect(), 2)
}

/// `[B, T, heads * head_dim] -> [B, heads, T, head_dim]`, normalised per head if asked.
fn split_heads(x: Tensor<3>, heads: usize, norm: Option<&RmsNorm>) -> Tensor<4> {
    let [batch, time, width] = x.dims();
    let x = x.reshape([batch, time, heads, width / heads]);
    let x = match norm {
        None => x,
        Some(norm) => norm.forward(x),
    };
    x.swap_dims(1, 2)
}
