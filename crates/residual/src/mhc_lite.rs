//! mHC-lite: mHC whose mixing matrix is a softmax over all n! permutation matrices.
//!
//! `R = sum_k softmax(lin_res)_k P_k` is doubly stochastic exactly, without iterations; the price
//! is n! logits, which ends at a few streams. arXiv 2601.05732.

use crate::birkhoff::permutation_matrices;
use crate::mhc::{ManifoldSite, OFF_DIAGONAL_BIAS, initial_stream_gates};
use crate::policy::{About, Cost, InitialGate, InvalidPolicy, PolicyConfig, check_streams};
use crate::pool::project;
use crate::site::Dimensions;
use crate::streams::{Mix, MixedStreams, Mixer, mixing_cost};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

/// Settings of [`ManifoldLite`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManifoldLiteConfig {
    /// Number of streams.
    pub streams: usize,
}

impl Default for ManifoldLiteConfig {
    fn default() -> Self {
        Self { streams: 4 }
    }
}

/// n streams, mixed by mixtures of permutations.
pub type ManifoldLite = MixedStreams<BirkhoffSite>;

/// 6! = 720 logits per sub-layer; the next step would be 5,040.
const MOST_STREAMS: usize = 6;

fn factorial(n: usize) -> u64 {
    (1..=n as u64).fold(1, u64::saturating_mul)
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|g| str::from_utf8(g).ok()).collect();
    groups.join(",")
}

impl PolicyConfig for ManifoldLiteConfig {
    type Policy = ManifoldLite;

    const ABOUT: About = About {
        kind: "mhc_lite",
        summary: "mhc with an exact mixture of permutations instead of Sinkhorn",
        equation: "as mhc, R = sum_k softmax(scale v W + b)_k P_k over all n! permutations",
        state: "n d",
        parameters: "L (n d + 1) (n! + 2n) + 3 L",
        paper: "mHC-lite 2026, arXiv 2601.05732",
    };

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams::<Self>(self.streams, usize::MAX)?;
        if self.streams > MOST_STREAMS {
            return Err(Self::refuse(format!(
                "streams is {n}, which means {n}! = {permutations} permutations at every sub-layer; \
                 use at most {MOST_STREAMS} streams, or mhc, whose cost grows with n^2",
                n = self.streams,
                permutations = thousands(factorial(self.streams.min(20))),
            )));
        }
        Ok(())
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, n) = (dimensions.width as u64, self.streams as u64);
        let logits = factorial(self.streams);
        let weights =
            Cost::rms(n * d) + 2 * n * d * (logits + 2 * n) + 4 * logits + 2 * logits * n * n;
        mixing_cost(dimensions, n, weights)
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let n = self.streams;
        let off = OFF_DIAGONAL_BIAS.exp();
        let total = 1.0 + (factorial(n) - 1) as f64 * off;
        // (n - 1)! permutations keep a given stream in place; the identity is one of them.
        let diagonal = (1.0 + (factorial(n - 1) - 1) as f64 * off) / total;
        let mut gates = initial_stream_gates(dimensions);
        gates.push(InitialGate::alike("weight of the identity", 0, dimensions, 1.0 / total));
        gates.push(InitialGate::alike("res diagonal", 0, dimensions, diagonal));
        gates
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> ManifoldLite {
        let n = self.streams;
        let mut start = vec![OFF_DIAGONAL_BIAS as f32; factorial(n) as usize];
        start[0] = 0.0;
        MixedStreams::new(n, dimensions, weights, |site, weights| BirkhoffSite {
            linear: ManifoldSite::new(site, n, dimensions, start.clone(), weights),
        })
    }
}

/// `sum_k softmax(logits)_k P_k`.
///
/// # Shapes
/// - `logits`: `[B, T, n!]`
/// - output: `[B, T, n, n]`
fn mixture_of_permutations(logits: Tensor<3>, n: usize) -> Tensor<4> {
    let [batch, time, count] = logits.dims();
    let matrices = TensorData::new(permutation_matrices(n), [count, n * n]);
    let matrices = Tensor::<2>::from_data(matrices, &logits.device());
    project(softmax(logits, 2), matrices).reshape([batch, time, n, n])
}

/// A site whose mixing lies in the Birkhoff polytope by construction.
#[derive(Module, Debug)]
pub struct BirkhoffSite {
    linear: ManifoldSite,
}

impl Mixer for BirkhoffSite {
    fn mix(&self, streams: &Tensor<4>) -> Mix {
        let n = streams.dims()[2];
        self.linear.mix(streams, |logits| mixture_of_permutations(logits, n))
    }
}
