//! The modulator: how far a site may turn a direction, decided from the direction alone.

use super::product::{add_product, add_product_by_columns};
use super::rotation::Lane;
use crate::gemm::View;
use crate::rows::transpose;
use crate::simd::{dot, exp};
use crate::streams::Skip;
use crate::streams::tiles::{split, split_mut};

/// Keeps the power away from the infinite slope at zero.
const SMALLEST_MODULATION: f32 = 1e-6;

/// With fewer tokens than this, transposing the directions would take longer than it saves.
const WORTH_TRANSPOSING: usize = 8;

/// The parameters of `g = alpha max(S, 1e-6)^beta`, `S = sum_i share_i sigmoid(w_i.r + b_i)`.
#[derive(Clone, Copy, Debug)]
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
        let [directions, bias, share, scalars] = split(params, [count * width, count, count, 2]);
        Self { directions, bias, share, beta: scalars[0], alpha: scalars[1] }
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
#[derive(Debug)]
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
        let [directions, bias, share, scalars] =
            split_mut(params, [count * width, count, count, 2]);
        Self { directions, bias, share, scalars }
    }
}

/// The gains of the tokens with the given directions, and the open gates from which they come.
#[inline(always)]
pub(super) fn modulate(
    lanes: &mut [[f32; Lane::LENGTH]],
    open: &mut [f32],
    direction: &[f32],
    modulator: &Modulator<'_>,
    layout: &Layout,
) {
    let Modulator { directions, bias, share, beta, alpha } = *modulator;
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
    for (lane, open) in lanes.iter_mut().zip(open.chunks_exact_mut(count)) {
        for open in open.iter_mut() {
            *open = 1.0 / (1.0 + exp(-*open));
        }
        let modulation = dot(open, share);
        let power = (floored(modulation).ln() * beta).exp();
        lane[Lane::MODULATION] = modulation;
        lane[Lane::POWER] = power;
        lane[Lane::GAIN] = alpha * power;
    }
}

/// Lets tokens, counted from `first`, skip a site where their gains are small, and takes off the gains of
/// the others what the rule says.
#[inline(always)]
pub(super) fn decide(
    lanes: &mut [[f32; Lane::LENGTH]],
    runs: &mut [bool],
    skip: &Skip,
    site: usize,
    first: usize,
) {
    for (token, (lane, runs)) in (first..).zip(lanes.iter_mut().zip(runs)) {
        let raw = lane[Lane::GAIN];
        *runs = skip.runs(site, token, raw);
        lane[Lane::GAIN] = (raw.abs() - skip.taken_off(site, raw)).copysign(raw);
    }
}

/// Adds to the gradient of the directions, which so far came from later junctions, what comes from
/// being the output and from setting the gains.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn modulate_back(
    d_direction: &mut [f32],
    d_modulator: ModulatorGradient<'_>,
    d_gates: &mut [f32],
    d_output: &[f32],
    d_gains: &[f32],
    direction: &[f32],
    open: &[f32],
    lanes: &[[f32; Lane::LENGTH]],
    runs: &[bool],
    modulator: &Modulator<'_>,
) {
    let Modulator { directions, bias, share, beta, alpha } = *modulator;
    let (count, width) = (bias.len(), directions.len() / bias.len());
    for (d, d_output) in d_direction.iter_mut().zip(d_output) {
        *d += d_output;
    }
    if !runs.is_empty() && !runs.contains(&true) {
        return;
    }
    let gates = d_gates.chunks_exact_mut(count).zip(open.chunks_exact(count));
    for (t, (((d_gates, open), &d_gain), lane)) in gates.zip(d_gains).zip(lanes).enumerate() {
        if runs.get(t) == Some(&false) {
            d_gates.fill(0.0);
            continue;
        }
        // What was taken off does not change with the parameters, so the whole gain counts here.
        let d_log_gain = d_gain * (alpha * lane[Lane::POWER]);
        let modulation = floored(lane[Lane::MODULATION]);
        d_modulator.scalars[0] += d_log_gain * modulation.ln();
        d_modulator.scalars[1] += d_gain * lane[Lane::POWER];
        let at_the_floor = lane[Lane::MODULATION] < SMALLEST_MODULATION;
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

/// `max(modulation, 1e-6)`, but NaN for NaN.
#[inline(always)]
fn floored(modulation: f32) -> f32 {
    if modulation < SMALLEST_MODULATION { SMALLEST_MODULATION } else { modulation }
}
