//! NAG, the norm-agnostic stream: direction and magnitude travel in separate lanes.
//!
//! `r` has mean square one and is all that sub-layers see; `s` is the logarithm of the norm that an
//! ordinary stream would have. With `f = F_l(r)` centred and made orthogonal to r, then scaled to
//! the length of r as `u`, each sub-layer is a rotation by `arctan g`:
//!
//! `r' = (r + g u) / sqrt(1 + g^2)`, `s' = s + ln(1 + g^2) / 2`, `g = alpha max(S, 1e-6)^beta`,
//! `S = sum_i softmax(mix)_i sigmoid(w_i . r + b_i)`, `beta = softplus(sharpness)`.
//!
//! `g` is known before the sub-layer runs, so a token can skip it where `|g|` is below a threshold,
//! losing a rotation of at most `arctan` of the threshold. The read-out is `exp(s) r / d`: the norm
//! lane is the inverse temperature of the logits. arXiv 2606.16112; the skip rule is ours.

use crate::fused::{FusedOptions, Junction, join_any, readers};
use crate::policy::{
    About, BASE_STD, Cost, InitialGate, InvalidPolicy, Matrix, PolicyConfig, RecipeKey, Tables,
    Update,
};
use crate::pool::project;
use crate::probe::{Place, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::skip::{
    SkippedKeys, Skipping, StepMode, Thresholds, Verdict, is_default, judge, skipped,
};
use crate::traversal::Traversal;
use crate::weights::{Init, RowRule, Weights};
use burn::module::{Module, Param};
use burn::tensor::{
    Bool, Tensor,
    activation::{sigmoid, softmax, softplus},
};
use hadal_cpu::streams::{Nag, Skip, Stream};
use hadal_kernels::{root_mean_square, turn};
use serde::{Deserialize, Serialize};

/// Settings of [`NormAgnostic`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NormAgnosticConfig {
    /// Preferred directions of each modulator.
    pub directions: usize,
    /// Tokens whose gain is smaller than this skip the sub-layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_threshold: Option<Thresholds>,
    /// The share of the threshold that is taken off the gains of running tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_shrink: f64,
    /// What becomes of the keys of tokens that skip an attention.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_kv: SkippedKeys,
}

impl Default for NormAgnosticConfig {
    fn default() -> Self {
        Self { directions: 32, skip_threshold: None, skip_shrink: 0.0, skip_kv: SkippedKeys::Keep }
    }
}

/// The name of the read-out's inverse temperature.
const LOG_GAIN: &str = "residual.log_gain";
/// `softplus` of this is one.
const UNIT_SHARPNESS: f64 = 0.541_324_854_612_918_1;
/// Keeps the power away from the infinite slope at zero.
const SMALLEST_MODULATION: f64 = 1e-6;
/// Keeps the direction of a vanishing write finite.
const DIRECTION_EPS: f64 = 1e-12;
const SMALLEST_NORM: f64 = 1e-18;
const MOST_DIRECTIONS: usize = 1 << 20;

/// alpha of sub-layer l from 0: the relative size of the l-th of equal, orthogonal writes.
fn initial_alpha(site: usize) -> f64 {
    1.0 / ((site + 1) as f64).sqrt()
}

impl PolicyConfig for NormAgnosticConfig {
    type Policy = NormAgnostic;

    fn about(&self) -> About {
        About {
            kind: "nag",
            summary: "direction and magnitude in separate lanes; each sub-layer is a rotation that can be skipped",
            equation: "r' = (r + g u)/sqrt(1 + g^2), s' = s + ln(1 + g^2)/2, g = alpha S(r)^beta, u = unit part of sub_l(r) orthogonal to r",
            state: "d + 1",
            parameters: "L (C d + 2C + 2) + 1 - d (L + 1)",
            paper: "NAG 2026, arXiv 2606.16112",
        }
    }

    fn check(&self, dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        if self.directions == 0 || self.directions > MOST_DIRECTIONS {
            return Err(self.refuse(format!(
                "directions is {}, but a modulator needs between 1 and {MOST_DIRECTIONS}",
                self.directions
            )));
        }
        self.skipping().map_or(Ok(()), |skipping| skipping.check(self, dimensions))
    }

    fn can_skip(&self) -> bool {
        true
    }

    fn skipping(&self) -> Option<Skipping> {
        let thresholds = self.skip_threshold.clone()?;
        Some(Skipping { thresholds, shrink: self.skip_shrink, keys: self.skip_kv })
    }

    fn set_skipping(&mut self, skipping: Option<Skipping>) -> Result<(), InvalidPolicy> {
        (self.skip_threshold, self.skip_shrink, self.skip_kv) = Skipping::fields(skipping);
        Ok(())
    }

    /// The magnitude of an embedding is where the inverse temperature starts, so it must not be tiny: logits are
    /// bounded by it. Its mean has no meaning.
    fn tables(&self) -> Tables {
        Tables {
            embed_std: 1.0,
            embed_rows: RowRule::Centred,
            head_std: 1.0,
            head_rows: RowRule::Unit,
            tied: false,
        }
    }

    /// Gates collapse at full rate. The temperature is no gate: it has far to go and cannot collapse.
    fn update(&self, name: &str, _: &[usize]) -> Update {
        if name == LOG_GAIN { Update::Plain } else { Update::Gate }
    }

    fn warms_up(&self) -> bool {
        true
    }

    fn recipe(&self) -> &'static [RecipeKey] {
        &[
            RecipeKey { key: "nag_alpha_warmup", setting: "train.nag_alpha_warmup" },
            RecipeKey { key: "nag_gate_slowdown", setting: "optimizer.nag_gate_slowdown" },
        ]
    }

    /// The size of a branch's output has no effect here, only its direction.
    fn branch_std(&self, _: &Dimensions, _: Matrix) -> f64 {
        BASE_STD
    }

    fn never_prenorm(&self) -> &'static str {
        "its stream is rotated and keeps its length, where writes are added to prenorm's"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites, c) =
            (dimensions.width as u64, dimensions.sites() as u64, self.directions as u64);
        Cost { flops: sites * (2 * c * d + 14 * d) + 4 * d, state: d + 1 }
    }

    fn deciding(&self, _: Site, dimensions: &Dimensions) -> u64 {
        2 * self.directions as u64 * dimensions.width as u64
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        vec![
            InitialGate::by_depth("alpha", dimensions, initial_alpha),
            // Each sigmoid is around one half before the directions are learned.
            InitialGate::by_depth("gain (about)", dimensions, |l| 0.5 * initial_alpha(l)),
        ]
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> NormAgnostic {
        NormAgnostic {
            log_gain: weights.param(LOG_GAIN, [1], Init::ZEROS),
            sites: dimensions
                .each_site()
                .map(|site| Modulator::new(self.directions, site, dimensions, weights))
                .collect(),
            skipping: self.skipping(),
        }
    }
}

/// Decides from the direction alone how far a sub-layer may turn it.
#[derive(Module, Debug)]
pub(crate) struct Modulator {
    alpha: Param<Tensor<1>>,
    directions: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    mix: Param<Tensor<1>>,
    sharpness: Param<Tensor<1>>,
}

impl Modulator {
    fn new(directions: usize, site: Site, dimensions: &Dimensions, weights: &mut Weights) -> Self {
        let name = |part: &str| format!("residual.{}.{part}", site.index);
        let (c, d) = (directions, dimensions.width);
        Self {
            alpha: weights.param(name("alpha"), [1], Init::Constant(initial_alpha(site.index))),
            directions: weights.param(name("directions"), [c, d], Init::Normal { std: BASE_STD }),
            bias: weights.param(name("bias"), [c], Init::ZEROS),
            mix: weights.param(name("mix"), [c], Init::ZEROS),
            sharpness: weights.param(name("sharpness"), [1], Init::Constant(UNIT_SHARPNESS)),
        }
    }

    /// # Shapes
    /// - `r`: `[B, T, d]`
    /// - output: `[B, T, 1]`
    fn gain(&self, r: Tensor<3>) -> Tensor<3> {
        let open =
            sigmoid(project(r, self.directions.val().transpose()) + self.bias.val().unsqueeze());
        let share = softmax(self.mix.val(), 0).unsqueeze_dim(1);
        let modulation = project(open, share).clamp_min(SMALLEST_MODULATION);
        let power = softplus(self.sharpness.val(), 1.0).unsqueeze();
        (modulation.log() * power).exp() * self.alpha.val().unsqueeze()
    }
}

/// `r' = (r + g u) / sqrt(1 + g^2)`, `s' = s + ln(1 + g^2) / 2`.
#[derive(Module, Debug)]
pub struct NormAgnostic {
    log_gain: Param<Tensor<1>>,
    sites: Vec<Modulator>,
    #[module(skip)]
    skipping: Option<Skipping>,
}

/// The two lanes.
pub struct Lanes {
    /// `[B, T, d]`, of unit mean square
    direction: Tensor<3>,
    /// `[B, T, 1]`
    log_norm: Tensor<3>,
}

/// How far to turn, and which tokens stay where they are.
pub struct Turn {
    /// `[B, T, 1]`
    gain: Tensor<3>,
    /// `[B, T, 1]`
    skipped: Option<Tensor<3, Bool>>,
}

impl NormAgnostic {
    fn rule(&self, sites: impl Iterator<Item = Site>, mode: &StepMode) -> Option<Skip> {
        Some(self.skipping.as_ref()?.rule(sites, &mode.forced))
    }
}

impl Residual for NormAgnostic {
    type State = Lanes;
    type Ticket = Turn;

    fn open(&self, embedding: Tensor<3>) -> Lanes {
        // The floor only matters to an all-zero row, which has no direction to keep.
        let norm = root_mean_square(embedding.clone()).clamp_min(SMALLEST_NORM);
        Lanes {
            direction: embedding / norm.clone(),
            log_norm: norm.log() + self.log_gain.val().unsqueeze(),
        }
    }

    fn read(&self, site: Site, lanes: &Lanes, traversal: &mut Traversal) -> Read<Turn> {
        let place = Place::Site(site);
        let gain = self.sites[site.index].gain(lanes.direction.clone());
        let warmth = traversal.mode.warmth;
        let gain = if warmth == 1.0 { gain } else { gain * warmth };
        show(traversal, place, Signal::Reading, || lanes.direction.clone());
        show(traversal, place, Signal::Gain, || gain.clone());
        let Some(rule) = self.rule((0..self.sites.len()).map(Site::new), traversal.mode) else {
            return Read::all(lanes.direction.clone(), Turn { gain, skipped: None });
        };
        let Verdict { route, taken_off } = judge(&rule, site, &gain);
        let skipped = route.as_ref().map(|route| skipped(route, &gain));
        show(traversal, place, Signal::Skipped, || match &skipped {
            Some(skipped) => skipped.clone().float(),
            None => gain.zeros_like(),
        });
        let gain = match taken_off {
            Some(taken_off) => gain.clone() - gain.sign() * taken_off,
            None => gain,
        };
        Read { input: lanes.direction.clone(), route, ticket: Turn { gain, skipped } }
    }

    fn write(
        &self,
        site: Site,
        lanes: Lanes,
        ticket: Turn,
        output: Tensor<3>,
        traversal: &mut Traversal,
    ) -> Lanes {
        let Turn { gain, skipped } = ticket;
        let turned = turn(lanes.direction.clone(), output, gain.clone(), DIRECTION_EPS);
        let grown = lanes.log_norm.clone() + gain.square().log1p() * 0.5;
        let after = match skipped {
            None => Lanes { direction: turned, log_norm: grown },
            Some(skipped) => Lanes {
                direction: turned
                    .mask_where(skipped.clone().expand(lanes.direction.dims()), lanes.direction),
                log_norm: grown.mask_where(skipped, lanes.log_norm),
            },
        };
        show(traversal, Place::Site(site), Signal::LogNorm, || after.log_norm.clone());
        after
    }

    fn stream_params(&self, junctions: &[Junction], options: &FusedOptions) -> Vec<Tensor<1>> {
        let device = self.log_gain.val().device();
        let params = junctions.iter().map(|junction| {
            let mut parts = Vec::new();
            if junction.from.is_none() {
                parts.push(self.log_gain.val());
            }
            if let Place::Site(site) = junction.to {
                let Modulator { alpha, directions, bias, mix, sharpness } = &self.sites[site.index];
                parts.extend([
                    directions.val().flatten(0, 1),
                    bias.val(),
                    softmax(mix.val(), 0),
                    softplus(sharpness.val(), 1.0),
                    alpha.val() * options.mode.warmth,
                ]);
            }
            join_any(parts, &device)
        });
        params.collect()
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        let [directions, width] = self.sites.first()?.directions.lazy_shape().dims();
        let skip = self.rule(readers(junctions), options.mode);
        Some(Box::new(Nag::new(width, junctions.len() - 1, directions, skip, options.keep)))
    }

    fn set_skipping(&mut self, skipping: Option<Skipping>) {
        self.skipping = skipping;
    }

    fn close(&self, lanes: Lanes, traversal: &mut Traversal) -> Tensor<3> {
        show(traversal, Place::Out, Signal::Reading, || lanes.direction.clone());
        show(traversal, Place::Out, Signal::LogNorm, || lanes.log_norm.clone());
        let width = lanes.direction.dims()[2] as f64;
        lanes.direction * (lanes.log_norm.exp() / width)
    }
}

#[cfg(test)]
mod tests;
