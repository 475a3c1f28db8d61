//! Keys and values of the tokens seen so far, as a fused attention keeps them.

use crate::attention::Projected;
use crate::lock::lock;
use hadal_cpu::Precision;
use hadal_cpu::attention::{KeyValues, Shape, Slots};
use std::sync::{Arc, Mutex};

/// The number of rows from which on all new tokens are mixed at once instead of one after another.
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

    /// The values of the last tokens of each row, `[batch, time, heads * head_dim]`.
    pub fn last_values(&self, time: usize) -> Vec<f32> {
        let mut values = Vec::new();
        for row in &self.rows {
            let seen = row.len();
            for token in seen.saturating_sub(time)..seen {
                for (_, head) in row.heads() {
                    let width = head.len() / seen;
                    values.extend_from_slice(&head[token * width..][..width]);
                }
            }
        }
        values
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

/// Keys and values that are lent to an operation for one pass.
#[derive(Clone, Debug)]
pub struct SeenTokens(Arc<Mutex<SeenRows>>);

impl SeenTokens {
    /// Lends the rows.
    pub fn new(rows: SeenRows) -> Self {
        Self(Arc::new(Mutex::new(rows)))
    }

    /// Takes the rows back.
    pub fn take(self) -> SeenRows {
        std::mem::take(&mut lock(&self.0))
    }

    /// Attends from the new tokens that ask to all before them, and adds those that have keys.
    pub(crate) fn attend(
        &self,
        projected: &Projected<Vec<f32>>,
        shape: &Shape,
        batch: usize,
        precision: Precision,
    ) -> Vec<f32> {
        let (time, width) = (shape.time, shape.heads * shape.head_dim);
        let mut seen = lock(&self.0);
        seen.rows.resize_with(batch, KeyValues::default);
        let at_once = time > MANY && seen.rows.iter().all(KeyValues::is_empty);
        let mut mixed = if at_once {
            projected.mix(shape, &Slots::default(), precision).mixed
        } else {
            vec![0.0; projected.asking(batch * time) * width]
        };
        let mut outputs = mixed.chunks_exact_mut(width);
        for (token, (query, key_value)) in projected.tokens(shape).into_iter().enumerate() {
            let (seen, t) = (&mut seen.rows[token / time], token % time);
            if let Some(key_value) = key_value {
                seen.add(key_value, t, shape);
            }
            if let Some(query) = query
                && let Some(mixed) = outputs.next()
                && !at_once
            {
                seen.ask(query, t, shape, mixed);
            }
        }
        mixed
    }
}
