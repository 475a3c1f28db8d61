//! Keys and values of the tokens seen so far, as a fused attention keeps them.

use crate::routed::Asking;
use hadal_cpu::attention::{KeyValues, Keys, Shape, Slots, forward, forward_routed};
use std::sync::{Arc, Mutex, PoisonError};

/// Rows from which on all new tokens are mixed at once instead of one after another.
const MANY: usize = 8;

/// What one layer has seen, for each row of a batch.
#[derive(Clone, Debug, Default)]
pub struct SeenRows {
    rows: Vec<KeyValues>,
}

impl SeenRows {
    /// Number of rows of the batch.
    pub fn batch(&self) -> usize {
        self.rows.len()
    }

    /// Tokens of each row that have keys.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().map(KeyValues::len)
    }

    /// The only row of a batch of one.
    pub fn only(&mut self) -> &mut KeyValues {
        self.rows.resize_with(1, KeyValues::default);
        &mut self.rows[0]
    }

    /// All keys and all values, `[batch, heads, time, head_dim]`.
    pub fn to_vectors(&self) -> (Vec<f32>, Vec<f32>) {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for row in &self.rows {
            for (head_keys, head_values) in row.heads() {
                keys.extend_from_slice(head_keys);
                values.extend_from_slice(head_values);
            }
        }
        (keys, values)
    }

    /// From what [`SeenRows::to_vectors`] returns; sizes are batch, heads and head_dim.
    pub fn from_vectors(keys: &[f32], values: &[f32], [batch, heads, dim]: [usize; 3]) -> Self {
        let row = keys.len() / batch.max(1);
        let rows = (0..batch)
            .map(|b| {
                let part = b * row..(b + 1) * row;
                KeyValues::from_heads(&keys[part.clone()], &values[part], heads, dim)
            })
            .collect();
        Self { rows }
    }
}

/// Lent to an operation for the time of one pass.
#[derive(Clone, Debug)]
pub struct SeenTokens(Arc<Mutex<SeenRows>>);

impl SeenTokens {
    /// Lends.
    pub fn new(rows: SeenRows) -> Self {
        Self(Arc::new(Mutex::new(rows)))
    }

    /// Takes back.
    pub fn take(self) -> SeenRows {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Attends from those new tokens that ask to all before them, and adds those that have keys.
    pub(crate) fn attend_routed(
        &self,
        queries: &[f32],
        key_values: &[f32],
        shape: &Shape,
        asking: &Asking,
    ) -> Vec<f32> {
        let Asking { route, keys } = asking;
        let (time, width) = (shape.time, shape.heads * shape.head_dim);
        let key_width = 2 * shape.kv_heads * shape.head_dim;
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.rows.resize_with(route.tokens() / time, KeyValues::default);
        let at_once = time > MANY && seen.rows.iter().all(KeyValues::is_empty);
        let mut mixed = match at_once {
            true => {
                forward_routed(queries, key_values, shape, &Slots::default(), route, *keys).mixed
            }
            false => vec![0.0; route.len() * width],
        };
        let mut askers = queries.chunks_exact(width).zip(mixed.chunks_exact_mut(width));
        let mut key_values = key_values.chunks_exact(key_width);
        for (token, asks) in route.decisions().into_iter().enumerate() {
            let (seen, t) = (&mut seen.rows[token / time], token % time);
            if (asks || *keys == Keys::All)
                && let Some(row) = key_values.next()
            {
                seen.add(row, t, shape);
            }
            if asks
                && let Some((query, mixed)) = askers.next()
                && !at_once
            {
                seen.ask(query, t, shape, mixed);
            }
        }
        mixed
    }

    /// Attends from new tokens to all before them, and adds them.
    pub(crate) fn attend(&self, joined: &[f32], shape: &Shape, batch: usize) -> Vec<f32> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.rows.resize_with(batch, KeyValues::default);
        let row = joined.len() / batch;
        let nothing_seen = seen.rows.iter().all(KeyValues::is_empty);
        let parts = seen.rows.iter_mut().zip(joined.chunks_exact(row));
        if shape.time > MANY && nothing_seen {
            let mixed = forward(joined, shape, &Slots::default()).mixed;
            parts.for_each(|(seen, joined)| seen.extend(joined, shape));
            return mixed;
        }
        let (half, width) = (shape.head_dim / 2, shape.heads * shape.head_dim);
        let mut mixed = vec![0.0; batch * shape.time * width];
        for ((seen, joined), mixed) in parts.zip(mixed.chunks_exact_mut(shape.time * width)) {
            let tokens = joined.chunks_exact(row / shape.time).zip(mixed.chunks_exact_mut(width));
            for (t, (joined, mixed)) in tokens.enumerate() {
                let (cos, sin) = (&shape.cos[t * half..], &shape.sin[t * half..]);
                seen.step(joined, &Shape { cos, sin, ..*shape }, mixed);
            }
        }
        mixed
    }
}
