//! The modulator: how far a site may turn a direction, decided from the direction alone.

use super::product::{add_product, add_product_by_columns};
use crate::gemm::View;
use crate::rows::transpose;
use crate::simd::{dot, exp};
use crate::streams::Skip;

/// Keeps the power away from the infinite slope at zero.
const SMALLEST_MODULATION: f32 = 1e-6;

/// With fewer tokens than this, transposing the directions would take longer than it saves.
const WORTH_TRANSPOSING: usize = 8;

/// The parameters of `g = alpha max(S, 1e-6)^beta`, `S = sum_i share_i sigmoid(w_i.r + b_i)`.
#[derive(Clone, Copy)]
pub(super) struct Modulator<'a> {
    directions: &'a [f32],
    bias: &'a [f32],
    share: &'a [f32],
    beta: f32,
    alpha: f32,
}

impl<'a> Modulator<'a> {
    /// Reads `[w: C d] [b: C] [share: C] [beta: 1] [alpha: 1]`.
    pub(super) fn new(params: &'a [f32], count: usize, width: usize) -> Self {
        assert_eq!(params.len(), count * (width + 2) + 2, "parameters of a modulator");
        let (directions, rest) = params.split_at(count * width);
        let (bias, rest) = rest.split_at(count);
        let (share, rest) = rest.split_at(count);
        Self { directions, bias, share, beta: rest[0], alpha: rest[1] }
    }

    /// The directions as [`modulate`] wants them for so many tokens.
    pub(super) fn layout(&self, tokens: usize, order: Order) -> Layout {
        let width = self.directions.len() / self.bias.len();
        match order {
            _ if tokens >= WORTH_TRANSPOSING => {
                Layout::Transposed(transpose(self.directions, width))
            }
            Order::Fastest => Layout::AsTheyAre,
            Order::AlwaysTheSame => Layout::AsTheyAreInOrder,
        }
    }
}

/// In which order products with the directions are added up.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Depends on the number of tokens.
    Fastest,
    /// So that a token that is near a threshold decides alone as it does among others.
    AlwaysTheSame,
}

/// How the directions lie in memory.
pub(super) enum Layout {
    /// `[d, C]`
    Transposed(Vec<f32>),
    /// `[C, d]`
    AsTheyAre,
    /// `[C, d]`, to be added up as if they were transposed.
    AsTheyAreInOrder,
}

/// Sums over tokens of the parameters' gradients, in the layout of the parameters.
pub(super) struct ModulatorGradient<'a> {
    directions: &'a mut [f32],
    bias: &'a mut [f32],
    share: &'a mut [f32],
    /// beta, alpha
    scalars: &'a mut [f32],
}

impl<'a> ModulatorGradient<'a> {
    pub(super) fn new(params: &'a mut [f32], count: usize, width: usize) -> Self {
        let (directions, rest) = params.split_at_mut(count * width);
        let (bias, rest) = rest.split_at_mut(count);
        let (share, scalars) = rest.split_at_mut(count);
        Self { directions, bias, share, scalars }
    }
}

/// How far a token is turned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gain {
    /// S, without the floor.
    modulation: f32,
    /// `max(S, 1e-6)^beta`
    power: f32,
    /// g, or what a [`Skip`] leaves of it.
    pub(super) value: f32,
    /// Whether the token is turned at all.
    pub(super) runs: bool,
}

simd! {
    /// The gains of the tokens with the given directions, and the open gates from which they come.
    pub(super) fn modulate(
        gains: &mut [Gain],
        open: &mut [f32],
        direction: &[f32],
        modulator: Modulator<'_>,
        layout: &Layout,
    ) {
        let Modulator { directions, bias, share, beta, alpha } = modulator;
        let (count, width) = (bias.len(), directions.len() / bias.len());
        if let Layout::AsTheyAre = layout {
            for (open, r) in open.chunks_exact_mut(count).zip(direction.chunks_exact(width)) {
                for ((open, bias), w) in open.iter_mut().zip(bias).zip(directions.chunks_exact(width)) {
                    *open = dot(w, r) + bias;
                }
            }
        } else {
            for open in open.chunks_exact_mut(count) {
                open.copy_from_slice(bias);
            }
            match layout {
                Layout::Transposed(columns) => {
                    add_product(open, View::rows(direction, width), columns, count);
                }
                _ => add_product_by_columns(open, direction, directions, count),
            }
        }
        for (gain, open) in gains.iter_mut().zip(open.chunks_exact_mut(count)) {
            for open in open.iter_mut() {
                *open = 1.0 / (1.0 + exp(-*open));
            }
            let modulation = dot(open, share);
            let power = (floored(modulation).ln() * beta).exp();
            *gain = Gain { modulation, power, value: alpha * power, runs: true };
        }
    }
}

/// Lets tokens, counted from `first`, skip a site where their gains are small, and takes off the gains of
/// the others what the rule says.
pub(super) fn decide(gains: &mut [Gain], skip: &Skip, site: usize, first: usize) {
    for (token, gain) in (first..).zip(gains) {
        let raw = gain.value;
        gain.runs = skip.runs(site, token, raw);
        gain.value = (raw.abs() - skip.taken_off(site, raw)).copysign(raw);
    }
}

simd! {
    /// Adds to the gradient of the directions, which so far came from later junctions, what comes from
    /// being the answer and from setting the gains.
    pub(super) fn modulate_back(
        d_direction: &mut [f32],
        d_modulator: ModulatorGradient<'_>,
        d_gates: &mut [f32],
        d_answer: &[f32],
        d_gains: &[f32],
        direction: &[f32],
        open: &[f32],
        gains: &[Gain],
        modulator: Modulator<'_>,
    ) {
        let Modulator { directions, bias, share, beta, alpha } = modulator;
        let (count, width) = (bias.len(), directions.len() / bias.len());
        for (d, d_answer) in d_direction.iter_mut().zip(d_answer) {
            *d += d_answer;
        }
        if !gains.iter().any(|gain| gain.runs) {
            return;
        }
        let gates = d_gates.chunks_exact_mut(count).zip(open.chunks_exact(count));
        for (((d_gates, open), &d_gain), gain) in gates.zip(d_gains).zip(gains) {
            if !gain.runs {
                d_gates.fill(0.0);
                continue;
            }
            // What was taken off does not change with the parameters, so the whole gain counts here.
            let d_log_gain = d_gain * (alpha * gain.power);
            let modulation = floored(gain.modulation);
            d_modulator.scalars[0] += d_log_gain * modulation.ln();
            d_modulator.scalars[1] += d_gain * gain.power;
            let at_the_floor = gain.modulation < SMALLEST_MODULATION;
            let d_modulation = if at_the_floor { 0.0 } else { d_log_gain * beta / modulation };
            let sums = d_modulator.bias.iter_mut().zip(d_modulator.share.iter_mut());
            for (((d_gate, open), share), (d_bias, d_share)) in
                d_gates.iter_mut().zip(open).zip(share).zip(sums)
            {
                *d_gate = d_modulation * share * open * (1.0 - open);
                *d_bias += *d_gate;
                *d_share += d_modulation * open;
            }
        }
        add_product(d_direction, View::rows(d_gates, count), directions, width);
        let by_gate = View::transposed(d_gates, count);
        add_product(d_modulator.directions, by_gate, direction, width);
    }
}

/// `max(modulation, 1e-6)`, but NaN for NaN.
#[inline(always)]
fn floored(modulation: f32) -> f32 {
    if modulation < SMALLEST_MODULATION { SMALLEST_MODULATION } else { modulation }
}
