//! What a policy's configuration knows: what it is, what it costs, how it starts.

use crate::residual::Residual;
use crate::site::{Dimensions, Site};
use crate::skip::{SkippedKeys, Skipping};
use crate::weights::Weights;
use serde::{Serialize, de::DeserializeOwned};

/// What people should know about a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct About {
    /// Its one name in files, types, configs and documents.
    pub kind: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
    /// The update, `F_l` being sub-layer l behind its norm.
    pub equation: &'static str,
    /// Floats of depth state per token; d is the width, L the number of sub-layers.
    pub state: &'static str,
    /// Parameters beyond PreNorm's.
    pub parameters: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
}

/// Forward work and memory of the policy alone, per token: everything between the sub-layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Floating-point operations of one forward pass; a multiply-add is two.
    pub flops: u64,
    /// Floats of depth state where it is largest.
    pub state: u64,
    /// Floats that the policy keeps for the backward pass when its light operations are recomputed.
    pub saved: u64,
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

/// The settings of one kind of policy.
pub trait PolicyConfig: Clone + PartialEq + Serialize + DeserializeOwned + Default {
    /// The module these settings make.
    type Policy: Residual;

    /// What it is.
    const ABOUT: About;

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

    /// Forward work and memory per token.
    fn cost(&self, dimensions: &Dimensions) -> Cost;

    /// How far the gates are open before training.
    fn initial_gates(&self, _dimensions: &Dimensions) -> Vec<InitialGate> {
        Vec::new()
    }

    /// When tokens skip, if the settings say so.
    fn skipping(&self) -> Option<Skipping> {
        None
    }

    /// Changes when tokens skip.
    fn set_skipping(&mut self, skipping: Option<Skipping>) -> Result<(), InvalidPolicy> {
        match skipping {
            None => Ok(()),
            Some(_) => Err(Self::refuse(
                "has no gate that is known before a sub-layer runs, so tokens cannot skip; nag and mgr have one",
            )),
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
    fn running(&self, _block: usize, time: usize) -> usize {
        time
    }

    /// FLOPs for each token of deciding who runs the sub-layer.
    fn deciding(&self, _site: Site, _width: u64) -> u64 {
        0
    }

    /// The module. Settings must have passed [`PolicyConfig::check`].
    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Self::Policy;

    /// An [`InvalidPolicy`] of this kind.
    fn refuse(reason: impl Into<String>) -> InvalidPolicy {
        InvalidPolicy { kind: Self::ABOUT.kind, reason: reason.into() }
    }
}

/// Refuses a number of streams that makes no model, or one that only a mistyped config asks for.
pub(crate) fn check_streams<C: PolicyConfig>(
    streams: usize,
    most: usize,
) -> Result<(), InvalidPolicy> {
    match streams {
        0 => Err(C::refuse("streams is 0, but at least one stream must carry the tokens")),
        n if n > most => {
            Err(C::refuse(format!("streams is {n}, but at most {most} are supported")))
        }
        _ => Ok(()),
    }
}
