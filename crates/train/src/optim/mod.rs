//! Muon for the hidden matrices, AdamW for everything else, as the papers train.
//!
//! Parameters live in the model and move where they are. What a rule remembers lives in plain vectors
//! beside it, by parameter name: it can be saved, compared and restored to the bit, and no update
//! depends on the order in which modules are visited.

mod adamw;
mod device;
mod groups;
mod muon;
mod schedule;

pub use adamw::AdamWConfig;
pub use device::{DeviceOptimizer, TensorGradients, accumulate_tensors};
pub use groups::{Group, group_of};
pub use muon::{Coefficients, MuonConfig, MuonScale, orthogonalise};
pub use schedule::{Schedule, ScheduleConfig};

use hadal_cpu::update::{scale, square_sum};
use hadal_model::Decoder;
use hadal_residual::{Declared, RowRule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which rule moves the hidden matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenRule {
    /// Muon, as in the MGR paper.
    #[default]
    Muon,
    /// AdamW, with the rate of all other parameters.
    Adamw,
}

/// Settings of the optimiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Which rule moves the hidden matrices.
    pub hidden: HiddenRule,
    /// For embeddings, norms, gates and queries.
    pub adamw: AdamWConfig,
    /// For the hidden matrices.
    pub muon: MuonConfig,
    /// Largest norm of the whole gradient; 0 never clips.
    pub clip: f64,
    /// How much slower gates move than the hidden matrices where they would collapse at full rate.
    #[serde(rename = "nag_gate_slowdown")]
    pub gate_slowdown: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            hidden: HiddenRule::default(),
            adamw: AdamWConfig::default(),
            muon: MuonConfig::default(),
            clip: 1.0,
            gate_slowdown: 12.0,
        }
    }
}

impl OptimizerConfig {
    fn hidden_rate(&self) -> f64 {
        match self.hidden {
            HiddenRule::Muon => self.muon.lr,
            HiddenRule::Adamw => self.adamw.lr,
        }
    }
}

/// What the rule of a parameter remembers.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// The parameter's shape.
    pub shape: Vec<usize>,
    /// Running mean of gradients.
    pub first: Vec<f32>,
    /// Running mean of squared gradients; empty under Muon.
    pub second: Vec<f32>,
    /// Momentum of outer steps, where ranks make steps by themselves; else empty.
    pub outer: Vec<f32>,
    group: Group,
}

impl Slot {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// How all parameters of a model move.
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    slots: BTreeMap<String, Slot>,
    /// Whether there are outer steps.
    outer: bool,
}

impl Optimizer {
    /// The optimiser for the parameters of a model.
    pub fn new(config: &OptimizerConfig, decoder: &Decoder) -> Self {
        let residual = &decoder.config().residual;
        let slots = decoder
            .declared()
            .iter()
            .map(|Declared { name, shape, .. }| {
                let group = group_of(name, shape, residual, config.hidden);
                let len = shape.iter().product();
                let second = if group == Group::Muon { 0 } else { len };
                let slot = Slot {
                    shape: shape.clone(),
                    first: vec![0.0; len],
                    second: vec![0.0; second],
                    outer: Vec::new(),
                    group,
                };
                (name.clone(), slot)
            })
            .collect();
        Self { config: config.clone(), slots, outer: false }
    }

    /// What is remembered of each parameter, by name.
    pub fn slots(&self) -> &BTreeMap<String, Slot> {
        &self.slots
    }

    /// What is remembered of each parameter, by name, to restore a saved state.
    pub fn slots_mut(&mut self) -> &mut BTreeMap<String, Slot> {
        &mut self.slots
    }

    /// Has momentum for outer steps.
    pub(crate) fn with_outer(mut self) -> Self {
        self.slots.values_mut().for_each(|slot| slot.outer = vec![0.0; slot.elements()]);
        self.outer = true;
        self
    }

    /// Forgets what others remember: means, and momentum of outer steps.
    pub(crate) fn keep(&mut self, means: impl Fn(&str) -> bool, outer: impl Fn(&str) -> bool) {
        for (name, slot) in &mut self.slots {
            if !means(name) {
                (slot.first, slot.second) = (Vec::new(), Vec::new());
            }
            if !outer(name) {
                slot.outer = Vec::new();
            }
        }
    }

    /// Makes room again for what was forgotten.
    pub(crate) fn complete(&mut self) {
        for slot in self.slots.values_mut() {
            let length = slot.elements();
            slot.first.resize(length, 0.0);
            slot.second.resize(if slot.group == Group::Muon { 0 } else { length }, 0.0);
            slot.outer.resize(if self.outer { length } else { 0 }, 0.0);
        }
    }

    /// Moves the parameters of a model one step. `step` counts from 0, `rate` is the schedule's factor
    /// on every learning rate.
    pub fn step(
        &mut self,
        decoder: &mut Decoder,
        gradients: &BTreeMap<String, Vec<f32>>,
        step: u64,
        rate: f64,
    ) {
        let gate_rate = self.config.hidden_rate() / self.config.gate_slowdown;
        let OptimizerConfig { adamw, muon, .. } = &self.config;
        decoder.change_parameters(|name, values| {
            let Some(gradient) = gradients.get(name) else { return };
            let Some(slot) = self.slots.get_mut(name) else { return };
            let (lr, decay) = match slot.group {
                Group::Muon => return muon.step(values, slot, gradient, rate),
                Group::Gate => (gate_rate, 0.0),
                Group::Decayed => (adamw.lr, adamw.weight_decay),
                Group::Plain => (adamw.lr, 0.0),
            };
            adamw.step(values, slot, gradient, step, rate * lr, decay);
        });
        project(decoder);
    }
}

/// Puts the rows of the embedding and the head back where the policy keeps them.
pub fn project(decoder: &mut Decoder) {
    let tables = decoder.config().residual.tables();
    if [tables.embed_rows, tables.head_rows] == [RowRule::Free; 2] {
        return;
    }
    let width = decoder.config().d_model;
    decoder.change_parameters(|name, values| {
        let rule = match name {
            "embed.weight" => tables.embed_rows,
            "head.weight" => tables.head_rows,
            _ => return,
        };
        values.chunks_exact_mut(width).for_each(|row| rule.apply(row));
    });
}

/// The norm of the whole gradient, summed in f64.
pub fn global_norm(gradients: &BTreeMap<String, Vec<f32>>) -> f64 {
    squares(gradients).into_values().sum::<f64>().sqrt()
}

/// The sum of squares of each gradient, in f64.
pub(crate) fn squares(gradients: &BTreeMap<String, Vec<f32>>) -> BTreeMap<String, f64> {
    gradients.iter().map(|(name, gradient)| (name.clone(), square_sum(gradient))).collect()
}

/// Scales the whole gradient down to a norm of at most `clip`.
pub fn clip_norm(gradients: &mut BTreeMap<String, Vec<f32>>, norm: f64, clip: f64) {
    if clip > 0.0 && norm > clip {
        let factor = (clip / norm) as f32;
        gradients.values_mut().for_each(|gradient| scale(gradient, factor));
    }
}
