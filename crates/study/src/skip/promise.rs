//! How much of the saving that a formula promises shows on the clock.

use serde::{Deserialize, Serialize};

/// FLOPs and time of a model that skips, relative to the same model when no token skips.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// FLOPs by the formula.
    pub flop_ratio: f64,
    /// Time by the clock.
    pub time_ratio: f64,
    /// Share of the saved FLOPs that is saved time; none where hardly any are saved.
    pub kept: Option<f64>,
}

/// Saved FLOPs below this share are not worth a ratio: noise of the clock is larger.
const LEAST: f64 = 1e-3;

impl Promise {
    /// `kept = (1 - time) / (1 - FLOPs)`.
    pub fn new(flop_ratio: f64, time_ratio: f64) -> Self {
        let saved = 1.0 - flop_ratio;
        let kept = (saved >= LEAST).then(|| (1.0 - time_ratio) / saved);
        Self { flop_ratio, time_ratio, kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_kept_as_far_as_time_follows_work() {
        assert_eq!(Promise::new(0.5, 0.5).kept, Some(1.0));
        assert_eq!(Promise::new(0.5, 0.75).kept, Some(0.5));
        assert_eq!(Promise::new(0.5, 1.25).kept, Some(-0.5));
        assert_eq!(Promise::new(1.0, 0.9).kept, None);
    }
}
