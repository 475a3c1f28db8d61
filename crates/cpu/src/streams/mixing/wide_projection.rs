//! [`projection`](super::projection) where all streams of a token are one row: products of a tile's rows with weights that
//! are packed once for all tiles.

use crate::gemm::{Packed, Scratch, Store, View, multiply};
use crate::lent::Lent;
use crate::precision::Precision;
use crate::row::inverse_rms;
use crate::simd::add_scaled;
use std::cell::Cell;

/// What a thread keeps from junction to junction.
#[derive(Debug)]
pub(super) struct Room(Lent<Memory>);

#[derive(Debug, Default)]
struct Memory {
    scratch: Scratch,
    /// The right factor of a sum over tokens.
    right: Packed,
    /// How strongly each row is pulled back along itself.
    pulls: Vec<f32>,
}

impl Default for Room {
    fn default() -> Self {
        thread_local!(static HOME: Cell<Memory> = Cell::default());
        Self(Lent::from(&HOME))
    }
}

/// What the way back starts from.
pub(super) struct WideRows<'a> {
    pub(super) rows: &'a [f32],
    /// `[outputs, inputs]`
    pub(super) weight: &'a Packed,
    pub(super) logits: &'a [f32],
    pub(super) inverse_rms: &'a [f32],
}

impl Room {
    /// The logits of all rows, and `r` of each; `weight` is `[inputs, outputs]`.
    pub(super) fn project(
        &mut self,
        logits: &mut [f32],
        scales: &mut [f32],
        rows: &[f32],
        weight: &Packed,
        inputs: usize,
        eps: f32,
    ) {
        let (outputs, scratch) = (weight.columns(), &mut self.0.scratch);
        let sizes = [scales.len(), outputs, inputs];
        let left = View::rows(rows, inputs);
        multiply(sizes, left, weight, logits, outputs, Store::SET, scratch);
        let each = logits.chunks_exact_mut(outputs).zip(scales);
        for ((logits, r), x) in each.zip(rows.chunks_exact(inputs)) {
            *r = inverse_rms(x, eps);
            logits.iter_mut().for_each(|q| *q *= *r);
        }
    }

    /// Adds to the gradient of the weight, and to that of the rows all but how far each is pulled back along itself: that is
    /// returned. Of `d_logits` it makes the `c` of [`projection`](super::projection).
    pub(super) fn project_backward(
        &mut self,
        d_rows: &mut [f32],
        d_weight: &mut [f32],
        d_logits: &mut [f32],
        known: WideRows<'_>,
    ) -> &[f32] {
        let Memory { scratch, right, pulls } = &mut *self.0;
        let (inputs, outputs) = (known.weight.columns(), known.weight.depth());
        let tokens = known.inverse_rms.len();
        pulls.clear();
        let each = d_logits.chunks_exact_mut(outputs).zip(known.logits.chunks_exact(outputs));
        for ((d_logits, logits), r) in each.zip(known.inverse_rms) {
            let mut along = 0.0;
            for (d, q) in d_logits.iter_mut().zip(logits) {
                along += *d * q;
                *d *= r;
            }
            pulls.push(along * r * r / inputs as f32);
        }
        let by_token = View::rows(d_logits, outputs);
        let sizes = [tokens, inputs, outputs];
        multiply(sizes, by_token, known.weight, d_rows, inputs, Store::ADD, scratch);
        right.refill(View::rows(known.rows, inputs), tokens, inputs, Precision::F32);
        let by_output = View::transposed(d_logits, outputs);
        let sizes = [outputs, inputs, tokens];
        multiply(sizes, by_output, right, d_weight, inputs, Store::ADD, scratch);
        pulls
    }
}

/// `d_x -= pull x` for each row.
#[inline(always)]
pub(super) fn pull_back(d_rows: &mut [f32], rows: &[f32], pulls: &[f32]) {
    let inputs = rows.len() / pulls.len();
    let rows = d_rows.chunks_exact_mut(inputs).zip(rows.chunks_exact(inputs));
    for ((d_x, x), pull) in rows.zip(pulls) {
        add_scaled(d_x, -pull, x);
    }
}
