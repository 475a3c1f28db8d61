//! The way forward: takes in the write, ends a block, and normalises what is read.

use super::gelu::gelu;
use super::{Averaging, KINDS, Params, Scratch};
use crate::row::{inverse_rms, scale_by_gain};
use crate::simd::{add_scaled, dot};
use crate::streams::attnres::shape::add_terms;
use crate::streams::driver::Forward;

impl Averaging {
    #[inline(always)]
    pub(super) fn go(&self, params: &Params<'_>, tile: Forward<'_, ()>, scratch: &mut Scratch) {
        let (width, eps) = (self.settings.width, self.settings.eps);
        let (step, count) = (self.junctions[tile.junction], self.counts[tile.junction]);
        let (layout, room) = (self.small(tile.junction), self.sources * width);
        let [streams, apart, small, produced] = tile.record;
        let [sources, ..] = tile.state;
        let before = if tile.junction == 1 { tile.before.write } else { tile.before.record[0] };
        let newest = (count - 1) * width;

        if tile.junction == 0 {
            for (token, write) in tile.write.chunks_exact(width).enumerate() {
                let source = &mut sources[token * room..][..width];
                let small = &mut small[token * layout.each()..][..layout.each()];
                small[0] = add_source(source, write, params.source_norm, eps);
                small[1] =
                    read(&mut tile.output[token * width..][..width], write, params.gains, eps);
            }
            return;
        }
        for (token, write) in tile.write.chunks_exact(width).enumerate() {
            let row = token * width..(token + 1) * width;
            let stream = &mut streams[row.clone()];
            stream.copy_from_slice(write);
            add_scaled(stream, 1.0, &before[row.clone()]);
            let small = &mut small[token * layout.each()..][..layout.each()];
            let at = layout.weights + layout.hidden;
            if step.ways == 0 {
                small[at] = 0.0;
                small[at + 1] = read(&mut tile.output[row], stream, params.gains, eps);
                continue;
            }
            if !produced.is_empty() {
                produced[row].copy_from_slice(stream);
            }
            let source = &mut sources[token * room + newest..][..width];
            small[at] = add_source(source, stream, params.source_norm, eps);
        }
        if step.ways == 0 {
            return;
        }
        self.weigh(params, tile.junction, streams, small, scratch);
        for token in 0..tile.tokens {
            let sources = &sources[token * room..][..count * width];
            let small = &mut small[token * layout.each()..][..layout.each()];
            let (weights, rest) = small.split_at_mut(layout.weights);
            let inverse = &mut rest[layout.hidden + 1..];
            let stream = &mut streams[token * width..][..width];
            let output = &mut tile.output[token * width * layout.inputs..][..width * layout.inputs];
            if step.apart {
                let ways = apart[token * KINDS * width..][..KINDS * width].chunks_exact_mut(width);
                let each =
                    ways.zip(weights.chunks_exact(count)).zip(output.chunks_exact_mut(width));
                let each = each.zip(params.gains.chunks_exact(width)).zip(inverse.iter_mut());
                for ((((way, weights), output), gain), inverse) in each {
                    // With norms, ways are added to what the block produced.
                    match params.out_norm.is_empty() {
                        true => way.fill(0.0),
                        false => way.copy_from_slice(stream),
                    }
                    average(way, weights, sources);
                    *inverse = read(output, way, gain, eps);
                }
            }
            let last = &weights[(step.ways - 1) * count..];
            if params.out_norm.is_empty() {
                stream.fill(0.0);
                average(stream, last, sources);
            } else {
                let sum = &mut scratch.ways;
                sum.clear();
                sum.resize(width, 0.0);
                average(sum, last, sources);
                let r = inverse_rms(sum, eps);
                for ((x, sum), gain) in stream.iter_mut().zip(&*sum).zip(params.out_norm) {
                    *x += r * sum * gain;
                }
            }
            if !step.apart {
                inverse[0] = read(output, stream, params.gains, eps);
            }
        }
    }

    /// The weights of all tokens, from what the block produced.
    #[inline(always)]
    fn weigh(
        &self,
        params: &Params<'_>,
        junction: usize,
        produced: &[f32],
        small: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (width, layout) = (self.settings.width, self.small(junction));
        let each = layout.each();
        if layout.hidden == 0 {
            small
                .chunks_exact_mut(each)
                .for_each(|row| row[..layout.weights].copy_from_slice(params.weights));
            return;
        }
        let rows = &mut scratch.rows;
        rows.clear();
        rows.extend_from_slice(produced);
        for (row, small) in rows.chunks_exact_mut(width).zip(small.chunks_exact_mut(each)) {
            let r = inverse_rms(row, self.settings.eps);
            small[layout.weights + layout.hidden] = r;
            normed(row, r, params.weight_norm);
        }
        for (k, down) in params.down.chunks_exact(width).enumerate() {
            for (row, small) in rows.chunks_exact(width).zip(small.chunks_exact_mut(each)) {
                small[layout.weights + k] = dot(down, row);
            }
        }
        let hidden = &mut scratch.hidden;
        for small in small.chunks_exact_mut(each) {
            let (weights, rest) = small.split_at_mut(layout.weights);
            hidden.clear();
            hidden.extend(rest[..layout.hidden].iter().map(|&x| gelu(x).0));
            let rows = params.up.chunks_exact(layout.hidden).zip(params.weights);
            for (weight, (up, fixed)) in weights.iter_mut().zip(rows) {
                *weight = fixed + dot(up, hidden);
            }
        }
    }
}

/// A source of what was produced, whose inverse RMS is returned if there is a norm.
#[inline(always)]
fn add_source(source: &mut [f32], produced: &[f32], norm: &[f32], eps: f32) -> f32 {
    if norm.is_empty() {
        source.copy_from_slice(produced);
        return 0.0;
    }
    let r = inverse_rms(produced, eps);
    scale_by_gain(source, r, produced, norm);
    r
}

/// `output = gain rms(h)`, whose factor is returned.
#[inline(always)]
fn read(output: &mut [f32], h: &[f32], gain: &[f32], eps: f32) -> f32 {
    let r = inverse_rms(h, eps);
    scale_by_gain(output, r, h, gain);
    r
}

/// `row *= r gain`; there may be no gain.
#[inline(always)]
pub(super) fn normed(row: &mut [f32], r: f32, gain: &[f32]) {
    if gain.is_empty() {
        row.iter_mut().for_each(|x| *x *= r);
    } else {
        crate::row::multiply_by_gain(row, r, gain);
    }
}

/// `y += sum_j weights_j sources_j`.
#[inline(always)]
pub(super) fn average(y: &mut [f32], weights: &[f32], sources: &[f32]) {
    let width = y.len();
    add_terms(y, weights.iter().copied().zip(sources.chunks_exact(width)));
}
