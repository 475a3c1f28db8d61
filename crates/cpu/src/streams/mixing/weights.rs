//! How a site finds the weights of a token from its logits, and the way back.
//!
//! The weights of a token are one matrix `E` of n + 1 rows and columns, as in the paper on
//! Hyper-Connections: `E[i][j]` leads from stream j to stream i, the last column holds the weight of the
//! write in each stream, the last row that of each stream in the reading; the corner is not used.

use super::lanes::{LANES, Lane, load, sigmoid, store, tanh};
use super::permutations::{mixture, mixture_backward, permutations, softmax};
use super::sinkhorn::{record_length, sinkhorn, sinkhorn_backward};
use super::{MixingForm, MixingGates, MixingKind};
use crate::simd::total;

/// What is the same at all sites, or what the read-out has.
#[derive(Debug)]
pub(super) struct Shape {
    kind: MixingKind,
    gates: MixingGates,
    /// Whether a stream goes on as it is.
    identity: bool,
    /// Whether there are weights of a write.
    writes: bool,
    /// Number of streams.
    pub(super) n: usize,
    /// Features of a stream.
    pub(super) width: usize,
    /// Where the permutations lead, if it is those that are mixed.
    permutations: Vec<usize>,
}

impl Shape {
    /// A site with `n` streams of `width` features.
    pub(super) fn of_site(form: MixingForm, n: usize, width: usize) -> Self {
        let permutations = match form.kind {
            MixingKind::Permutations if !form.identity => permutations(n),
            _ => Vec::new(),
        };
        let MixingForm { kind, gates, identity, .. } = form;
        Self { kind, gates, identity, writes: true, n, width, permutations }
    }

    /// A gated read-out.
    pub(super) fn of_readout(form: MixingForm, n: usize, width: usize) -> Self {
        let site = MixingForm { identity: true, ..form };
        Self { writes: false, ..Self::of_site(site, n, width) }
    }

    /// Whether streams are mixed with each other.
    pub(super) fn mixes(&self) -> bool {
        !self.identity
    }

    /// Whether there are weights of a write.
    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// Features of all streams of a token.
    pub(super) fn state(&self) -> usize {
        self.n * self.width
    }

    /// Elements of a token's `E`.
    pub(super) fn weights(&self) -> usize {
        (self.n + 1) * (self.n + 1)
    }

    /// Weights of a token besides those of the mixing matrix: of reading, and of writing.
    fn gate_count(&self) -> usize {
        self.n * (1 + usize::from(self.writes))
    }

    /// Logits of the mixing matrix of a token.
    fn mixing_logits(&self) -> usize {
        match self.kind {
            _ if self.identity => 0,
            MixingKind::Static => 0,
            MixingKind::Permutations => self.permutations.len() / self.n,
            MixingKind::Dynamic | MixingKind::Sinkhorn { .. } => self.n * self.n,
        }
    }

    /// Rows of a token that are normalised and projected one by one.
    pub(super) fn rows(&self) -> usize {
        match self.kind {
            MixingKind::Static => 0,
            MixingKind::Dynamic => self.n,
            MixingKind::Sinkhorn { .. } | MixingKind::Permutations => 1,
        }
    }

    /// Features of such a row.
    pub(super) fn inputs(&self) -> usize {
        self.state() / self.rows().max(1)
    }

    /// Logits of a token.
    pub(super) fn logits(&self) -> usize {
        match self.kind {
            MixingKind::Static => 0,
            _ => self.gate_count() + self.mixing_logits(),
        }
    }

    /// Parameters of a site that act on logits and weights.
    pub(super) fn small(&self) -> usize {
        let mixing = if self.identity { 0 } else { self.n * self.n };
        match self.kind {
            MixingKind::Static => self.gate_count() + mixing,
            MixingKind::Dynamic => self.gate_count() + mixing + 2,
            MixingKind::Sinkhorn { .. } | MixingKind::Permutations => self.logits(),
        }
    }

    /// Parameters of a site that make logits of streams.
    pub(super) fn projection(&self) -> usize {
        match self.rows() {
            0 => 0,
            rows => self.logits() / rows * self.inputs(),
        }
    }

    /// Lanes of scratch for [`find`] and [`find_backward`].
    fn scratch(&self) -> usize {
        let n = self.n;
        match self.kind {
            _ if self.identity => 0,
            MixingKind::Sinkhorn { iterations } => record_length(n, iterations) + n,
            _ => n * n,
        }
    }

    #[inline(always)]
    fn read(&self, stream: usize) -> usize {
        self.n * (self.n + 1) + stream
    }

    #[inline(always)]
    fn written(&self, stream: usize) -> usize {
        stream * (self.n + 1) + self.n
    }

    #[inline(always)]
    fn mixed(&self, target: usize, source: usize) -> usize {
        target * (self.n + 1) + source
    }
}

/// The weights of all tokens. `lanes` is working memory, empty or left behind by the same shape.
#[inline(always)]
pub(super) fn find(
    shape: &Shape,
    weights: &mut [f32],
    logits: &[f32],
    small: &[f32],
    lanes: &mut Vec<Lane>,
) {
    lanes.resize(shape.weights() + shape.logits() + shape.scratch(), [0.0; LANES]);
    let (found, lanes) = lanes.split_at_mut(shape.weights());
    let (from, scratch) = lanes.split_at_mut(shape.logits());
    if shape.identity {
        found.fill([0.0; LANES]);
        for i in 0..shape.n {
            found[shape.mixed(i, i)] = [1.0; LANES];
        }
    }
    if let MixingKind::Static = shape.kind {
        constants(shape, found, small);
    }
    for (group, weights) in weights.chunks_mut(LANES * shape.weights()).enumerate() {
        if shape.logits() > 0 {
            let first = group * LANES * shape.logits();
            let last = logits.len().min(first + LANES * shape.logits());
            load(from, &logits[first..last]);
        }
        match shape.kind {
            MixingKind::Static => {}
            MixingKind::Dynamic => dynamic(shape, found, from, small),
            MixingKind::Sinkhorn { .. } | MixingKind::Permutations => {
                manifold(shape, found, from, small, scratch);
            }
        }
        store(weights, found);
    }
}

/// From the gradient of the weights to that of the logits; adds to that of the small parameters.
#[inline(always)]
pub(super) fn find_backward(
    shape: &Shape,
    d_logits: &mut [f32],
    d_small: &mut [f32],
    d_weights: &[f32],
    logits: &[f32],
    small: &[f32],
) {
    let lengths = [shape.weights(), shape.small(), shape.logits(), shape.logits()];
    let mut lanes = vec![[0f32; LANES]; lengths.iter().sum::<usize>() + shape.scratch()];
    let (from, lanes) = lanes.split_at_mut(lengths[0]);
    let (d_sums, lanes) = lanes.split_at_mut(lengths[1]);
    let (x, lanes) = lanes.split_at_mut(lengths[2]);
    let (d_x, scratch) = lanes.split_at_mut(lengths[3]);
    for (group, d_weights) in d_weights.chunks(LANES * shape.weights()).enumerate() {
        load(from, d_weights);
        let first = group * LANES * shape.logits();
        let last = logits.len().min(first + LANES * shape.logits());
        if shape.logits() > 0 {
            load(x, &logits[first..last]);
        }
        match shape.kind {
            MixingKind::Static => constants_backward(shape, d_sums, from),
            MixingKind::Dynamic => dynamic_backward(shape, d_x, d_sums, from, x, small),
            MixingKind::Sinkhorn { .. } | MixingKind::Permutations => {
                manifold_backward(shape, d_x, from, x, small, scratch);
                for (sum, d) in d_sums.iter_mut().zip(d_x.iter()) {
                    add(sum, d);
                }
            }
        }
        if shape.logits() > 0 {
            store(&mut d_logits[first..last], d_x);
        }
    }
    for (d_small, sum) in d_small.iter_mut().zip(d_sums) {
        *d_small += total(*sum);
    }
}

#[inline(always)]
fn add(sum: &mut Lane, x: &Lane) {
    for l in 0..LANES {
        sum[l] += x[l];
    }
}

/// The weights that do not depend on the streams.
#[inline(always)]
fn constants(shape: &Shape, found: &mut [Lane], small: &[f32]) {
    let n = shape.n;
    for i in 0..n {
        found[shape.read(i)] = [small[i]; LANES];
        found[shape.written(i)] = [small[n + i]; LANES];
        if shape.identity {
            continue;
        }
        for j in 0..n {
            found[shape.mixed(j, i)] = [small[2 * n + i * n + j]; LANES];
        }
    }
}

#[inline(always)]
fn constants_backward(shape: &Shape, d_sums: &mut [Lane], d_found: &[Lane]) {
    let n = shape.n;
    for i in 0..n {
        add(&mut d_sums[i], &d_found[shape.read(i)]);
        add(&mut d_sums[n + i], &d_found[shape.written(i)]);
        if shape.identity {
            continue;
        }
        for j in 0..n {
            add(&mut d_sums[2 * n + i * n + j], &d_found[shape.mixed(j, i)]);
        }
    }
}

/// Where the logits of stream `i` lead, one after the other: to its element of `E`, and to the index of
/// its scale.
#[inline(always)]
fn dynamic_target(shape: &Shape, i: usize, logit: usize) -> (usize, usize) {
    let mix_scale = shape.small() - 2;
    match logit {
        0 => (shape.read(i), mix_scale),
        1 => (shape.written(i), mix_scale + 1),
        _ => (shape.mixed(logit - 2, i), mix_scale),
    }
}

#[inline(always)]
fn dynamic(shape: &Shape, found: &mut [Lane], logits: &[Lane], small: &[f32]) {
    constants(shape, found, small);
    for (i, logits) in logits.chunks_exact(shape.logits() / shape.n).enumerate() {
        for (k, x) in logits.iter().enumerate() {
            let (at, scale) = dynamic_target(shape, i, k);
            let (y, scale) = (tanh(x), small[scale]);
            for l in 0..LANES {
                found[at][l] += scale * y[l];
            }
        }
    }
}

#[inline(always)]
fn dynamic_backward(
    shape: &Shape,
    d_logits: &mut [Lane],
    d_sums: &mut [Lane],
    d_found: &[Lane],
    logits: &[Lane],
    small: &[f32],
) {
    constants_backward(shape, d_sums, d_found);
    let per_stream = shape.logits() / shape.n;
    for (at, (d_x, x)) in d_logits.iter_mut().zip(logits).enumerate() {
        let (from, scale) = dynamic_target(shape, at / per_stream, at % per_stream);
        let (y, d) = (tanh(x), &d_found[from]);
        for l in 0..LANES {
            d_x[l] = small[scale] * (1.0 - y[l] * y[l]) * d[l];
            d_sums[scale][l] += d[l] * y[l];
        }
    }
}

#[inline(always)]
fn add_bias(logits: &mut [Lane], bias: &[f32]) {
    for (x, bias) in logits.iter_mut().zip(bias) {
        for x in x {
            *x += bias;
        }
    }
}

#[inline(always)]
fn manifold(
    shape: &Shape,
    found: &mut [Lane],
    logits: &mut [Lane],
    bias: &[f32],
    scratch: &mut [Lane],
) {
    let n = shape.n;
    let MixingGates { epsilon, post_multiplier, post_epsilon } = shape.gates;
    add_bias(logits, bias);
    let (gates, mixing) = logits.split_at_mut(shape.gate_count());
    for i in 0..n {
        found[shape.read(i)] = sigmoid(&gates[i]).map(|y| y + epsilon);
    }
    if shape.writes {
        for i in 0..n {
            let y = sigmoid(&gates[n + i]);
            found[shape.written(i)] = y.map(|y| post_multiplier * y + post_epsilon);
        }
    }
    if shape.identity {
        return;
    }
    let matrix = if let MixingKind::Sinkhorn { iterations } = shape.kind {
        sinkhorn(mixing, n, iterations, epsilon, scratch);
        mixing
    } else {
        softmax(mixing);
        mixture(&mut scratch[..n * n], mixing, &shape.permutations, n);
        &mut scratch[..n * n]
    };
    for (i, row) in matrix.chunks_exact(n).enumerate() {
        found[shape.mixed(i, 0)..][..n].copy_from_slice(row);
    }
}

#[inline(always)]
fn manifold_backward(
    shape: &Shape,
    d_logits: &mut [Lane],
    d_found: &[Lane],
    logits: &mut [Lane],
    bias: &[f32],
    scratch: &mut [Lane],
) {
    let n = shape.n;
    let MixingGates { epsilon, post_multiplier, .. } = shape.gates;
    add_bias(logits, bias);
    let (gates, mixing) = logits.split_at_mut(shape.gate_count());
    let (d_gates, d_mixing) = d_logits.split_at_mut(shape.gate_count());
    for i in 0..n {
        let (read, pre) = (&d_found[shape.read(i)], sigmoid(&gates[i]));
        for l in 0..LANES {
            d_gates[i][l] = read[l] * pre[l] * (1.0 - pre[l]);
        }
    }
    if shape.writes {
        for i in 0..n {
            let (written, post) = (&d_found[shape.written(i)], sigmoid(&gates[n + i]));
            for l in 0..LANES {
                d_gates[n + i][l] = post_multiplier * written[l] * post[l] * (1.0 - post[l]);
            }
        }
    }
    if shape.identity {
        return;
    }
    if let MixingKind::Sinkhorn { iterations } = shape.kind {
        copy_matrix(d_mixing, shape, d_found);
        sinkhorn_backward(d_mixing, mixing, n, iterations, epsilon, scratch);
    } else {
        let d_matrix = &mut scratch[..n * n];
        copy_matrix(d_matrix, shape, d_found);
        d_mixing.copy_from_slice(mixing);
        softmax(d_mixing);
        mixture_backward(d_mixing, d_matrix, &shape.permutations, n);
    }
}

/// The part of `E` that leads from stream to stream.
#[inline(always)]
fn copy_matrix(matrix: &mut [Lane], shape: &Shape, found: &[Lane]) {
    let n = shape.n;
    for (i, row) in matrix.chunks_exact_mut(n).enumerate() {
        row.copy_from_slice(&found[shape.mixed(i, 0)..][..n]);
    }
}
