//! The rows that are kept as they were before a gated write.
//!
//! A write makes `s' = s + beta (f - s)` of a row, and undoing it `s = s' + beta / (1 - beta) (s' - f)`. What is added is
//! `s' - s` both times, so however large f is, all roundings together are a few ulps of the larger of `|s|` and `|s'|`; s gets
//! them times `1 / (1 - beta)`, and rows further back times the factors of the writes in between. They count relative to the
//! row that is recovered, which may be much smaller. So the roundings of write i are, in ulps of the worst row,
//!
//! ```text
//! max(|s_i|, |s_i+1|) drift_i        drift_i = max over k of  1 / |s_k|  product over l = k..i of  1 / (1 - beta_l)
//! ```
//!
//! where k runs over the writes since the row was kept last: `drift_i = max(drift_i-1, 1 / |s_i|) / (1 - beta_i)`. Where this
//! exceeds [`MOST_DRIFT`], `s_i` is kept, and the rows before it are recovered from that. This bounds what any write adds to the
//! relative error of any row, whatever gates and writes do. `|s|` is `1 / r`, which is known; of `|s_i+1|`, which is not known
//! before the write, the bound `(1 - beta) |s_i| + beta |f|` is taken. Of every tile the rows with the widest gates are kept in
//! any case, as many as the share says.

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

/// How many times larger the roundings of a write may become, relative to a row that is recovered, before the row is kept.
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

/// What is about to happen to the rows of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writes<'a> {
    /// beta of every row.
    pub(super) gates: &'a [f32],
    /// r of every row before the write.
    pub(super) inverse_rms: &'a [f32],
    /// RMS of what every token writes.
    pub(super) sizes: &'a [f32],
}

impl Saved {
    /// Copies the rows of a tile that its quota and their drift ask for. `streams` are all rows of the tile.
    #[inline(always)]
    pub(super) fn choose(
        quota: Quota,
        writes: Writes<'_>,
        drift: &mut [f32],
        streams: &[f32],
        width: usize,
    ) -> Self {
        let rows = match quota {
            Quota::Everything => (0..writes.gates.len() as u32).collect(),
            Quota::Widest(quota) => widest_or_drifting(quota, writes, drift),
        };
        let mut values = Vec::with_capacity(rows.len() * width);
        for &row in &rows {
            drift[row as usize] = 0.0;
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
fn widest_or_drifting(quota: usize, writes: Writes<'_>, drift: &mut [f32]) -> Vec<u32> {
    let Writes { gates, inverse_rms, sizes } = writes;
    let mut chosen: Vec<u32> = (0..gates.len() as u32).collect();
    if quota > 0 {
        // Equal gates are told apart by their place, so that the choice is always the same.
        chosen.select_nth_unstable_by(quota - 1, |&a, &b| {
            gates[b as usize].total_cmp(&gates[a as usize]).then(a.cmp(&b))
        });
    }
    chosen.truncate(quota);
    let streams = gates.len() / sizes.len().max(1);
    let rows = drift.iter_mut().zip(gates.iter().zip(inverse_rms));
    for (row, (drift, (beta, r))) in rows.enumerate() {
        let (keep, before) = (1.0 - beta, 1.0 / r);
        let after = keep * before + beta * sizes[row / streams];
        // Not `max`, which would take the other one for what is not a number: that counts as too much.
        let largest = if after < before { before } else { after };
        *drift = drift.max(*r) / keep;
        let bounded = *drift * largest <= MOST_DRIFT;
        if !bounded {
            chosen.push(row as u32);
        }
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}
