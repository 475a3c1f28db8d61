//! The logits of a site: `q_o = r x . w_o` with `r = 1 / sqrt(mean(x^2) + eps)`, for rows `x`.
//!
//! With `c_o = r d_o` for a gradient `d` of the logits, the way back is
//!
//! ```text
//! d_x += sum_o c_o w_o - (r^2 / inputs  sum_o d_o q_o) x
//! d_w_o += sum_rows c_o x
//! ```

use super::block::{
    COLUMNS, Chunk, Products, Shares, TARGETS, blocks, put, scatter, sort_shares, sums,
};
use crate::row::inverse_rms;

/// Features that are brought side by side at once. More than a chunk, for a chunk may begin and end in the
/// middle of a cache line.
const STEP: usize = 4 * COLUMNS;

/// The logits of all rows, and `r` of each.
#[inline(always)]
pub(super) fn project(
    logits: &mut [f32],
    scales: &mut [f32],
    rows: &[f32],
    weight: &[f32],
    inputs: usize,
    eps: f32,
    products: &mut Products,
) {
    let outputs = weight.len() / inputs;
    products.find(logits, outputs, rows, weight, inputs);
    for ((logits, r), x) in
        logits.chunks_exact_mut(outputs).zip(scales).zip(rows.chunks_exact(inputs))
    {
        *r = inverse_rms(x, eps);
        for q in logits {
            *q *= *r;
        }
    }
}

/// Memory for the way back, kept between tiles.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// How strongly each row is pulled back along itself.
    pulls: Vec<f32>,
    rows: Vec<Chunk>,
    weight: Vec<Chunk>,
    by_row: Vec<Shares>,
    by_output: Vec<Shares>,
}

/// What the way back starts from.
pub(super) struct Known<'a> {
    pub(super) rows: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) logits: &'a [f32],
    pub(super) inverse_rms: &'a [f32],
}

/// Adds to the gradients of rows and weight; of `d_logits` it makes the `c` of the module's comment.
#[inline(always)]
pub(super) fn project_backward(
    d_rows: &mut [f32],
    d_weight: &mut [f32],
    d_logits: &mut [f32],
    known: &Known,
    inputs: usize,
    scratch: &mut Scratch,
) {
    let outputs = known.weight.len() / inputs;
    let count = known.rows.len() / inputs;
    let Scratch { pulls, rows, weight, by_row, by_output } = scratch;
    pulls.resize(count, 0.0);
    rows.resize(STEP / COLUMNS * count, [0.0; COLUMNS]);
    weight.resize(STEP / COLUMNS * outputs, [0.0; COLUMNS]);
    by_row.resize(blocks(count) * outputs, [0.0; TARGETS]);
    by_output.resize(blocks(outputs) * count, [0.0; TARGETS]);

    let each = d_logits.chunks_exact_mut(outputs).zip(known.logits.chunks_exact(outputs));
    for (((d_logits, logits), r), pull) in each.zip(known.inverse_rms).zip(pulls.iter_mut()) {
        let mut along = 0.0;
        for (d, q) in d_logits.iter_mut().zip(logits) {
            along += *d * q;
            *d *= r;
        }
        *pull = along * r * r / inputs as f32;
    }
    sort_shares(by_row, d_logits, [outputs, 1], [count, outputs]);
    sort_shares(by_output, d_logits, [1, outputs], [outputs, count]);

    for at in (0..inputs).step_by(STEP) {
        let columns = at..inputs.min(at + STEP);
        for (t, row) in known.rows.chunks_exact(inputs).enumerate() {
            scatter(&mut rows[t..], count, &row[columns.clone()]);
        }
        for (o, row) in known.weight.chunks_exact(inputs).enumerate() {
            scatter(&mut weight[o..], outputs, &row[columns.clone()]);
        }
        let chunks = columns.step_by(COLUMNS).enumerate();
        let targets = d_rows.chunks_mut(TARGETS * inputs).zip(by_row.chunks_exact(outputs));
        for (block, (d_rows, shares)) in targets.enumerate() {
            for (chunk, at) in chunks.clone() {
                let mut sums = sums(&weight[chunk * outputs..(chunk + 1) * outputs], shares);
                let own = &rows[chunk * count + block * TARGETS..];
                pull_back(&mut sums, own, &pulls[block * TARGETS..]);
                put::<true>(d_rows, inputs, at, &sums);
            }
        }
        let targets = d_weight.chunks_mut(TARGETS * inputs).zip(by_output.chunks_exact(count));
        for (d_weight, shares) in targets {
            for (chunk, at) in chunks.clone() {
                let rows = &rows[chunk * count..(chunk + 1) * count];
                put::<true>(d_weight, inputs, at, &sums(rows, shares));
            }
        }
    }
}

/// `sum_t -= pull_t row_t`.
#[inline(always)]
fn pull_back(sums: &mut [Chunk; TARGETS], rows: &[Chunk], pulls: &[f32]) {
    for ((sum, row), pull) in sums.iter_mut().zip(rows).zip(pulls) {
        // By way of a copy, or the compiler would go one by one.
        let mut pulled = *sum;
        for j in 0..COLUMNS {
            pulled[j] -= pull * row[j];
        }
        *sum = pulled;
    }
}
