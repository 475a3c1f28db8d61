//! Thresholds that follow a target: `ln tau += eta (target - measured)`, with a running mean of what is measured.

use serde::{Deserialize, Serialize};

/// What the controller remembers, for each threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Controller {
    /// Logarithms; minus infinity where no token can skip.
    #[serde(with = "bits")]
    log_thresholds: Vec<f64>,
    /// Running means of the measured rates.
    #[serde(with = "bits")]
    rates: Vec<f64>,
}

impl Controller {
    /// Begins at the smallest gates, so that skipping begins with the first step upwards.
    pub(super) fn start(smallest_gates: &[Option<f32>]) -> Self {
        // A gate of zero would leave a threshold at zero for good.
        let log = |gate: &Option<f32>| match gate {
            Some(gate) => f64::from(gate.abs().max(f32::MIN_POSITIVE)).ln(),
            None => f64::NEG_INFINITY,
        };
        let rates = vec![0.0; smallest_gates.len()];
        Self { log_thresholds: smallest_gates.iter().map(log).collect(), rates }
    }

    pub(super) fn thresholds(&self) -> Vec<f64> {
        self.log_thresholds.iter().map(|log| log.exp()).collect()
    }

    /// The mean of the thresholds that a token can be below.
    pub(super) fn mean_threshold(&self) -> f64 {
        let real = || self.log_thresholds.iter().filter(|log| log.is_finite());
        real().map(|log| log.exp()).sum::<f64>() / real().count().max(1) as f64
    }

    /// Moves a threshold; one for which nothing was measured stays.
    pub(super) fn follow(
        &mut self,
        scope: usize,
        target: f64,
        measured: Option<f64>,
        [eta, ema]: [f64; 2],
    ) {
        let Some(measured) = measured else { return };
        let rate = &mut self.rates[scope];
        *rate = ema * *rate + (1.0 - ema) * measured;
        self.log_thresholds[scope] += eta * (target - *rate);
    }
}

/// Numbers as their bits: a resumed run must continue from exactly these.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(|value| value.to_bits()))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<f64>, D::Error> {
        let bits = Vec::<u64>::deserialize(from)?;
        Ok(bits.into_iter().map(f64::from_bits).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gates between 0.1 and 1, evenly in the logarithm.
    fn skipped_below(threshold: f64) -> f64 {
        ((threshold.ln() - 0.1f64.ln()) / -0.1f64.ln()).clamp(0.0, 1.0)
    }

    #[test]
    fn the_target_is_reached_and_held() {
        let mut controller = Controller::start(&[Some(0.1)]);
        let mut late = Vec::new();
        for step in 0..400 {
            let target = 0.25 * (f64::from(step) / 40.0).min(1.0);
            let measured = skipped_below(controller.thresholds()[0]);
            controller.follow(0, target, Some(measured), [25.0 / 400.0, 0.9]);
            late.extend((step >= 200).then_some(measured));
        }
        assert!(late.iter().all(|rate| (rate - 0.25).abs() < 0.01), "{late:?}");
    }

    #[test]
    fn one_that_hears_nothing_stays_and_one_without_gates_is_zero() {
        let mut controller = Controller::start(&[Some(0.5), None]);
        let before = controller.clone();
        controller.follow(0, 0.3, None, [0.1, 0.9]);
        assert_eq!(controller, before);
        controller.follow(1, 0.3, Some(0.0), [0.1, 0.9]);
        assert_eq!(controller.thresholds()[1], 0.0);
        assert!((controller.mean_threshold() - 0.5).abs() < 1e-12);
        assert!(Controller::start(&[Some(0.0)]).thresholds()[0] > 0.0);
    }

    #[test]
    fn a_target_of_nothing_moves_nothing() {
        let mut controller = Controller::start(&[Some(0.3)]);
        let before = controller.clone();
        controller.follow(0, 0.0, Some(0.0), [0.1, 0.9]);
        assert_eq!(controller, before);
    }

    #[test]
    fn what_is_saved_comes_back_to_the_bit() {
        let mut controller = Controller::start(&[Some(0.3), None, Some(1e-30)]);
        for i in 0..50 {
            controller.follow(0, 0.3, Some(f64::from(i) / 77.0), [0.1, 0.9]);
        }
        let text = serde_json::to_string(&controller).unwrap();
        assert_eq!(serde_json::from_str::<Controller>(&text).unwrap(), controller);
    }
}
