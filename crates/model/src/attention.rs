//! Causal self-attention with grouped queries, rotary positions, and optionally the depth slots of
//! Mixture-of-Depths Attention (arXiv 2603.15619): one softmax over the keys of this layer and, for
//! the same token, the keys left by earlier blocks.

use crate::config::ModelConfig;
use crate::layers::Linear;
use crate::mlp::DepthProjection;
use crate::rope::Rope;
use burn::module::Module;
use burn::tensor::{Bool, Tensor, activation::softmax};
use hadal_kernels::{
    AttentionShape, AttentionWeights, DepthSlots, HeadGains, SeenTokens, attention,
    continued_attention, mix_heads, project_heads,
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
}

impl Attention {
    pub(crate) fn new(block: usize, config: &ModelConfig, weights: &mut Weights) -> Self {
        let (d, q, kv) = (config.d_model, config.n_heads * config.head_dim, config.kv_width());
        let std = |matrix| config.residual.branch_std(&config.dimensions(), matrix);
        let name = |part: &str| format!("layers.{block}.attn.{part}.weight");
        let mut linear =
            |part: &str, shape, matrix| Linear::new(name(part), shape, std(matrix), weights);
        let (q, k, v, o) = (
            linear("q", [q, d], Matrix::Query),
            linear("k", [kv, d], Matrix::Key),
            linear("v", [kv, d], Matrix::Value),
            linear("o", [d, q], Matrix::Output),
        );
        let mut head_norm = |part: &str| {
            config
                .qk_norm
                .then(|| RmsNorm::new(name(part), config.head_dim, config.norm_eps, weights))
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
        }
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
        let AttentionWeights { q, k, v, norms, .. } = self.weights();
        let joined = project_heads(x, [q, k, v]);
        let (q_width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let part = |at, width| joined.clone().narrow(2, at, width);
        let own =
            self.finish_slot(part(q_width, kv_width), part(q_width + kv_width, kv_width), rope);
        let slots = (!slots.is_empty()).then(|| DepthSlots {
            keys: side_by_side(slots.iter().map(|slot| slot.key.clone())),
            values: side_by_side(slots.iter().map(|slot| slot.value.clone())),
        });
        let mixed = mix_heads(joined, norms, slots, self.shape(), rope.tables());
        (self.o.forward(mixed), own)
    }

    /// The same for rows that continue what was seen before, and are added to it.
    pub(crate) fn continued(&self, x: Tensor<3>, rope: &Rope, seen: SeenTokens) -> Tensor<3> {
        continued_attention(x, self.weights(), self.shape(), rope.tables(), seen)
    }

    fn weights(&self) -> AttentionWeights {
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
        }
    }

    fn shape(&self) -> AttentionShape {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        AttentionShape { heads, kv_heads, head_dim }
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
        let [batch, time, _] = x.dims();
        let (kv, head_dim) = (self.kv_heads, self.head_dim);
        let group = self.heads / kv;
        let seen = sequence.key.dims()[2];
        let weights = self.mixture(x, rope, sequence.key, slots);

        let mut out = weights.clone().narrow(3, 0, seen).matmul(sequence.value);
        for (i, slot) in slots.iter().enumerate() {
            let weight: Tensor<5> =
                weights.clone().narrow(3, seen + i, 1).reshape([batch, kv, group, time, 1]);
            let part = weight * slot.value.clone().unsqueeze_dim::<5>(2);
            out = out + part.reshape([batch, kv, group * time, head_dim]);
        }
        let heads = out.reshape([batch, self.heads, time, head_dim]).swap_dims(1, 2);
        self.o.forward(heads.reshape([batch, time, self.heads * head_dim]))
    }

    /// How much each head gives to each key of the sequence, then to each slot.
    ///
    /// # Shapes
    /// - `key`: `[B, kv heads, S, head_dim]`
    /// - output: `[B, kv heads, heads / kv heads * T, S + slots]`
    fn mixture(&self, x: Tensor<3>, rope: &Rope, key: Tensor<4>, slots: &[KeyValue]) -> Tensor<4> {
        let [batch, time, _] = x.dims();
        let (kv, head_dim) = (self.kv_heads, self.head_dim);
        let group = self.heads / kv;
        let seen = key.dims()[2];
        // Query heads that share a key head become rows of one product, so keys are not repeated.
        let rows = [batch, kv, group * time, head_dim];
        let by_token = [batch, kv, group, time, head_dim];

        let q = rope.apply(split_heads(self.q.forward(x), self.heads, self.q_norm.as_ref()));
        let q = q.reshape(rows) * (1.0 / (head_dim as f64).sqrt());
        let mut scores = q.clone().matmul(key.swap_dims(2, 3));
        if time > 1 {
            let future = future_mask(time, seen, group, &scores);
            scores = scores.mask_fill(future, f32::NEG_INFINITY);
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
        let first = self.mixture(x, rope, key, slots).narrow(3, 0, 1);
        first.reshape([batch, self.heads, time, 1]).swap_dims(1, 2)
    }
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

/// True where the key lies after the query, whose rows repeat for each query head of a group.
fn future_mask(time: usize, seen: usize, group: usize, like: &Tensor<4>) -> Tensor<4, Bool> {
    let offset = (seen - time) as i64;
    Tensor::<2, Bool>::tril_mask([time, seen], offset, &like.device())
        .repeat_dim(0, group)
        .unsqueeze::<4>()
        .expand(like.dims())
}
