//! Rows of which heads are columns, to read. [`Columns`](crate::rows::Columns) are to write.

use super::Shape;
use super::plan::Places;
use crate::precision::Precision;

/// The columns of a matrix from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    data: &'a [f32],
    pub(super) width: usize,
    first: usize,
}

impl<'a> Table<'a> {
    pub(super) fn new(data: &'a [f32], width: usize) -> Self {
        Self { data, width, first: 0 }
    }

    /// Without the first columns.
    fn after(self, columns: usize) -> Self {
        Self { first: self.first + columns, ..self }
    }

    /// What lies in memory from an element on; the next row's is `width` further.
    #[inline(always)]
    pub(super) fn from(&self, row: usize, column: usize) -> &'a [f32] {
        &self.data[row * self.width + self.first + column..]
    }

    /// One head from its first row to its last.
    pub(super) fn head(&self, places: &Places, column: usize, shape: &Shape) -> &'a [f32] {
        let steps = places.len().saturating_sub(1);
        self.row(places.first, column, steps * self.width + shape.head_dim)
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize, column: usize, count: usize) -> &'a [f32] {
        &self.from(row, column)[..count]
    }
}

/// What an attention starts from, and how its products take it.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// `[queries, heads * head_dim]`
    pub(super) queries: Table<'a>,
    /// `[keys, 2 kv_heads * head_dim]`: keys, then values.
    pub(super) key_values: Table<'a>,
    pub(super) precision: Precision,
}

impl<'a> Inputs<'a> {
    /// Of rows `[q | k | v]`.
    pub(super) fn joined(joined: &'a [f32], shape: &Shape, precision: Precision) -> Self {
        let queries = Table::new(joined, shape.joined());
        Self { queries, key_values: queries.after(shape.query_width()), precision }
    }

    /// Of rows `[q]` and rows `[k | v]`.
    pub(super) fn separate(
        queries: &'a [f32],
        key_values: &'a [f32],
        shape: &Shape,
        precision: Precision,
    ) -> Self {
        Self {
            queries: Table::new(queries, shape.query_width()),
            key_values: Table::new(key_values, shape.key_value_width()),
            precision,
        }
    }
}
