//! The rows that are kept as they were before a gated write.
//!
//! Undoing a write multiplies what an earlier rounding did to a row by `1 / (1 - beta)`, and fails where
//! beta rounds to 1. So rows with wide gates are kept: of every tile the widest, as many as the share
//! says, and beyond that every row whose errors would otherwise have grown more than [`MOST_DRIFT`] times
//! since it was kept. This bounds the error whatever the gates do.

use std::ops::Range;

/// How the backward pass gets back what the forward pass overwrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// From a copy of all streams, for every gated write.
    Exact,
    /// By undoing the write, except for some rows.
    Inversion {
        /// Share of the rows, those with the widest gates, of which a copy is kept: 0.01 in the paper.
        share: f64,
    },
}

/// How many times larger the error of a row may become before it is kept.
pub(super) const MOST_DRIFT: f32 = 16.0;

impl Memory {
    pub(super) fn saving(self) -> Saving {
        match self {
            Memory::Exact => Saving::Everything,
            Memory::Inversion { share } => Saving::Share(share),
        }
    }
}

/// What a junction saves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Saving {
    Everything,
    Share(f64),
}

/// What a tile saves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Quota {
    Everything,
    /// At least so many rows.
    Widest(usize),
}

impl Saving {
    /// For the tile that holds these rows of the junction. Tiles together get the share of all rows, rounded
    /// up once.
    pub(super) fn quota(self, rows: Range<usize>) -> Quota {
        match self {
            Saving::Everything => Quota::Everything,
            Saving::Share(share) => {
                let up_to = |rows: usize| (share * rows as f64).ceil() as usize;
                let quota = up_to(rows.end).saturating_sub(up_to(rows.start));
                if quota < rows.len() { Quota::Widest(quota) } else { Quota::Everything }
            }
        }
    }
}

/// Rows of a tile as they were before a write.
#[derive(Debug, Default)]
pub struct Saved {
    /// Which rows, `token * streams + stream`, in ascending order.
    rows: Vec<u32>,
    /// `[rows, width]`
    values: Vec<f32>,
}

impl Saved {
    /// Copies the rows of a tile that its quota and their drift ask for.
    ///
    /// `gates` gives the gate of every row, `streams` all rows of the tile.
    #[inline(always)]
    pub(super) fn choose(
        quota: Quota,
        gates: &[f32],
        drift: &mut [f32],
        streams: &[f32],
        width: usize,
    ) -> Self {
        let rows = match quota {
            Quota::Everything => (0..gates.len() as u32).collect(),
            Quota::Widest(quota) => widest_or_drifting(quota, gates, drift),
        };
        let mut values = Vec::with_capacity(rows.len() * width);
        for &row in &rows {
            drift[row as usize] = 1.0;
            values.extend_from_slice(&streams[row as usize * width..][..width]);
        }
        Self { rows, values }
    }

    /// What is saved, as pairs of a row's number and its values.
    pub(super) fn iter(&self, width: usize) -> impl Iterator<Item = (usize, &[f32])> {
        self.rows.iter().map(|&row| row as usize).zip(self.values.chunks_exact(width))
    }
}

/// The `quota` rows with the widest gates, and those that drifted too far. Lets the others drift.
#[inline(always)]
fn widest_or_drifting(quota: usize, gates: &[f32], drift: &mut [f32]) -> Vec<u32> {
    let mut chosen: Vec<u32> = (0..gates.len() as u32).collect();
    if quota > 0 {
        // Equal gates are told apart by their place, so that the choice is always the same.
        chosen.select_nth_unstable_by(quota - 1, |&a, &b| {
            gates[b as usize].total_cmp(&gates[a as usize]).then(a.cmp(&b))
        });
    }
    chosen.truncate(quota);
    for (row, (drift, beta)) in drift.iter_mut().zip(gates).enumerate() {
        *drift /= 1.0 - beta;
        // A gate that is not a number counts as too wide.
        let bounded = *drift <= MOST_DRIFT;
        if !bounded {
            chosen.push(row as u32);
        }
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}
