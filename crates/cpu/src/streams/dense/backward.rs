//! The way back.

use super::forward::{average, normed};
use super::gelu::gelu;
use super::{Averaging, KINDS, Params, Scratch};
use crate::row::{Normed, inverse_rms};
use crate::simd::{add_scaled, dot};
use crate::streams::attnres::shape::add_terms;
use crate::streams::driver::Backward;

/// Gradients of the parameters, to be added to.
pub(super) struct Gradients<'a> {
    pub weights: &'a mut [f32],
    pub down: &'a mut [f32],
    pub up: &'a mut [f32],
    pub source_norm: &'a mut [f32],
    pub weight_norm: &'a mut [f32],
    pub out_norm: &'a mut [f32],
    pub gains: &'a mut [f32],
}

impl Averaging {
    #[inline(always)]
    pub(super) fn go_back(
        &self,
        params: &Params<'_>,
        mut d: Gradients<'_>,
        tile: Backward<'_, ()>,
        scratch: &mut Scratch,
    ) {
        let width = self.settings.width;
        let (step, count) = (self.junctions[tile.junction], self.counts[tile.junction]);
        let (layout, room) = (self.small(tile.junction), self.sources * width);
        let [streams, apart, small, produced] = tile.record.map(|part| &*part);
        let streams = if tile.junction == 0 { tile.write } else { streams };
        let [sources, ..] = tile.state.map(|part| &*part);
        let [d_streams, d_sources, ..] = tile.gradient;
        let newest = (count - 1) * width;

        if step.ways == 0 {
            for token in 0..tile.tokens {
                let row = token * width..(token + 1) * width;
                let (_, _, r_source, inverse) =
                    layout.of(&small[token * layout.each()..][..layout.each()]);
                let x = Normed {
                    x: &streams[row.clone()],
                    inverse_rms: inverse[0],
                    scale: 1.0,
                    gain: params.gains,
                };
                let (d_x, d_write) = (&mut d_streams[row.clone()], &mut tile.d_write[row.clone()]);
                x.add_gradient(d_x, d_write, 1.0, &tile.d_output[row.clone()], d.gains);
                if tile.junction == 0 {
                    let d_source = &mut d_sources[token * room..][..width];
                    let write = &streams[row];
                    self.source_back(params, &mut d, d_source, write, r_source);
                    add_scaled(d_write, 1.0, d_source);
                }
            }
            return;
        }
        scratch.d_weights.resize(tile.tokens * layout.weights, 0.0);
        scratch.d_rows.resize(tile.tokens * width, 0.0);
        for token in 0..tile.tokens {
            let row = token * width..(token + 1) * width;
            let (weights, _, _, inverse) =
                layout.of(&small[token * layout.each()..][..layout.each()]);
            let d_x = &mut d_streams[row.clone()];
            let own = &sources[token * room..][..count * width];
            // Of what the block produced, as far as it is not a source: with norms, ways are added to it.
            let d_produced = &mut scratch.d_rows[row.clone()];
            d_produced.fill(0.0);
            // Of the averages.
            let ways = &mut scratch.ways;
            ways.clear();
            ways.resize(step.ways * width, 0.0);
            let (others, last) = ways.split_at_mut((step.ways - 1) * width);
            last.copy_from_slice(d_x);
            let elements = layout.inputs * width;
            let d_output = &tile.d_output[token * elements..][..elements];
            if step.apart {
                let read = apart[token * KINDS * width..][..KINDS * width].chunks_exact(width);
                let each =
                    others.chunks_exact_mut(width).zip(read).zip(d_output.chunks_exact(width));
                let each = each.zip(params.gains.chunks_exact(width)).zip(inverse);
                let each = each.zip(d.gains.chunks_exact_mut(width));
                for (((((d_way, x), d_output), gain), inverse), d_gain) in each {
                    d_way.copy_from_slice(d_output);
                    let x = Normed { x, inverse_rms: *inverse, scale: 1.0, gain };
                    x.take_gradient(d_way, d_gain);
                    if !params.out_norm.is_empty() {
                        add_scaled(d_produced, 1.0, d_way);
                    }
                }
            } else {
                let x = Normed {
                    x: &streams[row.clone()],
                    inverse_rms: inverse[0],
                    scale: 1.0,
                    gain: params.gains,
                };
                // No other way was read, so their gradients stay zero.
                x.add_gradient(d_x, last, 1.0, d_output, d.gains);
            }
            if !params.out_norm.is_empty() {
                add_scaled(d_produced, 1.0, last);
                let sum = &mut scratch.rows;
                sum.clear();
                sum.resize(width, 0.0);
                average(sum, &weights[(step.ways - 1) * count..], own);
                let inverse_rms = inverse_rms(sum, self.settings.eps);
                let sum = Normed { x: sum, inverse_rms, scale: 1.0, gain: params.out_norm };
                sum.take_gradient(last, d.out_norm);
            }
            // Of the weights, and of the sources.
            let d_weights = &mut scratch.d_weights[token * layout.weights..][..layout.weights];
            let d_own = &mut d_sources[token * room..][..count * width];
            for (j, (source, d_source)) in
                own.chunks_exact(width).zip(d_own.chunks_exact_mut(width)).enumerate()
            {
                for (way, d_way) in ways.chunks_exact(width).enumerate() {
                    d_weights[way * count + j] = dot(d_way, source);
                }
                let terms = ways.chunks_exact(width).enumerate();
                add_terms(d_source, terms.map(|(way, d_way)| (weights[way * count + j], d_way)));
            }
            add_scaled(d.weights, 1.0, d_weights);
        }
        // What the block produced, as it was.
        let given = |token: usize| match produced.is_empty() {
            true => &sources[token * room + newest..][..width],
            false => &produced[token * width..][..width],
        };
        if layout.hidden > 0 {
            self.weigh_back(params, &mut d, tile.junction, tile.tokens, small, given, scratch);
        }
        for token in 0..tile.tokens {
            let row = token * width..(token + 1) * width;
            let (_, _, r, _) = layout.of(&small[token * layout.each()..][..layout.each()]);
            let d_source = &mut d_sources[token * room + newest..][..width];
            self.source_back(params, &mut d, d_source, given(token), r);
            let (d_x, d_write) = (&mut d_streams[row.clone()], &mut tile.d_write[row.clone()]);
            d_x.copy_from_slice(d_source);
            add_scaled(d_x, 1.0, &scratch.d_rows[row]);
            d_write.copy_from_slice(d_x);
        }
    }

    /// From a source to what was produced: nothing, unless there is a norm in between.
    #[inline(always)]
    fn source_back(
        &self,
        params: &Params<'_>,
        d: &mut Gradients<'_>,
        d_source: &mut [f32],
        produced: &[f32],
        inverse_rms: f32,
    ) {
        if !params.source_norm.is_empty() {
            let x = Normed { x: produced, inverse_rms, scale: 1.0, gain: params.source_norm };
            x.take_gradient(d_source, d.source_norm);
        }
    }

    /// From the weights to what the block produced, whose gradient is added to `scratch.d_rows`.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn weigh_back<'a>(
        &self,
        params: &Params<'_>,
        d: &mut Gradients<'_>,
        junction: usize,
        tokens: usize,
        small: &[f32],
        produced: impl Fn(usize) -> &'a [f32],
        scratch: &mut Scratch,
    ) {
        let (width, layout) = (self.settings.width, self.small(junction));
        let (each, m) = (layout.each(), layout.hidden);
        let Scratch { rows, d_rows, hidden, d_weights, ways, units } = scratch;
        // What `down` multiplied, its gradient in place of the ways, and that of the hidden units.
        rows.resize(tokens * width, 0.0);
        ways.clear();
        ways.resize(tokens * width, 0.0);
        hidden.resize(tokens * m, 0.0);
        for token in 0..tokens {
            let (_, given, r, _) = layout.of(&small[token * each..][..each]);
            let row = &mut rows[token * width..][..width];
            row.copy_from_slice(produced(token));
            normed(row, r, params.weight_norm);
            units.clear();
            units.extend(given.iter().map(|&x| gelu(x)));
            let d_weights = &d_weights[token * m..][..m];
            let d_hidden = &mut hidden[token * m..][..m];
            d_hidden.fill(0.0);
            for (b, (d_row, weight)) in d.up.chunks_exact_mut(m).zip(d_weights).enumerate() {
                for (d_up, (value, _)) in d_row.iter_mut().zip(&*units) {
                    *d_up += weight * value;
                }
                add_scaled(d_hidden, *weight, &params.up[b * m..][..m]);
            }
            for (d_hidden, (_, slope)) in d_hidden.iter_mut().zip(&*units) {
                *d_hidden *= slope;
            }
        }
        for (k, (down, d_down)) in
            params.down.chunks_exact(width).zip(d.down.chunks_exact_mut(width)).enumerate()
        {
            let of = |token: usize| hidden[token * m + k];
            add_terms(d_down, rows.chunks_exact(width).enumerate().map(|(t, row)| (of(t), row)));
            for (token, d_row) in ways.chunks_exact_mut(width).enumerate() {
                add_scaled(d_row, of(token), down);
            }
        }
        for token in 0..tokens {
            let (_, _, r, _) = layout.of(&small[token * each..][..each]);
            let (x, d_row) = (produced(token), &mut ways[token * width..][..width]);
            if params.weight_norm.is_empty() {
                let pull = dot(d_row, x) * r * r / width as f32;
                for ((sum, d), x) in d_rows[token * width..].iter_mut().zip(&*d_row).zip(x) {
                    *sum += r * (d - pull * x);
                }
            } else {
                let x = Normed { x, inverse_rms: r, scale: 1.0, gain: params.weight_norm };
                x.take_gradient(d_row, d.weight_norm);
                add_scaled(&mut d_rows[token * width..][..width], 1.0, d_row);
            }
        }
    }
}
