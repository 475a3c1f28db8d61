//! Sandwich: `x' = x + RMSNorm'_l(F_l(x))`, a norm before and after every sub-layer.
//!
//! Every write has the size of its gain, whatever the sub-layer returns, so the stream grows with the root of depth
//! at the start and no single write can take it over. Sandwich-LN of CogView (arXiv 2105.13290), Peri-LN (Kim et al.,
//! arXiv 2502.02732); the stream of Gemma 2 and 3 and of GLM-4.
//!
//! Forms of it, which are one setting each:
//!
//! - `scaled` (Beam 1.0): `x' = (sqrt(l+1) x + y) / sqrt(l+2)`, y being the normalised write: the same function, but for eps,
//!   with a stream that does not grow;
//! - `block_scale` (Gemma 4): after every block the stream is multiplied by a learned number, one at the start;
//! - `gate_temperature` T (Muse Spark): `b = sigmoid(gate_l / T)` for each channel, `x' = sqrt(1 - b^2) x + b rms(F_l(x))`,
//!   which keeps the variance of uncorrelated unit streams; `1 - b^2` is never below 1e-3;
//! - `embed_norm` (Muse): the stream starts as the normalised embedding.

use crate::additive::{
    Additive, AdditiveSite, ChannelGate, EmbedNorm, additive_cost, depth_of_site, with_scaling,
};
use crate::norm::RmsNorm;
use crate::policy::{
    About, BASE_STD, Cost, InitialGate, InvalidPolicy, Matrix, PolicyConfig, Released,
    check_positive,
};
use crate::site::{Dimensions, Site};
use crate::unset::is_false;
use crate::weights::{Init, Weights};
use serde::{Deserialize, Serialize};

/// Settings of Sandwich.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandwichConfig {
    /// Whether the stream is divided by the root of the number of its parts.
    #[serde(skip_serializing_if = "is_false")]
    pub scaled: bool,
    /// Whether the stream is multiplied by a learned number after every block.
    #[serde(skip_serializing_if = "is_false")]
    pub block_scale: bool,
    /// If gates weigh stream and write by channel, what their logits are divided by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate_temperature: Option<f64>,
    /// Whether the embedding is normalised.
    #[serde(skip_serializing_if = "is_false")]
    pub embed_norm: bool,
}

/// Standard deviation of a gate's logits before training.
const GATE_STD: f64 = 0.02;

impl SandwichConfig {
    /// Weights of the stream and of the write at a sub-layer, if they are constants.
    fn weights(&self, site: Site, dimensions: &Dimensions) -> [f64; 2] {
        if !self.scaled {
            return [1.0, 1.0];
        }
        let parts = (depth_of_site(site, dimensions) + 2) as f64;
        [((parts - 1.0) / parts).sqrt(), parts.sqrt().recip()]
    }
}

impl PolicyConfig for SandwichConfig {
    type Policy = Additive;

    fn about(&self) -> About {
        About {
            kind: "sandwich",
            summary: "prenorm whose writes are normalised, too; Gemma 2, 3 and 4, GLM-4, Muse, Beam",
            equation: "x' = x + RMSNorm'_l(F_l(x)); gate_temperature T: x' = sqrt(1 - b^2) x + b rms(F_l(x)), b = sigmoid(gate_l/T)",
            state: "d",
            parameters: "d L, block_scale: + blocks, embed_norm: + d",
            paper: "Kim et al. 2025 (Peri-LN), arXiv 2502.02732",
        }
    }

    fn released(&self) -> &'static [Released] {
        const {
            &[
                Released { name: "gemma3", models: "Gemma 2 and 3, GLM-4", settings: "" },
                Released { name: "gemma4", models: "Gemma 4", settings: "block_scale=true" },
                Released { name: "beam", models: "Beam 1.0", settings: "scaled=true" },
                Released {
                    name: "muse_spark",
                    models: "Muse Spark",
                    settings: "gate_temperature=0.3",
                },
            ]
        }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        let Some(temperature) = self.gate_temperature else { return Ok(()) };
        if self.scaled {
            return Err(self.refuse(
                "gate_temperature and scaled both set the weights of stream and write; leave one of them out".into(),
            ));
        }
        check_positive(self, "gate_temperature", temperature)
    }

    /// A write has the size of its gain, so a depth-scaled start would change nothing.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn never_prenorm(&self) -> &'static str {
        "it normalises what sub-layers write, and takes away what their sizes say"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let mut cost = additive_cost(dimensions);
        cost.flops += sites * Cost::norm(d);
        if self.scaled || self.gate_temperature.is_some() {
            cost = with_scaling(cost, dimensions);
        }
        cost.flops += if self.block_scale { dimensions.blocks as u64 * d } else { 0 };
        cost.flops += if self.embed_norm { Cost::norm(d) } else { 0 };
        cost
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        if self.gate_temperature.is_some() {
            let gate = |name, value: f64| InitialGate::alike(name, 0, dimensions, value);
            return vec![gate("write", 0.5), gate("skip", 0.75f64.sqrt())];
        }
        let weight = |name, which: usize| {
            let value = |l| self.weights(Site::new(l), dimensions)[which];
            InitialGate::by_depth(name, dimensions, value)
        };
        if self.scaled { vec![weight("skip", 0), weight("write", 1)] } else { Vec::new() }
    }

    /// The weights of a sum of so many parts.
    fn depends_on_depth(&self) -> bool {
        self.scaled
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Additive {
        let (width, eps) = (dimensions.width, dimensions.norm_eps);
        let writes: Vec<_> = dimensions
            .each_site()
            .map(|site| match self.gate_temperature {
                None => {
                    let name = format!("residual.{}.post_norm", site.index);
                    (Some(RmsNorm::new(name, width, eps, weights)), None)
                }
                Some(temperature) => {
                    let name = format!("residual.{}.gate", site.index);
                    let start = Init::Normal { std: GATE_STD };
                    let logits = weights.param(name, [width], start);
                    (None, Some(ChannelGate { logits, temperature }))
                }
            })
            .collect();
        let embed_norm = self.embed_norm.then(|| EmbedNorm {
            gain: Some(weights.param("residual.embed_norm", [width], Init::ONES)),
            eps,
        });
        let scaled_blocks = if self.block_scale { 1..dimensions.blocks + 1 } else { 0..0 };
        let scales = scaled_blocks
            .map(|block| weights.param(format!("residual.block.{block}.scale"), [1], Init::ONES))
            .collect();
        let mut writes = writes.into_iter();
        let site = |site, norm| {
            let (write, gate) = writes.next().unwrap_or_default();
            let [carry, factor] = self.weights(site, dimensions);
            AdditiveSite { write, gate, factor, carry, ..AdditiveSite::pre(norm) }
        };
        Additive::new(dimensions, weights, site)
            .with_final_norm(dimensions, weights)
            .with_embed_norm(embed_norm)
            .with_scales(scales)
    }
}

#[cfg(test)]
mod tests;
