//! Rows of token ids.

/// Rows of tokens of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    ids: Vec<u32>,
    batch: usize,
}

impl Tokens {
    /// One row.
    pub fn row(ids: &[u32]) -> Self {
        Self { ids: ids.to_vec(), batch: 1 }
    }

    /// `batch` rows, one after another; `None` if the ids do not divide into rows.
    pub fn rows(ids: Vec<u32>, batch: usize) -> Option<Self> {
        (batch > 0 && ids.len().is_multiple_of(batch)).then_some(Self { ids, batch })
    }

    /// Number of rows.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Length of a row.
    pub fn time(&self) -> usize {
        self.ids.len() / self.batch
    }

    /// All ids, row by row.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}
