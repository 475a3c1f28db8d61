//! From scores to gates and to pooling weights, and back.

use crate::pieces::{load, store};
use crate::simd::exp;

/// How gates relate to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Each stream decides for itself.
    Independent,
    /// Streams and a forget logit, the first bias, share one softmax.
    Competitive,
}

impl Gate {
    /// How many biases so many streams have.
    pub(super) fn biases(self, streams: usize) -> usize {
        match self {
            Gate::Independent => streams,
            Gate::Competitive => streams + 1,
        }
    }

    /// beta of a token.
    #[inline(always)]
    pub(super) fn open(self, scores: &[f32], bias: &[f32], gates: &mut [f32]) {
        match self {
            Gate::Independent => {
                for ((gate, u), b) in gates.iter_mut().zip(scores).zip(bias) {
                    *gate = 1.0 / (1.0 + exp(-(u + b)));
                }
            }
            Gate::Competitive => {
                let (forget, bias) = (bias[0], &bias[1..]);
                for ((gate, u), b) in gates.iter_mut().zip(scores).zip(bias) {
                    *gate = u + b;
                }
                softmax_with(forget, gates);
            }
        }
    }

    /// Replaces the gradient of a token's gates by that of their scores, and adds that of the biases:
    /// `du_i = beta_i (1 - beta_i) dbeta_i`, or, with `m = sum_j beta_j dbeta_j`, `du_i = beta_i
    /// (dbeta_i - m)`.
    #[inline(always)]
    pub(super) fn backward(self, gates: &[f32], gradient: &mut [f32], d_bias: &mut [f32]) {
        let d_bias = match self {
            Gate::Independent => {
                for (du, beta) in gradient.iter_mut().zip(gates) {
                    *du *= beta * (1.0 - beta);
                }
                d_bias
            }
            Gate::Competitive => {
                let mean: f32 = gradient.iter().zip(gates).map(|(d, beta)| d * beta).sum();
                for (du, beta) in gradient.iter_mut().zip(gates) {
                    *du = beta * (*du - mean);
                }
                d_bias[0] -= (1.0 - gates.iter().sum::<f32>()) * mean;
                &mut d_bias[1..]
            }
        };
        for (db, du) in d_bias.iter_mut().zip(&*gradient) {
            *db += du;
        }
    }
}

/// Replaces logits by their softmax.
#[inline(always)]
pub(super) fn softmax(logits: &mut [f32]) {
    softmax_with(f32::NEG_INFINITY, logits);
}

/// Replaces logits by their part of a softmax that they share with one more.
#[inline(always)]
fn softmax_with(other: f32, logits: &mut [f32]) {
    let most = logits.iter().fold(other, |most, logit| most.max(*logit));
    pieces!(logits.len(), |at| {
        let mut piece: [f32; N] = load(logits, at);
        for logit in &mut piece {
            *logit = exp(*logit - most);
        }
        store(logits, at, piece);
    });
    let sum = logits.iter().fold(exp(other - most), |sum, logit| sum + logit);
    let scale = 1.0 / sum;
    for logit in logits {
        *logit *= scale;
    }
}
