//! Skipping after training: thresholds for a share of FLOPs, and what a share costs and saves.
//!
//! [`calibrate()`] finds the gates below which tokens skip, so that a given share of the skippable FLOPs is saved;
//! [`sweep()`] does this for several shares and measures each on other data. See `docs/skipping.md`.

mod answer;
mod calibrate;
mod data;
mod error;
mod estimate;
mod figures;
mod gates;
mod measure;
mod promise;
mod quantile;
mod report;
mod speed;
mod sweep;
#[cfg(test)]
mod tests;

pub use answer::answer;
pub use calibrate::{Aim, Calibrated, calibrate, calibrated, check_changeable, check_free};
pub use error::SkipError;
pub use estimate::estimate;
pub use figures::{figures, write};
pub use hadal_train::quality::Quality;
pub use promise::Promise;
pub use report::{CalibrationReport, Shares, SiteReport};
pub use sweep::{Keep, Point, Sweep, sweep};

use hadal_residual::SkippedKeys;
use hadal_train::SkipPer;

/// What to aim at; options that are not given stay as the model has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Which sub-layers have a threshold in common.
    pub scope: SkipPer,
    /// The share of the threshold that is taken off the gates of running tokens.
    pub shrink: Option<f64>,
    /// What becomes of the keys of tokens that skip.
    pub keys: Option<SkippedKeys>,
    /// Batches of about 2048 tokens; by default enough for 512 sequences or 65,536 tokens.
    pub batches: Option<usize>,
}

/// Receives progress: passes done, passes at most, and what is going on.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize, &str);

/// A rate that makes sense.
fn checked(rate: f64) -> Result<f64, SkipError> {
    if (0.0..1.0).contains(&rate) { Ok(rate) } else { Err(SkipError::Rate { rate }) }
}
