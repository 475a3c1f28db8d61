//! Cross-entropy together with the head, so that logits need not exist all at once.

use crate::bridge::{Operation, Output, run};
use crate::linear::linear;
use crate::path::{fuses, precision};
use crate::total::total;
use burn::tensor::{Int, Tensor, TensorData, activation::log_softmax};
use hadal_cpu::loss::cross_entropy;
use hadal_cpu::{Precision, Rows};
use std::sync::Arc;

/// What each token should be followed by, and how much it counts.
#[derive(Clone, Debug)]
pub struct Targets {
    /// One for each token, row by row.
    pub ids: Arc<[u32]>,
    /// One for each token; a mean has `1 / tokens` everywhere.
    pub shares: Arc<[f32]>,
}

/// `sum_t share_t (ln sum_v exp(h_t . e_v) - h_t . e_target)`.
///
/// # Shapes
/// - `hidden`: `[B, T, width]`
/// - `head`: `[vocabulary, width]`
/// - output: `[1]`
pub fn head_loss(hidden: Tensor<3>, head: Tensor<2>, targets: &Targets) -> Tensor<1> {
    let device = hidden.device();
    if fuses(&device) {
        let (width, targets) = (hidden.dims()[2], targets.clone());
        let operation = HeadLoss { width, targets, precision: precision() };
        return run(operation, vec![hidden.into(), head.into()]);
    }
    let [batch, time, _] = hidden.dims();
    let ids: Vec<i64> = targets.ids.iter().map(|&id| i64::from(id)).collect();
    let ids = Tensor::<3, Int>::from_data(TensorData::new(ids, [batch, time, 1]), &device);
    let losses = log_softmax(linear(hidden, head), 2).gather(2, ids).neg();
    let shares = TensorData::new(targets.shares.to_vec(), [batch, time, 1]);
    total(losses * Tensor::<3>::from_data(shares, &device))
}

#[derive(Debug)]
struct HeadLoss {
    width: usize,
    targets: Targets,
    precision: Precision,
}

impl Operation for HeadLoss {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let [hidden, head] = [0, 1].map(|i| inputs[i].values());
        let Targets { ids, shares } = &self.targets;
        let loss = cross_entropy(hidden, head, self.width, ids, shares, keep, self.precision);
        Output { values: vec![loss.value], shape: vec![1], saved: vec![loss.hidden, loss.head] }
    }

    fn backward(&self, d: Rows, _: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let scale = d.values()[0];
        let mut gradients = saved;
        if scale != 1.0 {
            gradients.iter_mut().flatten().for_each(|value| *value *= scale);
        }
        gradients
    }

    fn keeps(&self, _: usize) -> bool {
        false
    }
}
