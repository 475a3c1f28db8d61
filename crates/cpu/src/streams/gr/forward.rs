//! The forward pass of a tile.

use super::{GatedStreams, Memory, Params, activate, sigmoid};
use crate::gemm::{Scratch, Store, View, multiply};
use crate::pieces::{load, store};
use crate::row::{inverse_root, scale_by_gain};
use crate::simd::{add_scaled, dot, total};
use crate::streams::decision::Rule;
use crate::streams::driver::Forward;
use crate::vector::matrix_times;

impl GatedStreams {
    /// Writes, finds the gates, and reads.
    #[inline(always)]
    pub(super) fn forward_tile<const FUSED: bool>(
        &self,
        params: &Params<'_>,
        tile: Forward<'_, ()>,
        memory: &mut Memory,
    ) {
        let (n, width, rank) = (self.settings.streams, self.settings.width, self.settings.rank);
        let (wide, outputs) = (self.wide(), self.outputs(tile.junction));
        let [streams, ..] = tile.state;
        let [copies, norms, logits, gates] = tile.record;
        let [_, _, _, written_with] = tile.before.record;
        let Memory { v, q, a, scratch, .. } = memory;
        v.resize(tile.tokens * wide, 0.0);
        q.resize(tile.tokens * wide, 0.0);

        let rows = streams.chunks_exact_mut(wide).zip(v.chunks_exact_mut(wide));
        let rows = rows.zip(norms.chunks_exact_mut(n)).zip(tile.write.chunks_exact(width));
        for (token, (((streams, v), norms), write)) in rows.enumerate() {
            let runs = tile.before.runs.get(token) != Some(&false);
            let each = streams.chunks_exact_mut(width).zip(v.chunks_exact_mut(width));
            let each = each.zip(norms).zip(params.gain.chunks_exact(width));
            for (i, (((stream, v), r), gain)) in each.enumerate() {
                let squares = if tile.junction == 0 {
                    stream.copy_from_slice(write);
                    dot(stream, stream)
                } else if runs {
                    add_and_square(stream, written_with[token * n + i], write)
                } else {
                    dot(stream, stream)
                };
                *r = inverse_root(squares, width, self.settings.eps);
                scale_by_gain(v, *r, stream, gain);
            }
        }
        if self.settings.exact {
            copies.copy_from_slice(streams);
        }

        self.project(params, logits, outputs, v, scratch);
        activate::<FUSED>(a, logits, outputs, rank);
        match &params.forth {
            Some(forth) => {
                let sizes = [tile.tokens, wide, rank];
                multiply(sizes, View::rows(a, rank), &forth.up, q, wide, Store::SET, scratch);
            }
            None => {
                for (q, a) in q.chunks_exact_mut(wide).zip(a.chunks_exact(rank)) {
                    matrix_times(params.up, a, q);
                }
            }
        }
        let rows = q.chunks_exact(wide).zip(v.chunks_exact(wide));
        for ((q, v), output) in rows.zip(tile.output.chunks_exact_mut(width)) {
            read::<FUSED>(output, q, v, n);
        }

        if tile.junction == self.sites {
            return;
        }
        let rule = Rule::of(&self.settings.skip, true, tile.junction);
        let each = gates.chunks_exact_mut(n).zip(logits.chunks_exact(outputs)).enumerate();
        for (token, (gates, logits)) in each {
            for (gate, logit) in gates.iter_mut().zip(&logits[rank..]) {
                *gate = 2.0 * sigmoid::<FUSED>(*logit);
            }
            if let Some(rule) = rule {
                tile.runs[token] = rule.decide(tile.first + token, gates);
            }
        }
    }

    /// The logits of the read and of the gates with which the site writes.
    #[inline(always)]
    fn project(
        &self,
        params: &Params<'_>,
        logits: &mut [f32],
        outputs: usize,
        v: &[f32],
        scratch: &mut Scratch,
    ) {
        let (wide, rank) = (self.wide(), self.settings.rank);
        let scale = 1.0 / self.settings.streams as f32;
        let Some(forth) = &params.forth else {
            for (logits, v) in logits.chunks_exact_mut(outputs).zip(v.chunks_exact(wide)) {
                matrix_times(params.down, v, logits);
                logits.iter_mut().for_each(|logit| *logit *= scale);
            }
            return;
        };
        let (sizes, store) = ([v.len() / wide, rank, wide], Store { scale, add: false });
        multiply(sizes, View::rows(v, wide), &forth.read_down, logits, outputs, store, scratch);
        let rows = params.down.chunks_exact(wide).skip(rank);
        for (logits, v) in logits.chunks_exact_mut(outputs).zip(v.chunks_exact(wide)) {
            for (logit, row) in logits[rank..].iter_mut().zip(rows.clone()) {
                *logit = dot(row, v) * scale;
            }
        }
    }
}

/// `h = 1/n sum_i sigmoid(q_i) v_i`.
#[inline(always)]
fn read<const FUSED: bool>(h: &mut [f32], q: &[f32], v: &[f32], n: usize) {
    let (width, share) = (h.len(), 1.0 / n as f32);
    pieces!(width, |at| {
        let mut sums = [0.0; N];
        for i in 0..n {
            let (q, v): ([f32; N], [f32; N]) = (load(q, i * width + at), load(v, i * width + at));
            for j in 0..N {
                sums[j] += sigmoid::<FUSED>(q[j]) * v[j];
            }
        }
        for sum in &mut sums {
            *sum *= share;
        }
        store(h, at, sums);
    });
}

/// `x += a y`, and the sum of the squares of what that makes.
#[inline(always)]
fn add_and_square(x: &mut [f32], a: f32, y: &[f32]) -> f32 {
    const LANES: usize = 32;
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks_mut::<LANES>(), y.as_chunks::<LANES>());
    add_scaled(x_rest, a, y_rest);
    let rest = dot(x_rest, x_rest);
    let mut sums = [0f32; LANES];
    for (x, y) in x.iter_mut().zip(y) {
        // A copy, so that the compiler need not ask whether the two overlap.
        let mut new = *x;
        for j in 0..LANES {
            new[j] += a * y[j];
            sums[j] += new[j] * new[j];
        }
        *x = new;
    }
    total(sums) + rest
}
