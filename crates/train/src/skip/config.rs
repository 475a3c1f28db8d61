//! `[skip]`: how many of the skippable FLOPs a model learns to do without.

use crate::config::RunConfigError;
use hadal_residual::{ResidualConfig, Site, SkippedKeys, Skipping, SubLayerKind, Thresholds};
use serde::{Deserialize, Serialize};

/// Training in which tokens skip sub-layers, at a rate that a controller of thresholds aims at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipConfig {
    /// Share of the skippable FLOPs, from the end of the ramp on.
    pub rate: f64,
    /// Which sub-layers have a threshold in common.
    #[serde(default)]
    pub per: SkipPer,
    /// What happens to the gates of running tokens.
    #[serde(default)]
    pub gate: SkipGate,
    /// Last part of the run, as a share of its steps, over which a continuous gate becomes a hard one; 0 leaves it
    /// continuous, and the finished model runs with it.
    #[serde(default)]
    pub harden: f64,
    /// What becomes of the keys of tokens that skip an attention.
    #[serde(default)]
    pub kv: SkippedKeys,
    /// How fast thresholds follow; by default 0.01, or 25 / steps if that is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta: Option<f64>,
    /// Memory of the measured rate, from step to step.
    #[serde(default = "nine_tenths")]
    pub ema: f64,
    /// First part of the run, as a share of its steps, over which the target rises from 0 to the rate.
    #[serde(default = "tenth")]
    pub ramp: f64,
    /// First part of the run, as a share of its steps, during which no token skips the first two and last two
    /// sub-layers.
    #[serde(default = "tenth")]
    pub protect: f64,
    /// Share of tokens that are made to run a sub-layer if fewer would run it.
    #[serde(default = "hundredth")]
    pub guard_share: f64,
    /// Steps between two checks for such sub-layers.
    #[serde(default = "hundred")]
    pub guard_steps: u64,
}

/// Which sub-layers have a threshold in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipPer {
    /// All of them: sub-layers that turn the stream least are skipped most.
    #[default]
    Model,
    /// Those of a kind: attention has one threshold and MLPs another, and each kind meets the rate.
    Kind,
    /// None: each sub-layer has its own threshold and meets the rate.
    Layer,
}

impl SkipPer {
    /// The sub-layers of each threshold.
    pub fn groups(self, sites: usize) -> Vec<Vec<usize>> {
        let of = |kind| (0..sites).filter(|&site| Site::new(site).kind() == kind).collect();
        match self {
            Self::Model => vec![(0..sites).collect()],
            Self::Kind => vec![of(SubLayerKind::Attention), of(SubLayerKind::Mlp)],
            Self::Layer => (0..sites).map(|site| vec![site]).collect(),
        }
    }

    /// One threshold for each group, as a model takes them.
    pub fn thresholds(self, values: &[f64]) -> Thresholds {
        match (self, values) {
            (Self::Model, &[one]) => Thresholds::One(one),
            (Self::Kind, &[attention, mlp]) => Thresholds::PerKind { attention, mlp },
            _ => Thresholds::PerSite(values.to_vec()),
        }
    }
}

/// What happens to the gates of running tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipGate {
    /// The threshold is taken off, so that nothing jumps where a gate meets it.
    #[default]
    Continuous,
    /// Nothing.
    Hard,
}

impl SkipGate {
    /// The share of the threshold that is taken off.
    pub fn shrink(self) -> f64 {
        match self {
            Self::Continuous => 1.0,
            Self::Hard => 0.0,
        }
    }
}

fn hundredth() -> f64 {
    0.01
}

fn tenth() -> f64 {
    0.1
}

fn nine_tenths() -> f64 {
    0.9
}

fn hundred() -> u64 {
    100
}

/// Slow enough for long runs.
const ETA: f64 = 0.01;
/// In short runs, too, a threshold must be able to move: with an error of a quarter it changes by a factor of
/// `exp(25 / 4)` over the whole run.
const ETA_OF_RUN: f64 = 25.0;

impl SkipConfig {
    /// How fast thresholds follow in a run of this many steps.
    pub fn eta(&self, steps: u64) -> f64 {
        self.eta.unwrap_or_else(|| ETA.max(ETA_OF_RUN / steps.max(1) as f64))
    }

    pub(crate) fn check(&self, residual: &ResidualConfig) -> Result<(), RunConfigError> {
        let refuse = |field, value: String, reason: &str| {
            Err(RunConfigError::Field { field, value, reason: reason.into() })
        };
        for (field, value) in [("skip.rate", self.rate), ("skip.ema", self.ema)] {
            if !(0.0..1.0).contains(&value) {
                let reason = "it is a share from 0 to less than 1";
                return refuse(field, value.to_string(), reason);
            }
        }
        for (field, value) in
            [("skip.harden", self.harden), ("skip.ramp", self.ramp), ("skip.protect", self.protect)]
        {
            if !(0.0..=1.0).contains(&value) {
                let reason = "it is a share of the steps, from 0 to 1";
                return refuse(field, value.to_string(), reason);
            }
        }
        if let Some(eta) = self.eta
            && !(eta > 0.0 && eta.is_finite())
        {
            let reason = "it must be positive; leave it out for the default";
            return refuse("skip.eta", eta.to_string(), reason);
        }
        // Tokens that are made to run count, too, so a share above one half could never recover.
        if !(0.0..=0.5).contains(&self.guard_share) {
            let reason = "it is a share of tokens from 0, which turns the guard off, to 0.5";
            return refuse("skip.guard_share", self.guard_share.to_string(), reason);
        }
        if self.guard_steps == 0 {
            return refuse("skip.guard_steps", "0".into(), "it must be at least 1");
        }
        if residual.skipping().is_some() {
            let reason = "[skip] finds thresholds by itself; remove it, or the section [skip]";
            return refuse("residual.skip_threshold", "set".into(), reason);
        }
        if let Err(error) = residual.clone().set_skipping(Some(Skipping::below(0.0))) {
            return refuse("skip.rate", self.rate.to_string(), &error.to_string());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigLayers, RunConfig};

    fn with(residual: &str, settings: &[&str]) -> Result<RunConfig, RunConfigError> {
        let residual = residual.parse().unwrap();
        let layers = ConfigLayers::from_preset("nano")?.with_residual(&residual);
        settings.iter().fold(layers, |layers, setting| layers?.with_setting(setting))?.finish()
    }

    #[test]
    fn one_setting_is_enough_and_runs_without_it_have_no_section() {
        let config = with("nag", &["skip.rate=0.25"]).unwrap();
        let text = toml::to_string(&config).unwrap();
        assert_eq!(RunConfig::parse(&text, "test").unwrap(), config);
        let skip = config.skip.unwrap();
        assert_eq!((skip.per, skip.gate, skip.kv), Default::default());
        assert_eq!((skip.rate, skip.harden, skip.ramp, skip.protect), (0.25, 0.0, 0.1, 0.1));
        assert_eq!((skip.ema, skip.guard_share, skip.guard_steps), (0.9, 0.01, 100));
        let plain = toml::to_string(&with("nag", &[]).unwrap()).unwrap();
        assert!(!plain.contains("skip"), "{plain}");
    }

    #[test]
    fn short_runs_have_faster_thresholds_unless_told_otherwise() {
        let skip = with("mgr", &["skip.rate=0.25"]).unwrap().skip.unwrap();
        assert_eq!((skip.eta(100), skip.eta(1_000_000)), (0.25, 0.01));
        let skip = with("mgr", &["skip.rate=0.25", "skip.eta=0.5"]).unwrap().skip.unwrap();
        assert_eq!(skip.eta(100), 0.5);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let wrong = |residual: &str, settings: &[&str]| {
            let settings = [&["skip.rate=0.25"], settings].concat();
            with(residual, &settings).unwrap_err().to_string()
        };
        for (setting, words) in [
            ("skip.rate=1", "skip.rate is 1: it is a share from 0 to less than 1"),
            ("skip.rate=-0.1", "skip.rate is -0.1"),
            ("skip.rate=nan", "skip.rate is NaN"),
            ("skip.ema=1", "skip.ema is 1"),
            ("skip.harden=2", "skip.harden is 2"),
            ("skip.ramp=-1", "skip.ramp is -1"),
            ("skip.protect=1.5", "skip.protect is 1.5"),
            ("skip.eta=0", "skip.eta is 0"),
            ("skip.guard_share=0.6", "skip.guard_share is 0.6"),
            ("skip.guard_steps=0", "skip.guard_steps is 0"),
            ("skip.per=block", "unknown value `block`"),
            ("skip.gate=soft", "unknown value `soft`"),
            ("skip.kv=lose", "unknown value `lose`"),
            ("skip.rat=1", "unknown field `rat`"),
        ] {
            let said = wrong("nag", &[setting]);
            assert!(said.contains(words), "{setting}: {said}");
        }
        let said = wrong("prenorm", &[]);
        assert!(said.starts_with("skip.rate is 0.25: residual policy prenorm"), "{said}");
        assert!(said.contains("mgr and nag"), "{said}");
        let said = wrong("nag:skip_threshold=0.1", &[]);
        assert!(said.contains("residual.skip_threshold is set: [skip] finds"), "{said}");
        let said = with("nag", &["skip.per=kind"]).unwrap_err().to_string();
        assert!(said.contains("missing field `rate`"), "{said}");
    }
}
