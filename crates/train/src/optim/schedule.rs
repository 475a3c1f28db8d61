//! Linear warm-up, then a cosine down to a share of the full rate.

use serde::{Deserialize, Serialize};

/// Settings of the schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Steps from nothing to the full rate.
    pub warmup_steps: u64,
    /// Share of the full rate at the end.
    pub final_share: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { warmup_steps: 20, final_share: 0.1 }
    }
}

/// A factor on every learning rate, by step.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    config: ScheduleConfig,
    steps: u64,
}

impl Schedule {
    /// Over `steps` steps.
    pub fn new(config: &ScheduleConfig, steps: u64) -> Self {
        Self { config: config.clone(), steps }
    }

    /// The factor at a step, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        let warmup = self.config.warmup_steps;
        if step < warmup {
            return (step + 1) as f64 / warmup as f64;
        }
        let length = self.steps.saturating_sub(warmup).max(1) as f64;
        let done = ((step - warmup) as f64 / length).min(1.0);
        let last = self.config.final_share;
        last + (1.0 - last) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_linearly_and_falls_to_its_final_share() {
        let config = ScheduleConfig { warmup_steps: 10, final_share: 0.1 };
        let schedule = Schedule::new(&config, 110);
        assert_eq!(schedule.rate(0), 0.1);
        assert_eq!(schedule.rate(9), 1.0);
        assert_eq!(schedule.rate(10), 1.0);
        assert!((schedule.rate(60) - 0.55).abs() < 1e-12);
        assert!((schedule.rate(110) - 0.1).abs() < 1e-12);
        assert!((schedule.rate(5000) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn no_warm_up_starts_at_the_full_rate() {
        let config = ScheduleConfig { warmup_steps: 0, final_share: 0.0 };
        assert_eq!(Schedule::new(&config, 10).rate(0), 1.0);
    }
}
