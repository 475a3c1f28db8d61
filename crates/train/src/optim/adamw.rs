//! AdamW with decoupled decay and bias correction, as in PyTorch:
//! `w -= rate decay w`, then `w -= rate m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)`.
//! Loshchilov and Hutter, arXiv 1711.05101.

use super::Slot;
use hadal_cpu::update;
use serde::{Deserialize, Serialize};

/// Settings of AdamW.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamWConfig {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the two running means.
    pub betas: [f64; 2],
    /// Added to the root of the second mean.
    pub eps: f64,
    /// Decay of matrices; vectors never decay.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { lr: 3e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 }
    }
}

impl AdamWConfig {
    /// One step at learning rate `lr`; `step` counts from 0.
    pub(super) fn step(
        &self,
        values: &mut [f32],
        slot: &mut Slot,
        gradient: &[f32],
        step: u64,
        lr: f64,
        decay: f64,
    ) {
        let rule = self.rule(step, lr, decay);
        rule.step(values, &mut slot.first, &mut slot.second, gradient);
    }

    /// What does not depend on the element.
    pub(super) fn rule(&self, step: u64, lr: f64, decay: f64) -> update::AdamW {
        let [b1, b2] = self.betas;
        let t = (step + 1) as f64;
        let (correct1, correct2) = (1.0 - b1.powf(t), 1.0 - b2.powf(t));
        let (size, root) = ((lr / correct1) as f32, (1.0 / correct2).sqrt() as f32);
        update::AdamW {
            betas: [b1 as f32, b2 as f32],
            size,
            root,
            keep: (1.0 - lr * decay) as f32,
            eps: self.eps as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::Group;

    fn slot(len: usize) -> Slot {
        let zeros = vec![0.0; len];
        Slot {
            shape: vec![len],
            first: zeros.clone(),
            second: zeros,
            outer: Vec::new(),
            group: Group::Decayed,
        }
    }

    #[test]
    fn the_first_step_moves_by_the_rate_against_the_sign() {
        let config = AdamWConfig { lr: 0.1, ..AdamWConfig::default() };
        let mut values = [1.0, 1.0];
        config.step(&mut values, &mut slot(2), &[5.0, -1e-3], 0, config.lr, 0.0);
        assert!((values[0] - 0.9).abs() < 1e-6);
        assert!((values[1] - 1.1).abs() < 1e-5);
    }

    #[test]
    fn three_steps_agree_with_a_plain_computation_in_f64() {
        let config = AdamWConfig { lr: 0.01, weight_decay: 0.1, ..AdamWConfig::default() };
        let (mut values, mut slot) = ([0.5], slot(1));
        let (mut w, mut m, mut v) = (0.5f64, 0.0, 0.0);
        for (t, g) in [0.3f64, -0.2, 0.7].into_iter().enumerate() {
            let (lr, decay) = (config.lr, config.weight_decay);
            config.step(&mut values, &mut slot, &[g as f32], t as u64, lr, decay);
            w -= 0.01 * 0.1 * w;
            m = 0.9 * m + 0.1 * g;
            v = 0.95 * v + 0.05 * g * g;
            let (mh, vh) =
                (m / (1.0 - 0.9f64.powi(t as i32 + 1)), v / (1.0 - 0.95f64.powi(t as i32 + 1)));
            w -= 0.01 * mh / (vh.sqrt() + 1e-8);
        }
        assert!((f64::from(values[0]) - w).abs() < 1e-6);
    }

    #[test]
    fn decay_shrinks_even_without_a_gradient() {
        let config = AdamWConfig { lr: 0.1, ..AdamWConfig::default() };
        let mut values = [2.0];
        config.step(&mut values, &mut slot(1), &[0.0], 0, config.lr, 0.5);
        assert!((values[0] - 1.9).abs() < 1e-6);
    }
}
