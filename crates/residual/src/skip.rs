//! Skipping: a policy whose gate is known before a sub-layer runs can leave out tokens for which it is small.

use crate::policy::{InvalidPolicy, PolicyConfig};
use crate::probe::{Place, Signal, show};
use crate::site::{Dimensions, Site, SubLayerKind};
use crate::traversal::Traversal;
use burn::tensor::{Bool, Tensor, TensorData};
use hadal_cpu::Route;
use hadal_cpu::streams::Skip;
use hadal_kernels::read_back;
use serde::{Deserialize, Serialize};

/// Gates below which tokens skip: one number, one for each kind of sub-layer, or one for each sub-layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a threshold is a number, a list of one for each sub-layer, or {\"attention\":0.1,\"mlp\":0.2}"
)]
pub enum Thresholds {
    /// The same everywhere.
    One(f64),
    /// By kind.
    PerKind {
        /// For attention.
        attention: f64,
        /// For the MLP.
        mlp: f64,
    },
    /// By sub-layer, from the embedding on.
    PerSite(Vec<f64>),
}

impl Thresholds {
    /// The threshold of a sub-layer.
    pub fn at(&self, site: Site) -> f64 {
        match self {
            Self::One(threshold) => *threshold,
            Self::PerKind { attention, mlp } => match site.kind() {
                SubLayerKind::Attention => *attention,
                SubLayerKind::Mlp => *mlp,
            },
            Self::PerSite(thresholds) => thresholds[site.index],
        }
    }

    /// The thresholds of the sub-layers that stay when others are removed.
    pub fn keeping(&self, stays: impl Fn(Site) -> bool) -> Self {
        match self {
            Self::PerSite(thresholds) => Self::PerSite(
                (0..thresholds.len())
                    .filter(|&l| stays(Site::new(l)))
                    .map(|l| thresholds[l])
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    fn all(&self) -> Vec<f64> {
        match self {
            Self::One(threshold) => vec![*threshold],
            Self::PerKind { attention, mlp } => vec![*attention, *mlp],
            Self::PerSite(thresholds) => thresholds.clone(),
        }
    }
}

/// What becomes of the keys and values of tokens that skip an attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkippedKeys {
    /// They are computed and seen by later tokens.
    #[default]
    Keep,
    /// They do not exist.
    Drop,
}

/// When tokens skip, and what that does.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipping {
    /// The gates below which tokens skip.
    pub thresholds: Thresholds,
    /// The share of the threshold that is taken off the gates of running tokens: 0 is the hard rule, 1 the
    /// continuous one, which does not jump where a gate meets the threshold.
    pub shrink: f64,
    /// What becomes of keys and values.
    pub keys: SkippedKeys,
}

impl Skipping {
    /// The hard rule with one threshold.
    pub fn below(threshold: f64) -> Self {
        let thresholds = Thresholds::One(threshold);
        Self { thresholds, shrink: 0.0, keys: SkippedKeys::Keep }
    }

    /// The fields `skip_threshold`, `skip_shrink` and `skip_kv` of a policy's settings.
    pub(crate) fn fields(skipping: Option<Self>) -> (Option<Thresholds>, f64, SkippedKeys) {
        match skipping {
            Some(Self { thresholds, shrink, keys }) => (Some(thresholds), shrink, keys),
            None => (None, 0.0, SkippedKeys::Keep),
        }
    }

    /// Refuses numbers that make no rule.
    pub(crate) fn check(
        &self,
        policy: &dyn PolicyConfig,
        dimensions: &Dimensions,
    ) -> Result<(), InvalidPolicy> {
        if let Thresholds::PerSite(thresholds) = &self.thresholds
            && thresholds.len() != dimensions.sites()
        {
            return Err(policy.refuse(format!(
                "skip_threshold lists {} numbers, but there are {} sub-layers",
                thresholds.len(),
                dimensions.sites()
            )));
        }
        if let Some(tau) = self.thresholds.all().iter().find(|t| !(**t >= 0.0 && t.is_finite())) {
            return Err(policy.refuse(format!(
                "skip_threshold is {tau}, but it must be zero or a positive number"
            )));
        }
        if !(0.0..=1.0).contains(&self.shrink) {
            return Err(policy.refuse(format!(
                "skip_shrink is {}, but it is a share between 0 and 1",
                self.shrink
            )));
        }
        Ok(())
    }

    /// The rule in the form that kernels take, for the given sub-layers.
    pub(crate) fn rule(&self, sites: impl Iterator<Item = Site>, forced: &Forced) -> Skip {
        let (thresholds, forced_shares) = sites
            .map(|site| {
                let share = forced.shares.get(site.index).copied().unwrap_or_default();
                (self.thresholds.at(site) as f32, share)
            })
            .unzip();
        Skip {
            thresholds,
            shrink: self.shrink as f32,
            forced: if forced.shares.is_empty() { Vec::new() } else { forced_shares },
            seed: forced.seed,
        }
    }
}

/// Tokens that run a sub-layer whatever their gate, so that a sub-layer that no gate wants can still learn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forced {
    /// Share of tokens at each sub-layer; empty if there are none.
    pub shares: Vec<f32>,
    /// Decides which tokens they are.
    pub seed: u64,
}

/// What changes from step to step of training and is not part of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct StepMode {
    /// Share of their full size that the policy's gains have, while training warms up.
    pub warmth: f64,
    /// Whether parameters are being learned: decisions may then use what a generated text does not have.
    pub learning: bool,
    /// Tokens that run whatever their gate says.
    pub forced: Forced,
}

/// A model in use: gains have their full size, and every decision is the model's own.
static IN_USE: StepMode =
    StepMode { warmth: 1.0, learning: false, forced: Forced { shares: Vec::new(), seed: 0 } };

impl Default for StepMode {
    fn default() -> Self {
        IN_USE.clone()
    }
}

impl Default for &StepMode {
    fn default() -> Self {
        &IN_USE
    }
}

/// For settings that files leave out when they have their default.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a rule says about the tokens at one sub-layer.
pub(crate) struct Verdict {
    /// The tokens that run; `None` for all.
    pub(crate) route: Option<Route>,
    /// What to subtract from the magnitude of each gate, `[B, T, 1]`.
    pub(crate) taken_off: Option<Tensor<3>>,
}

/// Applies a rule to gates, one for each token.
///
/// # Shapes
/// - `gates`: `[B, T, 1]`
pub(crate) fn judge(rule: &Skip, site: Site, gates: &Tensor<3>) -> Verdict {
    let values = read_back(gates.clone()).unwrap_or_else(|error| panic!("{error}"));
    let each = || values.iter().copied().enumerate();
    let route = Route::of(each().map(|(token, gate)| rule.runs(site.index, token, gate)));
    let taken_off = (rule.shrink > 0.0).then(|| {
        let off = each().map(|(_, gate)| rule.taken_off(site.index, gate)).collect::<Vec<_>>();
        Tensor::from_data(TensorData::new(off, gates.dims()), &gates.device())
    });
    Verdict { route, taken_off }
}

/// How far each stream opens to a write, and which tokens skip it.
pub struct Opening {
    /// `[B, T, n]`
    pub(crate) gates: Tensor<3>,
    /// `[B, T, 1]`
    pub(crate) skipped: Option<Tensor<3, Bool>>,
}

/// Closes the gates of streams by a rule, if there is one, and returns which tokens run: the widest gate decides.
pub(crate) fn open(
    rule: Option<Skip>,
    site: Site,
    gates: Tensor<3>,
    traversal: &mut Traversal,
) -> (Opening, Option<Route>) {
    let Some(rule) = rule else { return (Opening { gates, skipped: None }, None) };
    let widest = gates.clone().max_dim(2);
    let Verdict { route, taken_off } = judge(&rule, site, &widest);
    let skipped = route.as_ref().map(|route| skipped(route, &widest));
    show(traversal, Place::Site(site), Signal::Skipped, || match &skipped {
        Some(skipped) => skipped.clone().float(),
        None => widest.zeros_like(),
    });
    let gates = match taken_off {
        Some(taken_off) => gates * ((widest.clone() - taken_off) / widest),
        None => gates,
    };
    (Opening { gates, skipped }, route)
}

/// What streams become, except that those of tokens that skip stay as they were.
///
/// # Shapes
/// - `before`, `after` and output: `[B, T, n, d]`
/// - `skipped`: `[B, T, 1]`
pub(crate) fn unless_skipped(
    skipped: Option<Tensor<3, Bool>>,
    before: Tensor<4>,
    after: Tensor<4>,
) -> Tensor<4> {
    match skipped {
        None => after,
        Some(skipped) => {
            let skipped = skipped.unsqueeze_dim::<4>(3).expand(before.dims());
            after.mask_where(skipped, before)
        }
    }
}

/// True where a token skips. `[B, T, 1]`, like the gates.
pub(crate) fn skipped(route: &Route, like: &Tensor<3>) -> Tensor<3, Bool> {
    let [batch, time, _] = like.dims();
    let skips: Vec<bool> = route.decisions().into_iter().map(|runs| !runs).collect();
    Tensor::from_data(TensorData::new(skips, [batch, time, 1]), &like.device())
}
