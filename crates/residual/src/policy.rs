//! What a policy's configuration knows: what it is, what it costs, how it starts.

use crate::ResidualConfig;
use crate::as_prenorm::{Chosen, PreNormModel, site_of_output};
use crate::norm::site_of_norm;
use crate::residual::Residual;
use crate::site::{Dimensions, Site};
use crate::skip::{SkippedKeys, Skipping};
use crate::weights::{RowRule, Weights};
use serde::Serialize;
use std::collections::BTreeMap;

/// What people should know about a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct About {
    /// Its name in files, settings and documents.
    pub kind: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
    /// The update, `F_l` being sub-layer l after its norm.
    pub equation: &'static str,
    /// Floats of depth state per token; d is the width, L the number of sub-layers.
    pub state: &'static str,
    /// Parameters beyond PreNorm's.
    pub parameters: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
}

/// A released model whose stream is a form of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Released {
    /// What people write instead of the policy and its settings, such as `olmo2`.
    pub name: &'static str,
    /// The models that have this stream.
    pub models: &'static str,
    /// The settings that the name stands for, as in a short form: `key=value,key=value`.
    pub settings: &'static str,
}

/// Forward work and memory of the policy alone, per token: everything between the sub-layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Floating-point operations of one forward pass; a multiply-add is two.
    pub flops: u64,
    /// Floats of depth state where it is largest.
    pub state: u64,
}

impl Cost {
    /// FLOPs of an RMS normalisation with a gain.
    pub(crate) fn norm(width: u64) -> u64 {
        4 * width
    }

    /// FLOPs of an RMS normalisation without a gain.
    pub(crate) fn rms(width: u64) -> u64 {
        3 * width
    }
}

/// The matrices of the branches, whose initial scale a policy may prescribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Attention queries.
    Query,
    /// Attention keys.
    Key,
    /// Attention values.
    Value,
    /// Attention output projection.
    Output,
    /// MLP expansion, and the gate of a gated MLP.
    Up,
    /// MLP contraction.
    Down,
}

/// Standard deviation of every matrix unless a policy says otherwise (nanoGPT).
pub const BASE_STD: f64 = 0.02;

/// nanoGPT's start: projections that write to the stream shrink with depth, so that the sum of all
/// writes has the variance of one.
fn scaled_output_std(dimensions: &Dimensions, matrix: Matrix) -> f64 {
    match matrix {
        Matrix::Output | Matrix::Down => BASE_STD / (dimensions.sites() as f64).sqrt(),
        _ => BASE_STD,
    }
}

/// A scalar that decides how much is written or read, before training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InitialGate {
    /// What it is, such as `beta`.
    pub name: &'static str,
    /// First sub-layer that has it.
    pub first_site: usize,
    /// Last sub-layer that has it.
    pub last_site: usize,
    /// Its value there; from first to last where it changes with depth.
    pub values: Vec<f64>,
}

impl InitialGate {
    /// A gate that starts alike from `first_site` to the last sub-layer.
    pub(crate) fn alike(
        name: &'static str,
        first_site: usize,
        dimensions: &Dimensions,
        value: f64,
    ) -> Self {
        Self { name, first_site, last_site: dimensions.sites() - 1, values: vec![value] }
    }

    /// A gate with a value of its own at every sub-layer.
    pub(crate) fn by_depth(
        name: &'static str,
        dimensions: &Dimensions,
        value: impl Fn(usize) -> f64,
    ) -> Self {
        Self {
            name,
            first_site: 0,
            last_site: dimensions.sites() - 1,
            values: (0..dimensions.sites()).map(value).collect(),
        }
    }
}

/// Why a policy's settings make no model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("residual policy {kind}: {reason}")]
pub struct InvalidPolicy {
    /// The policy.
    pub kind: &'static str,
    /// What is wrong and what would be right.
    pub reason: String,
}

/// How the optimiser moves a parameter that is the policy's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// With weight decay.
    Decayed,
    /// Without weight decay.
    Plain,
    /// Without weight decay, at the slowed-down rate of gates that would collapse otherwise.
    Gate,
}

impl Update {
    /// Matrices decay, everything else does not.
    pub fn by_shape(shape: &[usize]) -> Self {
        if shape.len() == 2 { Self::Decayed } else { Self::Plain }
    }
}

/// The embedding and the head as the policy wants them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tables {
    /// Standard deviation of the embedding before training.
    pub embed_std: f64,
    /// What holds for every row of the embedding, also after an update.
    pub embed_rows: RowRule,
    /// Standard deviation of a head of its own.
    pub head_std: f64,
    /// What holds for every row of the head.
    pub head_rows: RowRule,
    /// Whether the head is the embedding unless the config says otherwise.
    pub tied: bool,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            embed_std: BASE_STD,
            embed_rows: RowRule::Free,
            head_std: BASE_STD,
            head_rows: RowRule::Free,
            tied: true,
        }
    }
}

/// A setting of training that belongs to a policy's recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecipeKey {
    /// Its key in a variant of a suite.
    pub key: &'static str,
    /// The run's setting that it stands for.
    pub setting: &'static str,
}

/// How fast the squared norm of an additive stream grows at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// The policy that these bounds belong to.
    pub of: &'static str,
    /// What a block adds, as a share of what a PreNorm block adds.
    pub share: f64,
}

/// What the number in the names of a policy's own parameters counts: `residual.{number}.rest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// Sub-layers.
    Sites,
    /// Blocks.
    Blocks,
}

/// The settings of one kind of policy, and all that the rest of the program may ask about it.
///
/// All but `about`, `cost` and `init` have defaults: a small policy answers only what is special about it.
pub trait PolicyConfig {
    /// The module these settings make.
    type Policy: Residual
    where
        Self: Sized;

    /// What it is.
    fn about(&self) -> About;

    /// The released models that use it.
    fn released(&self) -> &'static [Released] {
        &[]
    }

    /// Forward work and memory per token.
    fn cost(&self, dimensions: &Dimensions) -> Cost;

    /// Floats of depth state that go from the first `blocks` blocks to the next one, for a token: what a machine with
    /// the first blocks sends to the one with the next.
    fn handed_over(&self, _blocks: usize, dimensions: &Dimensions) -> u64 {
        self.cost(dimensions).state
    }

    /// Floats that a policy without a fused form keeps for the backward pass, for a token. What the others keep is known
    /// from their streams.
    fn kept_plainly(&self, _dimensions: &Dimensions) -> u64 {
        0
    }

    /// The module. Settings must have passed [`PolicyConfig::check`].
    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Self::Policy
    where
        Self: Sized;

    /// Refuses settings that make no model at all.
    fn check(&self, _dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        Ok(())
    }

    /// Refuses settings whose initial values do not exist; a trained checkpoint may still hold them.
    fn check_start(&self, _dimensions: &Dimensions) -> Result<(), InvalidPolicy> {
        Ok(())
    }

    /// Initial standard deviation of a branch's matrix.
    fn branch_std(&self, dimensions: &Dimensions, matrix: Matrix) -> f64 {
        scaled_output_std(dimensions, matrix)
    }

    /// How the embedding and the head start, and what is kept true of their rows.
    fn tables(&self) -> Tables {
        Tables::default()
    }

    /// How far the gates are open before training.
    fn initial_gates(&self, _dimensions: &Dimensions) -> Vec<InitialGate> {
        Vec::new()
    }

    /// How the optimiser moves one of the policy's own parameters, `residual.{...}`.
    fn update(&self, _name: &str, shape: &[usize]) -> Update {
        Update::by_shape(shape)
    }

    /// Whether its gains rise from nothing over the first steps of training.
    fn warms_up(&self) -> bool {
        false
    }

    /// Settings of training that only this policy has.
    fn recipe(&self) -> &'static [RecipeKey] {
        &[]
    }

    /// Whether a gate is known before a sub-layer runs, so that tokens can skip.
    fn can_skip(&self) -> bool {
        false
    }

    /// When tokens skip, if the settings say so.
    fn skipping(&self) -> Option<Skipping> {
        None
    }

    /// Changes when tokens skip. Only called for policies that [can](PolicyConfig::can_skip).
    fn set_skipping(&mut self, skipping: Option<Skipping>) -> Result<(), InvalidPolicy> {
        match skipping {
            None => Ok(()),
            Some(_) => Err(self.refuse(format!(
                "has no gate that is known before a sub-layer runs, so tokens cannot skip; {} have one",
                crate::policies::kinds_that(|policy| policy.can_skip()).join(" and ")
            ))),
        }
    }

    /// Sub-layers from the embedding on that no token can skip, whatever the threshold.
    fn always_run(&self) -> usize {
        0
    }

    /// What becomes of the keys of tokens that skip.
    fn skipped_keys(&self) -> SkippedKeys {
        self.skipping().map_or(SkippedKeys::Keep, |skipping| skipping.keys)
    }

    /// Tokens of a sequence of `time` that run a block by design, whatever a threshold says.
    fn running(&self, _block: usize, time: usize, _dimensions: &Dimensions) -> usize {
        time
    }

    /// FLOPs per token of deciding which tokens run the sub-layer.
    fn deciding(&self, _site: Site, _dimensions: &Dimensions) -> u64 {
        0
    }

    /// Whether one of the policy's values depends on a block's depth. A model without some of its blocks then remembers
    /// their numbers ([`Dimensions::removed`]).
    fn depends_on_depth(&self) -> bool {
        false
    }

    /// What the number in the names of its own parameters counts.
    fn numbering(&self) -> Numbering {
        Numbering::Sites
    }

    /// The block that takes a parameter of the policy's own along when blocks change places, and what it is called
    /// within the block; `None` for what stays, because it belongs to the place or to the model.
    fn travels(&self, name: &str, _dimensions: &Dimensions) -> Option<(usize, String)> {
        travels_by_number(name, self.numbering())
    }

    /// Why two blocks cannot change places, where their parameters do not say it.
    fn unlike(&self, _a: usize, _b: usize, _dimensions: &Dimensions) -> Option<&'static str> {
        None
    }

    /// What the gain of a sub-layer's norm is multiplied by in a prenorm model that computes the same; `None` if no
    /// prenorm model does.
    fn prenorm_gain(&self, _site: Site, _dimensions: &Dimensions) -> Option<f64> {
        None
    }

    /// What the output of a sub-layer is multiplied by in a prenorm model that computes the same, if one does.
    fn prenorm_output(&self, _site: Site, _dimensions: &Dimensions) -> f64 {
        1.0
    }

    /// What the parameter of this name is multiplied by in a prenorm model that computes the same, if one does.
    fn prenorm_factor(&self, name: &str, dimensions: &Dimensions) -> Option<f64> {
        match (site_of_norm(name), site_of_output(name)) {
            (Some(site), _) => self.prenorm_gain(site, dimensions),
            (_, Some(site)) => Some(self.prenorm_output(site, dimensions)),
            _ => Some(1.0),
        }
    }

    /// Values of parameters under which the policy computes what this prenorm model does, so that a trained model can go
    /// on with it. Unless a policy says otherwise, these undo [`PolicyConfig::prenorm_gain`] and
    /// [`PolicyConfig::prenorm_output`].
    fn as_prenorm<'a>(
        &'a self,
        prenorm: &'a PreNormModel<'a>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        let folds = |site| self.prenorm_gain(site, &prenorm.dimensions).is_some();
        if !prenorm.dimensions.each_site().all(folds) {
            return Err(self.refuse(format!(
                "{}, so it cannot go on from a prenorm model",
                self.never_prenorm()
            )));
        }
        Ok(Box::new(move |name, _| {
            let factor = self.prenorm_factor(name, &prenorm.dimensions).filter(|f| *f != 1.0)?;
            let elements = (prenorm.elements)(name)?;
            Some(elements.into_iter().map(|x| (f64::from(x) / factor) as f32).collect())
        }))
    }

    /// What the epsilon of all norms may be multiplied by where the policy goes on from a prenorm model: one, unless it reads
    /// means of what prenorm adds up, which are smaller. The first is preferred, and another only if logits move less.
    fn prenorm_epsilons(&self, _dimensions: &Dimensions) -> Vec<f64> {
        vec![1.0]
    }

    /// Why the policy can be no prenorm model; said where [`PolicyConfig::as_prenorm`] finds no values.
    fn never_prenorm(&self) -> &'static str {
        "no values of its parameters make it compute what prenorm does"
    }

    /// Values of parameters under which the mixers of these sub-layers are matrices that no longer depend on the token:
    /// `[target, source]`, row by row.
    fn fixed_mixers<'a>(
        &'a self,
        _mixers: &'a BTreeMap<usize, Vec<f64>>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        Err(self.refuse("it does not mix streams, so there are no mixers to replace".to_owned()))
    }

    /// The policy that is left when every mixer is the identity. Its parameters are some of this policy's.
    fn without_mixers(&self) -> Option<ResidualConfig> {
        None
    }

    /// What a block adds to the squared norm of an additive stream at the start; PreNorm's unless the policy has
    /// bounds of its own.
    fn growth(&self, _block: usize, _dimensions: &Dimensions) -> Growth {
        Growth { of: "PreNorm", share: 1.0 }
    }

    /// An [`InvalidPolicy`] of this kind.
    fn refuse(&self, reason: String) -> InvalidPolicy {
        InvalidPolicy { kind: self.about().kind, reason }
    }
}

/// What the number in a parameter's name says: `residual.{number}.rest`, or `residual.block.{i}.rest` with blocks from 1.
pub(crate) fn travels_by_number(name: &str, numbering: Numbering) -> Option<(usize, String)> {
    let words: Vec<&str> = name.split('.').collect();
    match words.as_slice() {
        ["residual", "block", number, rest @ ..] => {
            Some((number.parse::<usize>().ok()?.checked_sub(1)?, rest.join(".")))
        }
        ["residual", number, rest @ ..] => {
            let number: usize = number.parse().ok()?;
            Some(match numbering {
                Numbering::Blocks => (number, rest.join(".")),
                Numbering::Sites => (number / 2, format!("{}.{}", number % 2, rest.join("."))),
            })
        }
        _ => None,
    }
}

/// Refuses a number of streams that makes no model, or one that only a mistyped config asks for.
pub(crate) fn check_streams(
    policy: &dyn PolicyConfig,
    streams: usize,
    most: usize,
) -> Result<(), InvalidPolicy> {
    let reason = match streams {
        0 => "streams is 0, but at least one stream must carry the tokens".to_owned(),
        n if n > most => format!("streams is {n}, but at most {most} are supported"),
        _ => return Ok(()),
    };
    Err(policy.refuse(reason))
}

/// Refuses a factor that is not a number above zero.
pub(crate) fn check_positive(
    policy: &dyn PolicyConfig,
    key: &str,
    value: f64,
) -> Result<(), InvalidPolicy> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(policy.refuse(format!("{key} is {value}, but it has to be a number above zero")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_travels_with_the_block_that_its_number_says() {
        let at = |name, numbering| travels_by_number(name, numbering);
        let found = |block, rest: &str| Some((block, rest.to_owned()));
        assert_eq!(at("residual.5.gate.bias", Numbering::Sites), found(2, "1.gate.bias"));
        assert_eq!(at("residual.5.gate.bias", Numbering::Blocks), found(5, "gate.bias"));
        assert_eq!(at("residual.block.1.scale", Numbering::Sites), found(0, "scale"));
        assert_eq!(at("residual.block.0.scale", Numbering::Sites), None);
        for stays in ["residual.out.query", "residual.stream_scale", "norm.weight"] {
            assert_eq!(at(stays, Numbering::Sites), None, "{stays}");
        }
    }
}
