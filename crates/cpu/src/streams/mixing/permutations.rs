//! Mixtures of permutations for several tokens at once: `R = sum_k a_k P_k`, `a = softmax(logits)`, over
//! all n! permutations in lexicographic order, with `P_k[i][permutation_k(i)] = 1`.

use super::lanes::{LANES, Lane};
use crate::simd::exp;

/// All permutations of `0..n` in lexicographic order: `n!` times `n` numbers.
pub(super) fn permutations(n: usize) -> Vec<usize> {
    let mut all = Vec::new();
    extend(&mut all, &mut Vec::with_capacity(n), n);
    all
}

fn extend(all: &mut Vec<usize>, begun: &mut Vec<usize>, n: usize) {
    if begun.len() == n {
        all.extend_from_slice(begun);
        return;
    }
    for next in 0..n {
        if !begun.contains(&next) {
            begun.push(next);
            extend(all, begun, n);
            begun.pop();
        }
    }
}

/// `exp(x) / sum(exp(x))`, in place.
#[inline(always)]
pub(super) fn softmax(logits: &mut [Lane]) {
    let mut largest = [f32::NEG_INFINITY; LANES];
    for x in logits.iter() {
        for l in 0..LANES {
            largest[l] = largest[l].max(x[l]);
        }
    }
    let mut sum = [0f32; LANES];
    for x in logits.iter_mut() {
        for l in 0..LANES {
            x[l] = exp(x[l] - largest[l]);
            sum[l] += x[l];
        }
    }
    let inverse = sum.map(|sum| 1.0 / sum);
    for x in logits.iter_mut() {
        for l in 0..LANES {
            x[l] *= inverse[l];
        }
    }
}

/// From the weights of the permutations to the mixing matrix `[n, n]`.
#[inline(always)]
pub(super) fn mixture(matrix: &mut [Lane], weights: &[Lane], permutations: &[usize], n: usize) {
    matrix.fill([0.0; LANES]);
    for (weight, permutation) in weights.iter().zip(permutations.chunks_exact(n)) {
        for (target, source) in permutation.iter().enumerate() {
            let x = &mut matrix[target * n + source];
            for l in 0..LANES {
                x[l] += weight[l];
            }
        }
    }
}

/// From the weights of the permutations to the gradient of their logits, in place, given the gradient
/// of the mixing matrix.
#[inline(always)]
pub(super) fn mixture_backward(
    weights: &mut [Lane],
    d_matrix: &[Lane],
    permutations: &[usize],
    n: usize,
) {
    let mut mean = [0f32; LANES];
    for (weight, permutation) in weights.iter().zip(permutations.chunks_exact(n)) {
        let d_weight = gain_of(permutation, d_matrix, n);
        for l in 0..LANES {
            mean[l] += weight[l] * d_weight[l];
        }
    }
    for (weight, permutation) in weights.iter_mut().zip(permutations.chunks_exact(n)) {
        let d_weight = gain_of(permutation, d_matrix, n);
        for l in 0..LANES {
            weight[l] *= d_weight[l] - mean[l];
        }
    }
}

/// The gradient of a permutation's weight.
#[inline(always)]
fn gain_of(permutation: &[usize], d_matrix: &[Lane], n: usize) -> Lane {
    let mut gain = [0f32; LANES];
    for (target, source) in permutation.iter().enumerate() {
        let d = &d_matrix[target * n + source];
        for l in 0..LANES {
            gain[l] += d[l];
        }
    }
    gain
}
