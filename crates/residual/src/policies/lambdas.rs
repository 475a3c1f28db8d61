//! Lambdas: before block i `x = resid_i x + x0_i x_0`, then `x' = x + F_l(x)` in it; nanochat's stream.
//!
//! `x_0` is the normalised embedding, which every block can take up again with a weight of its own, and a second number
//! grows or shrinks the stream. With `backout` the read-out takes off a share of the stream as it was in the middle of the
//! model: `x - backout x_mid`, x_mid after block floor(n / 2), counted from 0. nanochat (Karpathy, 2025), after
//! modded-nanogpt; its norms have no gains, its smear and value embeddings are not part of the stream.
//!
//! nanochat moves these numbers with rates of their own, for AdamW: resid 0.005 (betas 0.8 and 0.95, decay 0.05), x0 0.5
//! (betas 0.96 and 0.95), backout 0.2. Here they move like gains, at the rate of the run and without decay.

use crate::additive::{Additive, AdditiveSite, Backout, BlockMix, EmbedNorm, additive_cost};
use crate::policy::{About, BASE_STD, Cost, InitialGate, Matrix, PolicyConfig, Released, Tables};
use crate::site::{Dimensions, Site};
use crate::unset::is_false;
use crate::weights::{Init, Weights};
use serde::{Deserialize, Serialize};

/// Settings of lambdas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LambdasConfig {
    /// Whether the read-out takes off a share of the stream in the middle.
    #[serde(skip_serializing_if = "is_false")]
    pub backout: bool,
}

/// From the first block to the last.
const RESID: [f64; 2] = [1.15, 1.05];
const X0: [f64; 2] = [0.2, 0.05];
const BACKOUT: f64 = 0.2;

/// What lies between two values where a block does between the first and the last one.
fn falling([first, last]: [f64; 2], block: usize, dimensions: &Dimensions) -> f64 {
    let steps = dimensions.full_depth().saturating_sub(1).max(1) as f64;
    first + (last - first) * dimensions.depth_of(block) as f64 / steps
}

/// How many blocks are there before the stream that the read-out takes off: all up to the one in the middle of the model
/// as it was before any were cut out.
fn before_middle(dimensions: &Dimensions) -> usize {
    let middle = dimensions.full_depth() / 2;
    (0..dimensions.blocks).filter(|&block| dimensions.depth_of(block) <= middle).count()
}

impl PolicyConfig for LambdasConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "lambdas",
            summary: "prenorm that scales the stream before every block and adds the embedding again; nanochat",
            equation: "x = resid_i x + x0_i x_0 before block i, x' = x + F_l(x) in it; x_0 = rms(embedding); backout: out = x - backout x_mid",
            state: "2 d, 3 d with backout",
            parameters: "2 blocks, 1 more with backout",
            paper: "nanochat 2025, no paper",
        }
    }

    fn released(&self) -> &'static [Released] {
        const { &[Released { name: "nanochat", models: "nanochat", settings: "backout=true" }] }
    }

    /// Sub-layers write nothing at the start.
    fn branch_std(&self, _: &Dimensions, matrix: Matrix) -> f64 {
        match matrix {
            Matrix::Output | Matrix::Down => 0.0,
            _ => BASE_STD,
        }
    }

    /// The size of the embedding has no effect on the stream, which normalises it.
    fn tables(&self) -> Tables {
        Tables { embed_std: 0.8, ..Tables::default() }
    }

    fn never_prenorm(&self) -> &'static str {
        "it normalises the embedding, whose size a prenorm stream keeps"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let base = additive_cost(dimensions);
        let (d, blocks) = (dimensions.width as u64, dimensions.blocks as u64);
        let held = 1 + u64::from(self.backout);
        let backout = if self.backout { 2 * d } else { 0 };
        Cost {
            flops: base.flops + Cost::rms(d) + 3 * d * blocks + backout,
            state: base.state + held * d,
        }
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let gate = |name, values| {
            let value = |l| falling(values, Site::new(l).block(), dimensions);
            InitialGate::by_depth(name, dimensions, value)
        };
        vec![gate("resid", RESID), gate("x0", X0)]
    }

    /// Where the middle is.
    fn depends_on_depth(&self) -> bool {
        self.backout
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        let mut number = |name: String, value: f64| weights.param(name, [1], Init::Constant(value));
        let mixes = (0..dimensions.blocks)
            .map(|block| {
                let name = |part: &str| format!("residual.block.{}.{part}", block + 1);
                BlockMix {
                    resid: number(name("resid"), falling(RESID, block, dimensions)),
                    x0: number(name("x0"), falling(X0, block, dimensions)),
                }
            })
            .collect();
        let backout = self.backout.then(|| Backout {
            weight: number("residual.out.backout".into(), BACKOUT),
            blocks: before_middle(dimensions),
        });
        Additive::new(dimensions, weights, |_, norm| AdditiveSite::pre(norm))
            .with_final_norm(dimensions, weights)
            .with_embed_norm(Some(EmbedNorm { gain: None, eps: dimensions.norm_eps }))
            .with_mixes(mixes, backout)
    }
}

#[cfg(test)]
mod tests;
