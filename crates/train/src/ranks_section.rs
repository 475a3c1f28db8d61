//! The section `[ranks]`: docs/ranks.md.

use super::config::{OnFailure, RunConfig, RunConfigError};
use crate::plan::Wire;
use hadal_model::CPU;
use serde::{Deserialize, Serialize};

/// How several ranks work together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RanksConfig {
    /// How gradients travel. What is rounded is the same on any number of ranks, also on one.
    pub wire: Wire,
    /// Steps that every rank makes by itself before all meet; 0 for none, so that every step is one of all ranks.
    pub local_steps: u64,
    /// Rate of the outer steps that end rounds of such steps.
    pub outer_rate: f64,
    /// Decay of their momentum.
    pub outer_momentum: f64,
}

impl Default for RanksConfig {
    fn default() -> Self {
        Self { wire: Wire::F32, local_steps: 0, outer_rate: 0.7, outer_momentum: 0.9 }
    }
}

impl RanksConfig {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether ranks can make steps by themselves: what is decided by all of them can only be decided where they meet.
    pub(super) fn check(&self, run: &RunConfig) -> Result<(), RunConfigError> {
        let refuse = |field, value: String, reason: String| {
            Err(RunConfigError::Field { field, value, reason })
        };
        let RanksConfig { local_steps, outer_rate, outer_momentum, .. } = *self;
        if !(outer_rate > 0.0 && outer_rate.is_finite()) {
            return refuse(
                "ranks.outer_rate",
                outer_rate.to_string(),
                "it must be positive".into(),
            );
        }
        if !(0.0..1.0).contains(&outer_momentum) {
            let reason = "it must lie in [0, 1)".into();
            return refuse("ranks.outer_momentum", outer_momentum.to_string(), reason);
        }
        if run.train.device != CPU && !self.is_default() {
            let reason =
                "ranks add gradients on the CPU; leave it or the section [ranks] out".into();
            return refuse("train.device", run.train.device.clone(), reason);
        }
        if local_steps == 0 {
            return Ok(());
        }
        for (field, every) in [
            ("eval.every_steps", run.eval.every_steps),
            ("diagnose.every_steps", run.diagnose.every_steps),
            ("sample.every_steps", run.sample.every_steps),
            ("checkpoint.every_steps", run.checkpoint.every_steps),
        ] {
            if !every.is_multiple_of(local_steps) {
                let reason = format!(
                    "ranks meet every {local_steps} steps (ranks.local_steps); set a multiple of that"
                );
                return refuse(field, every.to_string(), reason);
            }
        }
        if run.skip.is_some() {
            let reason = "thresholds follow all ranks; leave [skip] or ranks.local_steps out";
            return refuse("skip", "set".into(), reason.into());
        }
        if run.failure.on_failure != OnFailure::Stop {
            let reason = "ranks that make steps by themselves can only stop; leave it or ranks.local_steps out";
            return refuse("failure.on_failure", "set".into(), reason.into());
        }
        Ok(())
    }
}
