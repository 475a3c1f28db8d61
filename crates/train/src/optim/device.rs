//! The same rules in tensor operations, for models on other devices: gradients and what is remembered stay there.
//!
//! A law holds the updates to those of the vectors (`tests` below). Sums are of one dimension after another: a device
//! adds a whole tensor in any order.

mod muon;
#[cfg(test)]
mod tests;

use super::{AdamWConfig, Group, Optimizer, OptimizerConfig};
use burn::tensor::{Device, Tensor, TensorData};
use hadal_kernels::{ReadBackError, read_back};
use hadal_model::Decoder;
use hadal_residual::{RowRule, Tables};
use std::collections::BTreeMap;

/// Gradients by parameter name, flat.
pub type TensorGradients = BTreeMap<String, Tensor<1>>;

/// What the rule of a parameter remembers, flat.
#[derive(Clone, Debug)]
struct Slot {
    shape: Vec<usize>,
    first: Tensor<1>,
    /// `None` under Muon.
    second: Option<Tensor<1>>,
    group: Group,
}

/// How all parameters of a model on a device move.
#[derive(Clone, Debug)]
pub struct DeviceOptimizer {
    config: OptimizerConfig,
    slots: BTreeMap<String, Slot>,
}

impl DeviceOptimizer {
    /// Goes on from what an optimiser remembers.
    pub fn of(optimizer: &Optimizer, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let tensor = |values: &[f32]| {
            Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &device)
        };
        let slots = optimizer.slots().iter().map(|(name, slot)| {
            let second = (!slot.second.is_empty()).then(|| tensor(&slot.second));
            let (shape, group) = (slot.shape.clone(), slot.group);
            (name.clone(), Slot { shape, first: tensor(&slot.first), second, group })
        });
        Self { config: optimizer.config.clone(), slots: slots.collect() }
    }

    /// Brings what is remembered to the host, into the optimiser that this one was made of.
    pub fn store(&self, optimizer: &mut Optimizer) -> Result<(), ReadBackError> {
        for (name, slot) in optimizer.slots_mut() {
            let Some(own) = self.slots.get(name) else { continue };
            slot.first = read_back(own.first.clone())?;
            slot.second = own.second.clone().map_or(Ok(Vec::new()), read_back)?;
        }
        Ok(())
    }

    /// Moves the parameters of a model one step against `gradients` times `scale`. `step` counts from 0, `rate` is the
    /// schedule's factor on every learning rate.
    pub fn step(
        &mut self,
        decoder: &mut Decoder,
        gradients: &mut TensorGradients,
        scale: Option<f32>,
        step: u64,
        rate: f64,
    ) {
        let gate_rate = self.config.hidden_rate() / self.config.gate_slowdown;
        let (tables, width) = (decoder.config().residual.tables(), decoder.config().d_model);
        let OptimizerConfig { adamw, muon, .. } = &self.config;
        let slots = &mut self.slots;
        decoder.change_tensors(|name, values| {
            let gradient = gradients.remove(name);
            let Some((gradient, slot)) = gradient.zip(slots.get_mut(name)) else { return values };
            let gradient = match scale {
                Some(scale) => gradient * scale,
                None => gradient,
            };
            let (lr, decay) = match slot.group {
                Group::Muon => return muon.step_tensor(values, slot, gradient, rate),
                Group::Gate => (gate_rate, 0.0),
                Group::Decayed => (adamw.lr, adamw.weight_decay),
                Group::Plain => (adamw.lr, 0.0),
            };
            let values = adamw.step_tensor(values, slot, gradient, step, rate * lr, decay);
            projected(name, values, &tables, width)
        });
    }

    /// The norm of the whole gradient, and `more` numbers, read from the device together.
    pub fn norm(
        &self,
        gradients: &TensorGradients,
        more: Vec<Tensor<1>>,
    ) -> Result<(f64, Vec<f64>), ReadBackError> {
        let count = more.len();
        let squares = gradients.iter().map(|(name, gradient)| {
            let last = self.slots.get(name).and_then(|slot| slot.shape.last());
            square_sum(gradient.clone(), last.copied().unwrap_or(1).max(1))
        });
        let all: Vec<Tensor<1>> = more.into_iter().chain(squares).collect();
        let all: Vec<f64> = read_back(Tensor::cat(all, 0))?.into_iter().map(f64::from).collect();
        let (more, squares) = all.split_at(count);
        Ok((squares.iter().sum::<f64>().sqrt(), more.to_vec()))
    }
}

impl AdamWConfig {
    /// The rule of [`AdamWConfig::step`].
    fn step_tensor(
        &self,
        values: Tensor<1>,
        slot: &mut Slot,
        gradient: Tensor<1>,
        step: u64,
        lr: f64,
        decay: f64,
    ) -> Tensor<1> {
        let rule = self.rule(step, lr, decay);
        let [b1, b2] = rule.betas;
        let first = slot.first.clone() * b1 + gradient.clone() * (1.0 - b1);
        let square = gradient.clone() * gradient * (1.0 - b2);
        let second = match slot.second.take() {
            Some(second) => second * b2 + square,
            None => square,
        };
        let root = second.clone().sqrt() * rule.root + rule.eps;
        slot.first = first.clone();
        slot.second = Some(second);
        values * rule.keep - first / root * rule.size
    }
}

/// `sum + more / parts` for each gradient, where `sum` may still be empty.
pub fn accumulate_tensors(sum: &mut TensorGradients, more: TensorGradients, parts: usize) {
    if parts == 1 {
        *sum = more;
        return;
    }
    let share = 1.0 / parts as f32;
    for (name, gradient) in more {
        let part = gradient * share;
        let total = match sum.remove(&name) {
            Some(total) => total + part,
            None => part,
        };
        sum.insert(name, total);
    }
}

/// The sum of squares of rows of `width`, `[1]`.
fn square_sum(values: Tensor<1>, width: usize) -> Tensor<1> {
    let rows = values.dims()[0] / width;
    values.square().reshape([rows, width]).sum_dim(1).sum_dim(0).reshape([1])
}

/// The rows of a table where the policy keeps them, as [`super::project`] does on the host.
fn projected(name: &str, values: Tensor<1>, tables: &Tables, width: usize) -> Tensor<1> {
    let rule = match name {
        "embed.weight" => tables.embed_rows,
        "head.weight" => tables.head_rows,
        _ => RowRule::Free,
    };
    if rule == RowRule::Free {
        return values;
    }
    let count = values.dims()[0];
    let rows = values.reshape([count / width, width]);
    let mean = rows.clone().mean_dim(1);
    let rows = rows - mean;
    let rows = match rule {
        RowRule::Unit => {
            let mean_square = rows.clone().square().mean_dim(1);
            rows / mean_square.clamp_min(f32::MIN_POSITIVE).sqrt()
        }
        RowRule::Free | RowRule::Centred => rows,
    };
    rows.reshape([count])
}
