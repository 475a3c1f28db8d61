//! Attention in plain tensor operations, with keys of a cache, depth slots and tokens that do not ask.

use super::{Attention, KeyValue, split_heads};
use crate::rope::Rope;
use burn::tensor::{Bool, Tensor, TensorData, activation::softmax};
use hadal_kernels::{Precision, Route, gather, indices, matmul, precision, scatter};

/// The positions whose keys exist, row by row; `None` for all.
type Present<'a> = Option<&'a [Vec<u32>]>;

impl Attention {
    /// Attends from `x` to the sequence so far, whose last T entries belong to `x` itself, and to
    /// the depth slots of the same tokens. Only tokens on a route ask, if there is one; it must not be empty. The
    /// other rows of the output are zero.
    ///
    /// # Shapes
    /// - `x`: as in [`Attention::fused`]
    /// - output: `[B, T, d]`
    /// - `sequence`: `[B, kv heads, S, head_dim]` with S >= T
    /// - each of `slots`: `[B, kv heads, T, head_dim]`
    pub(crate) fn plain(
        &self,
        x: Tensor<3>,
        rope: &Rope,
        sequence: KeyValue,
        slots: &[KeyValue],
        route: Option<&Route>,
        present: Present,
    ) -> Tensor<3> {
        let [batch, time, _] = x.dims();
        let [x, _, _] = self.inputs(x);
        let seen = sequence.key.dims()[2];
        let complete = present.is_none_or(|rows| rows.iter().all(|row| row.len() == seen));
        let mix_row = |row: usize, queries: &Tensor<4>, askers: &[u32]| {
            self.mix_row(row, queries, &sequence, slots, askers, present, seen - time)
        };
        match route {
            None if complete => {
                let queries = self.queries(x, rope);
                let hidden = self.hidden(&queries, seen);
                self.o.forward(self.mix(queries, sequence, slots, hidden))
            }
            // All tokens ask, but some keys are missing.
            None => {
                let queries = self.queries(x, rope);
                let all: Vec<u32> = (0..time as u32).collect();
                let rows = (0..batch).map(|row| mix_row(row, &queries, &all));
                self.o.forward(Tensor::cat(rows.collect(), 0))
            }
            Some(route) => {
                let running = route.running();
                let projected = self.q.forward(gather(x, route));
                let full = scatter(projected, route, [batch, time]);
                let queries = rope.apply(split_heads(full, self.heads, self.q_norm.as_ref()));
                let rows = route.sequences(time).enumerate().filter(|(_, range)| !range.is_empty());
                let mixed = rows.map(|(row, range)| {
                    let token = |token: &u32| token - (row * time) as u32;
                    let askers: Vec<u32> = running[range].iter().map(token).collect();
                    mix_row(row, &queries, &askers)
                });
                let mixed = self.o.forward(Tensor::cat(mixed.collect(), 1));
                scatter(mixed, route, [batch, time])
            }
        }
    }

    /// The output for the asking tokens of one row. `[1, askers, heads * head_dim]`
    #[allow(clippy::too_many_arguments)]
    fn mix_row(
        &self,
        row: usize,
        queries: &Tensor<4>,
        sequence: &KeyValue,
        slots: &[KeyValue],
        askers: &[u32],
        present: Present,
        start: usize,
    ) -> Tensor<3> {
        let of_row = |tensor: &Tensor<4>| tensor.clone().narrow(0, row, 1);
        let chosen = indices(askers.iter().copied(), queries);
        let select = |tensor: &Tensor<4>| of_row(tensor).select(2, chosen.clone());
        let everything: Vec<u32> = (0..sequence.key.dims()[2] as u32).collect();
        let (keys, sequence) = match present {
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

    /// True where a key lies after a query that belongs to the last of `seen` keys, or before its window; `None` if
    /// everything is seen. `[1, 1, heads / kv heads * T, seen]`
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

    /// The values that each query mixes, for all heads side by side. `[B, T, heads * head_dim]`
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

        let mut out = weighted(weights.clone().narrow(3, 0, seen), sequence.value);
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
        // Query heads with the same key head become rows of one product, so keys are not repeated.
        let rows = [batch, kv, group * time, head_dim];
        let by_token = [batch, kv, group, time, head_dim];

        let scale = 1.0 / (head_dim as f64).sqrt();
        let queries = queries.reshape(rows);
        let q = queries.clone() * scale;
        let mut scores = match precision() {
            Precision::F32 => q.clone().matmul(key.swap_dims(2, 3)),
            // Operands are rounded before they are scaled.
            _ => matmul(queries, key.swap_dims(2, 3)) * scale,
        };
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
    /// - `x`: as in [`Attention::fused`]
    /// - output: `[B, T, heads, 1]`
    pub(crate) fn first_token(&self, x: Tensor<3>, rope: &Rope, slots: &[KeyValue]) -> Tensor<4> {
        let [batch, time, _] = x.dims();
        let key = self.finish_slot(self.key_value(x.clone(), None), rope).key;
        let [x, _, _] = self.inputs(x);
        let queries = self.queries(x, rope);
        let hidden = self.hidden(&queries, time);
        let first = self.mixture(queries, key, slots, hidden).narrow(3, 0, 1);
        first.reshape([batch, self.heads, time, 1]).swap_dims(1, 2)
    }
}

/// Values mixed by weights. Those are rounded relative to the largest of their row, as they are before they are divided by
/// their sum.
fn weighted(weights: Tensor<4>, values: Tensor<4>) -> Tensor<4> {
    if precision() == Precision::F32 {
        return weights.matmul(values);
    }
    // Where a depth slot has taken all, nothing is left to be rounded.
    let largest = weights.clone().detach().max_dim(3).clamp_min(f32::MIN_POSITIVE);
    matmul(weights / largest.clone(), values) * largest
}
