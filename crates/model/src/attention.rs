//! Causal self-attention with grouped queries, rotary positions, and optionally the depth slots of
//! Mixture-of-Depths Attention (arXiv 2603.15619): one softmax over the keys of this layer and, for
//! the same token, the keys left by earlier blocks. A sliding window ends the sequence at its far side.

use crate::config::{AttentionBias, ModelConfig};
use crate::layers::Linear;
use crate::mlp::DepthProjection;
use crate::rope::Rope;
use burn::module::Module;
use burn::tensor::{Bool, Tensor, TensorData, activation::softmax};
use hadal_kernels::{
    Asking, AttentionShape, AttentionWeights, DepthSlots, HeadGains, Route, SeenTokens, attention,
    continued_attention, continued_routed_attention, gather, indices, mix_heads, mix_routed_heads,
    project_heads, routed_attention, scatter,
};
use hadal_residual::{Matrix, RmsNorm, Weights};

/// Keys and values, ready to be attended to: normalised and rotated.
#[derive(Clone, Debug)]
pub(crate) struct KeyValue {
    /// `[B, kv heads, T, head_dim]`
    pub(crate) key: Tensor<4>,
    /// `[B, kv heads, T, head_dim]`
    pub(crate) value: Tensor<4>,
}

/// Who asks in a plain pass, and whose keys there are.
pub(crate) struct RowsAsking<'a> {
    /// The new tokens that ask; `None` for all.
    pub(crate) route: Option<&'a Route>,
    /// Of each row, the positions whose keys exist; `None` for all.
    pub(crate) present: Option<&'a [Vec<u32>]>,
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
        Self {
            q,
            k,
            v,
            o,
            q_norm: head_norm("q_norm"),
            k_norm: head_norm("k_norm"),
            heads: config.n_heads,
            kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            window: config.window(block),
        }
    }

    /// How many positions back a token sees, itself included; everything if none.
    pub(crate) fn window(&self) -> Option<usize> {
        self.window
    }

    /// The whole sub-layer as one operation, for rows that begin at their first position.
    ///
    /// # Shapes
    /// - `x` and output: `[B, T, d]`
    pub(crate) fn fused(&self, x: Tensor<3>, rope: &Rope, recompute: bool) -> Tensor<3> {
        attention(x, self.weights(), self.shape(), rope.tables(), recompute)
    }

    /// The sub-layer with depth slots, and what it leaves to later blocks.
    pub(crate) fn with_slots(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        slots: &[KeyValue],
    ) -> (Tensor<3>, KeyValue) {
        let AttentionWeights { q, k, v, norms, bias, .. } = self.weights();
        let joined = project_heads(x, [q, k, v]);
        let joined = match bias {
            None => joined,
            Some(bias) => joined + bias.unsqueeze(),
        };
        let (q_width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let part = |at, width| joined.clone().narrow(2, at, width);
        let own =
            self.finish_slot(part(q_width, kv_width), part(q_width + kv_width, kv_width), rope);
        let slots = depth_slots(slots);
        let mixed = mix_heads(joined, norms, slots, self.shape(), rope.tables());
        (self.o.forward(mixed), own)
    }

    /// The same for rows that continue what was seen before, and are added to it.
    pub(crate) fn continued(&self, x: Tensor<3>, rope: &Rope, seen: SeenTokens) -> Tensor<3> {
        continued_attention(x, self.weights(), self.shape(), rope.tables(), seen)
    }

    /// [`Attention::fused`] for the tokens on a route, of which there must be one.
    pub(crate) fn routed(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        recompute: bool,
        asking: Asking,
    ) -> Tensor<3> {
        routed_attention(x, self.weights(), self.shape(), rope.tables(), recompute, asking)
    }

    /// [`Attention::continued`] for the tokens on a route.
    pub(crate) fn continued_routed(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        seen: SeenTokens,
        asking: Asking,
    ) -> Tensor<3> {
        continued_routed_attention(x, self.weights(), self.shape(), rope.tables(), seen, asking)
    }

    /// [`Attention::with_slots`] for the tokens on a route, of which there must be one; all tokens leave
    /// something to later blocks.
    pub(crate) fn routed_with_slots(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        slots: &[KeyValue],
        route: &Route,
    ) -> (Tensor<3>, KeyValue) {
        let [batch, time, _] = x.dims();
        let queries = self.q.forward(gather(x.clone(), route));
        let (key, value) = (self.k.forward(x.clone()), self.v.forward(x));
        let key_values = Tensor::cat(vec![key.clone(), value.clone()], 2);
        let own = self.finish_slot(key, value, rope);
        let norms = self.weights().norms;
        let (slots, shape) = (depth_slots(slots), self.shape());
        let mixed =
            mix_routed_heads(queries, key_values, norms, slots, shape, rope.tables(), route);
        (scatter(self.o.forward(mixed), route, [batch, time]), own)
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

    /// Of queries, keys and values side by side.
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

    /// This layer's keys and values.
    ///
    /// # Shapes
    /// - `x`: `[B, T, d]`
    pub(crate) fn key_value(&self, x: Tensor<3>, rope: &Rope) -> KeyValue {
        self.finish_slot(self.k.forward(x.clone()), self.v.forward(x), rope)
    }

    /// The slot that this block's MLP leaves: it gets the same norm and rotation as a key of ours.
    pub(crate) fn depth_slot(
        &self,
        projection: &DepthProjection,
        x: Tensor<3>,
        rope: &Rope,
    ) -> KeyValue {
        self.finish_slot(projection.key.forward(x.clone()), projection.value.forward(x), rope)
    }

    fn finish_slot(&self, key: Tensor<3>, value: Tensor<3>, rope: &Rope) -> KeyValue {
        KeyValue {
            key: rope.apply(split_heads(key, self.kv_heads, self.k_norm.as_ref())),
            value: split_heads(value, self.kv_heads, None),
        }
    }

    /// Attends from `x` to the sequence so far, whose last T entries belong to `x` itself, and to
    /// the depth slots of the same tokens.
    ///
    /// # Shapes
    /// - `x` and output: `[B, T, d]`
    /// - `sequence`: `[B, kv heads, S, head_dim]` with S >= T
    /// - each of `slots`: `[B, kv heads, T, head_dim]`
    pub(crate) fn attend(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        sequence: KeyValue,
        slots: &[KeyValue],
    ) -> Tensor<3> {
        let queries = self.queries(x, rope);
        let hidden = self.hidden(&queries, sequence.key.dims()[2]);
        self.o.forward(self.mix(queries, sequence, slots, hidden))
    }

    /// Attends from those new tokens that ask, each to the keys of its row that exist. The other rows of
    /// the output are zero.
    ///
    /// # Shapes
    /// - `x` and output: `[B, T, d]`
    /// - `sequence`: `[B, kv heads, S, head_dim]` with S >= T
    /// - each of `slots`: `[B, kv heads, T, head_dim]`
    pub(crate) fn attend_routed(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        sequence: KeyValue,
        slots: &[KeyValue],
        asking: &RowsAsking,
    ) -> Tensor<3> {
        let [batch, time, _] = x.dims();
        let seen = sequence.key.dims()[2];
        let Some(route) = asking.route else {
            // Everybody asks, but some keys are missing.
            let queries = self.queries(x, rope);
            let rows = (0..batch).map(|row| {
                let everybody: Vec<u32> = (0..time as u32).collect();
                self.mix_row(row, &queries, &sequence, slots, &everybody, asking, seen - time)
            });
            return self.o.forward(Tensor::cat(rows.collect(), 0));
        };
        let running = route.running();
        let projected = self.q.forward(gather(x, route));
        let full = scatter(projected, route, [batch, time]);
        let queries = rope.apply(split_heads(full, self.heads, self.q_norm.as_ref()));
        let rows = route.sequences(time).enumerate().filter(|(_, range)| !range.is_empty());
        let mixed = rows.map(|(row, range)| {
            let askers: Vec<u32> =
                running[range].iter().map(|token| token - (row * time) as u32).collect();
            self.mix_row(row, &queries, &sequence, slots, &askers, asking, seen - time)
        });
        let mixed = self.o.forward(Tensor::cat(mixed.collect(), 1));
        scatter(mixed, route, [batch, time])
    }

    /// What the askers of one row get. `[1, askers, heads * head_dim]`
    #[allow(clippy::too_many_arguments)]
    fn mix_row(
        &self,
        row: usize,
        queries: &Tensor<4>,
        sequence: &KeyValue,
        slots: &[KeyValue],
        askers: &[u32],
        asking: &RowsAsking,
        start: usize,
    ) -> Tensor<3> {
        let of_row = |tensor: &Tensor<4>| tensor.clone().narrow(0, row, 1);
        let chosen = indices(askers.iter().copied(), queries);
        let select = |tensor: &Tensor<4>| of_row(tensor).select(2, chosen.clone());
        let everything: Vec<u32> = (0..sequence.key.dims()[2] as u32).collect();
        let (keys, sequence) = match asking.present {
            None => {
                let all = KeyValue { key: of_row(&sequence.key), value: of_row(&sequence.value) };
                (&everything, all)
            }
            Some(present) => {
                let present = &present[row];
                let there = indices(present.iter().copied(), queries);
                let select = |tensor: &Tensor<4>| of_row(tensor).select(2, there.clone());
                let some = KeyValue { key: select(&sequence.key), value: select(&sequence.value) };
                (present, some)
            }
        };
        let slots: Vec<_> = (slots.iter())
            .map(|slot| KeyValue { key: select(&slot.key), value: select(&slot.value) })
            .collect();
        let reach = self.window.unwrap_or(usize::MAX);
        let is_hidden = |t: u32, key: u32| {
            let (position, key) = (start + t as usize, key as usize);
            key > position || position - key >= reach
        };
        let hidden: Vec<bool> =
            (askers.iter()).flat_map(|&t| keys.iter().map(move |&key| is_hidden(t, key))).collect();
        let shape = [askers.len(), keys.len()];
        let hidden =
            Tensor::<2, Bool>::from_data(TensorData::new(hidden, shape), &queries.device());
        let hidden = hidden.repeat_dim(0, self.heads / self.kv_heads).unsqueeze::<4>();
        self.mix(select(queries), sequence, &slots, Some(hidden))
    }

    /// Normalised and rotated. `[B, heads, T, head_dim]`
    fn queries(&self, x: Tensor<3>, rope: &Rope) -> Tensor<4> {
        rope.apply(split_heads(self.q.forward(x), self.heads, self.q_norm.as_ref()))
    }

    /// True where a key lies after a query that belongs to the last of `seen` keys, or before its window; nothing
    /// if everything is seen. `[1, 1, heads / kv heads * T, seen]`
    fn hidden(&self, queries: &Tensor<4>, seen: usize) -> Option<Tensor<4, Bool>> {
        let (time, device) = (queries.dims()[2], queries.device());
        let offset = (seen - time) as i64;
        let future = || Tensor::<2, Bool>::tril_mask([time, seen], offset, &device);
        let hidden = match self.window.filter(|&window| window < seen) {
            None if time == 1 => return None,
            None => future(),
            Some(window) => {
                let first = offset + 1 - window as i64;
                future().bool_or(Tensor::triu_mask([time, seen], first, &device))
            }
        };
        Some(hidden.repeat_dim(0, self.heads / self.kv_heads).unsqueeze())
    }

    /// The values that each query mixes, of all heads side by side. `[B, T, heads * head_dim]`
    fn mix(
        &self,
        queries: Tensor<4>,
        sequence: KeyValue,
        slots: &[KeyValue],
        hidden: Option<Tensor<4, Bool>>,
    ) -> Tensor<3> {
        let [batch, _, time, _] = queries.dims();
        let (kv, head_dim) = (self.kv_heads, self.head_dim);
        let group = self.heads / kv;
        let seen = sequence.key.dims()[2];
        let weights = self.mixture(queries, sequence.key, slots, hidden);

        let mut out = weights.clone().narrow(3, 0, seen).matmul(sequence.value);
        for (i, slot) in slots.iter().enumerate() {
            let weight: Tensor<5> =
                weights.clone().narrow(3, seen + i, 1).reshape([batch, kv, group, time, 1]);
            let part = weight * slot.value.clone().unsqueeze_dim::<5>(2);
            out = out + part.reshape([batch, kv, group * time, head_dim]);
        }
        let heads = out.reshape([batch, self.heads, time, head_dim]).swap_dims(1, 2);
        heads.reshape([batch, time, self.heads * head_dim])
    }

    /// How much each head gives to each key of the sequence, then to each slot.
    ///
    /// # Shapes
    /// - `queries`: `[B, heads, T, head_dim]`
    /// - `key`: `[B, kv heads, S, head_dim]`
    /// - `hidden`: `[1, 1, heads / kv heads * T, S]`
    /// - output: `[B, kv heads, heads / kv heads * T, S + slots]`
    fn mixture(
        &self,
        queries: Tensor<4>,
        key: Tensor<4>,
        slots: &[KeyValue],
        hidden: Option<Tensor<4, Bool>>,
    ) -> Tensor<4> {
        let [batch, _, time, _] = queries.dims();
        let (kv, head_dim) = (self.kv_heads, self.head_dim);
        let group = self.heads / kv;
        // Query heads that share a key head become rows of one product, so keys are not repeated.
        let rows = [batch, kv, group * time, head_dim];
        let by_token = [batch, kv, group, time, head_dim];

        let q = queries.reshape(rows) * (1.0 / (head_dim as f64).sqrt());
        let mut scores = q.clone().matmul(key.swap_dims(2, 3));
        if let Some(hidden) = hidden {
            let hidden = hidden.expand(scores.dims());
            scores = scores.mask_fill(hidden, f32::NEG_INFINITY);
        }

        let q = q.reshape(by_token);
        let slot_scores = slots.iter().map(|slot| {
            let key = slot.key.clone().unsqueeze_dim::<5>(2);
            (q.clone() * key).sum_dim(4).reshape([batch, kv, group * time, 1])
        });
        let all_scores = std::iter::once(scores).chain(slot_scores).collect();
        softmax(Tensor::cat(all_scores, 3), 3)
    }

    /// How much of its attention each head gives to the first token of a row that begins here.
    ///
    /// # Shapes
    /// - `x`: `[B, T, d]`
    /// - output: `[B, T, heads, 1]`
    pub(crate) fn first_token(&self, x: Tensor<3>, rope: &Rope, slots: &[KeyValue]) -> Tensor<4> {
        let [batch, time, _] = x.dims();
        let key = self.key_value(x.clone(), rope).key;
        let queries = self.queries(x, rope);
        let hidden = self.hidden(&queries, time);
        let first = self.mixture(queries, key, slots, hidden).narrow(3, 0, 1);
        first.reshape([batch, self.heads, time, 1]).swap_dims(1, 2)
    }
}

/// Slots as a fused operation takes them; nothing if there are none.
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
