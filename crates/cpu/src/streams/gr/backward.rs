//! The backward pass of a tile: back through the read, then through the write.

use super::{GatedStreams, Memory, Params, activate, sigmoid};
use crate::gemm::{Store, View, multiply};
use crate::pieces::{load, store};
use crate::precision::Precision;
use crate::row::{scale_by_gain, triple_dot};
use crate::simd::{add_scaled, prefetch_behind, total};
use crate::streams::decision::Rule;
use crate::streams::driver::Backward;
use crate::streams::tiles::split_mut;
use std::ops::Range;

impl GatedStreams {
    #[inline(always)]
    pub(super) fn backward_tile<const FUSED: bool>(
        &self,
        params: &Params<'_>,
        tile: Backward<'_, ()>,
        memory: &mut Memory,
    ) {
        let (n, width) = (self.settings.streams, self.settings.width);
        let wide = self.wide();
        let [taken_back, ..] = tile.state;
        let [copies, norms, logits, _] = tile.record;
        let [_, _, _, written_with] = tile.before.record;
        let [d_streams, d_gates, ..] = tile.gradient;
        let lengths = self.lengths(tile.junction);
        let [d_gain, d_down, d_up] = split_mut(tile.d_params, lengths);
        // Copies are not needed any longer, and may be changed as the state is.
        let streams = if self.settings.exact { copies } else { taken_back };

        memory.v.resize(tile.tokens * wide, 0.0);
        let rows = memory.v.chunks_exact_mut(width).zip(streams.chunks_exact(width));
        let gains = params.gain.chunks_exact(width).cycle();
        for (((v, stream), r), gain) in rows.zip(&*norms).zip(gains) {
            prefetch_behind(stream, wide);
            scale_by_gain(v, *r, stream, gain);
        }
        let site = Site {
            junction: tile.junction,
            tokens: tile.tokens,
            logits,
            d_gates,
            runs: tile.runs,
            d_output: tile.d_output,
        };
        self.read_backward::<FUSED>(params, site, [d_down, d_up], memory);

        let d_v = memory.d_v.chunks_exact(wide).zip(norms.chunks_exact(n));
        let rows = streams.chunks_exact_mut(wide).zip(d_streams.chunks_exact_mut(wide)).zip(d_v);
        let ends = tile.d_write.chunks_exact_mut(width).zip(d_gates.chunks_exact_mut(n));
        for (token, (((streams, d_streams), (d_v, norms)), (d_write, d_gates))) in
            rows.zip(ends).enumerate()
        {
            let each = streams.chunks_exact_mut(width).zip(d_streams.chunks_exact_mut(width));
            let each = each.zip(d_v.chunks_exact(width)).zip(norms);
            let each =
                each.zip(params.gain.chunks_exact(width)).zip(d_gain.chunks_exact_mut(width));
            let skips = tile.before.runs.get(token) == Some(&false);
            d_write.fill(0.0);
            for (i, (((((stream, d_stream), d_v), r), gain), d_gain)) in each.enumerate() {
                prefetch_behind(d_stream, wide);
                let norm = Norm { r: *r, gain, d: d_v };
                if tile.junction == 0 || skips {
                    norm.backward(d_stream, d_gain, stream);
                } else {
                    let write = &tile.write[token * width..(token + 1) * width];
                    let written = Written { write, gate: written_with[token * n + i] };
                    d_gates[i] = norm.backward_of_write(d_stream, d_gain, stream, d_write, written);
                }
            }
            if tile.junction == 0 {
                for d_stream in d_streams.chunks_exact(width) {
                    add_scaled(d_write, 1.0, d_stream);
                }
            } else if skips {
                d_gates.fill(0.0);
            }
        }
    }

    /// Leaves the gradient of the normalised streams in `d_v`, and adds to those of the matrices.
    #[inline(always)]
    fn read_backward<const FUSED: bool>(
        &self,
        params: &Params<'_>,
        site: Site<'_>,
        [d_down, d_up]: [&mut [f32]; 2],
        memory: &mut Memory,
    ) {
        let (n, width, rank) = (self.settings.streams, self.settings.width, self.settings.rank);
        let (wide, outputs, tokens) = (self.wide(), self.outputs(site.junction), site.tokens);
        let back = params.back.as_ref().expect("matrices are packed before the way back");
        let Memory { v, d_v, q, a, d_logits, gates, right, scratch } = memory;
        q.resize(tokens * wide, 0.0);
        d_v.resize(tokens * wide, 0.0);
        d_logits.resize(tokens * outputs, 0.0);
        gates.resize(n, 0.0);

        activate::<FUSED>(a, site.logits, outputs, rank);
        let by_rank = View::rows(a, rank);
        multiply([tokens, wide, rank], by_rank, &back.up, q, wide, Store::SET, scratch);
        let rows = q.chunks_exact_mut(wide).zip(d_v.chunks_exact_mut(wide));
        for (((q, d_v), v), d_h) in
            rows.zip(v.chunks_exact(wide)).zip(site.d_output.chunks_exact(width))
        {
            gate_backward::<FUSED>(q, d_v, v, d_h, n);
        }
        let d_q = View::rows(q, wide);
        multiply(
            [tokens, rank, wide],
            d_q,
            &back.up_turned,
            d_logits,
            outputs,
            Store::SET,
            scratch,
        );
        right.refill(by_rank, tokens, rank, Precision::F32);
        let by_channel = View::transposed(q, wide);
        multiply([wide, rank, tokens], by_channel, right, d_up, rank, Store::ADD, scratch);

        let rule = Rule::of(&self.settings.skip, site.junction < self.sites, site.junction);
        let each = d_logits.chunks_exact_mut(outputs).zip(site.logits.chunks_exact(outputs));
        for (token, (d_logits, logits)) in each.enumerate() {
            let ((d_z, d_w), (z, w)) = (d_logits.split_at_mut(rank), logits.split_at(rank));
            for (d, z) in d_z.iter_mut().zip(z) {
                let open = sigmoid::<FUSED>(*z);
                *d *= open * (1.0 + z * (1.0 - open));
            }
            if w.is_empty() {
                continue;
            }
            if site.runs.get(token) == Some(&false) {
                d_w.fill(0.0);
                continue;
            }
            for (gate, w) in gates.iter_mut().zip(w) {
                *gate = 2.0 * sigmoid::<FUSED>(*w);
            }
            d_w.copy_from_slice(&site.d_gates[token * n..(token + 1) * n]);
            if let Some(rule) = rule {
                rule.backward(gates, d_w);
            }
            for (d, gate) in d_w.iter_mut().zip(&*gates) {
                *d *= gate * (1.0 - 0.5 * gate);
            }
        }
        let scale = 1.0 / n as f32;
        let add = Store { scale, add: true };
        right.refill(View::rows(v, wide), tokens, wide, Precision::F32);
        let by_output = View::transposed(d_logits, outputs);
        multiply([outputs, wide, tokens], by_output, right, d_down, wide, add, scratch);
        let by_token = View::rows(d_logits, outputs);
        multiply([tokens, wide, outputs], by_token, &back.down_turned, d_v, wide, add, scratch);
    }
}

/// What the way back through a read starts from.
struct Site<'a> {
    junction: usize,
    tokens: usize,
    logits: &'a [f32],
    d_gates: &'a [f32],
    runs: &'a [bool],
    d_output: &'a [f32],
}

/// Replaces the logits of one token's gates by their gradients, and gives the part of `d_v` that does not go through them.
#[inline(always)]
fn gate_backward<const FUSED: bool>(
    q: &mut [f32],
    d_v: &mut [f32],
    v: &[f32],
    d_h: &[f32],
    n: usize,
) {
    let (width, share) = (d_h.len(), 1.0 / n as f32);
    let rows = q.chunks_exact_mut(width).zip(d_v.chunks_exact_mut(width));
    for ((q, d_v), v) in rows.zip(v.chunks_exact(width)) {
        pieces!(width, |at| {
            let (mut logits, v): ([f32; N], [f32; N]) = (load(q, at), load(v, at));
            let mut d: [f32; N] = load(d_h, at);
            for j in 0..N {
                let open = sigmoid::<FUSED>(logits[j]);
                d[j] *= share * open;
                logits[j] = d[j] * v[j] * (1.0 - open);
            }
            store(d_v, at, d);
            store(q, at, logits);
        });
    }
}

/// A stream's norm, and the gradient of what it gave.
struct Norm<'a> {
    r: f32,
    gain: &'a [f32],
    d: &'a [f32],
}

/// What a stream was given.
struct Written<'a> {
    write: &'a [f32],
    gate: f32,
}

impl Norm<'_> {
    /// How strongly the gradient is pulled back along the stream.
    #[inline(always)]
    fn pull(&self, x: &[f32]) -> f32 {
        triple_dot(self.d, self.gain, x) * self.r * self.r / x.len() as f32
    }

    /// `d_x += r (d gain - r^2 / width sum_j (d gain x)_j x)`, `d_gain += r d x`.
    #[inline(always)]
    fn backward(&self, d_x: &mut [f32], d_gain: &mut [f32], x: &[f32]) {
        let (r, pull) = (self.r, self.pull(x));
        pieces!(x.len(), |at| {
            let (d, gain): ([f32; N], [f32; N]) = (load(self.d, at), load(self.gain, at));
            let x: [f32; N] = load(x, at);
            let (mut new, mut sums): ([f32; N], [f32; N]) = (load(d_x, at), load(d_gain, at));
            for j in 0..N {
                new[j] += r * (d[j] * gain[j] - pull * x[j]);
                sums[j] += r * d[j] * x[j];
            }
            store(d_x, at, new);
            store(d_gain, at, sums);
        });
    }

    /// The same, then back through the write: `d_write += gate d_x`, `x -= gate write`, and the sum of `d_x write`.
    #[inline(always)]
    fn backward_of_write(
        &self,
        d_x: &mut [f32],
        d_gain: &mut [f32],
        x: &mut [f32],
        d_write: &mut [f32],
        written: Written<'_>,
    ) -> f32 {
        const LANES: usize = 16;
        let (length, pull) = (x.len(), self.pull(x));
        let whole = length / LANES * LANES;
        let rows = [d_x, d_gain, x, d_write];
        let (rows, sums) = self.lanes_of_write::<LANES>(0..whole, pull, rows, &written);
        let (_, [rest]) = self.lanes_of_write::<1>(whole..length, pull, rows, &written);
        total(sums) + rest
    }

    /// [`Self::backward_of_write`] for a whole number of lanes, with a partial sum for each.
    #[inline(always)]
    fn lanes_of_write<'a, const N: usize>(
        &self,
        range: Range<usize>,
        pull: f32,
        [d_x, d_gain, x, d_write]: [&'a mut [f32]; 4],
        Written { write, gate }: &Written<'_>,
    ) -> ([&'a mut [f32]; 4], [f32; N]) {
        let r = self.r;
        let mut along = [0f32; N];
        let mut at = range.start;
        while at < range.end {
            let (d, gain): ([f32; N], [f32; N]) = (load(self.d, at), load(self.gain, at));
            let (mut before, write): ([f32; N], [f32; N]) = (load(x, at), load(write, at));
            let (mut new, mut sums): ([f32; N], [f32; N]) = (load(d_x, at), load(d_gain, at));
            let mut d_written: [f32; N] = load(d_write, at);
            for j in 0..N {
                new[j] += r * (d[j] * gain[j] - pull * before[j]);
                sums[j] += r * d[j] * before[j];
                before[j] -= gate * write[j];
                d_written[j] += gate * new[j];
                along[j] += new[j] * write[j];
            }
            store(d_x, at, new);
            store(d_gain, at, sums);
            store(x, at, before);
            store(d_write, at, d_written);
            at += N;
        }
        ([d_x, d_gain, x, d_write], along)
    }
}
