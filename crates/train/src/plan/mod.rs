//! What a step of training takes on a number of devices: memory of each, traffic between them, time. All of it is counted
//! from settings; docs/plan.md has the sums in words.
//!
//! Every device holds all parameters, goes through its share of the batch and has gradients of all parameters. What the
//! optimiser remembers is divided: a parameter has one owner, which adds up its gradient, moves it and sends it to the
//! others (ZeRO-1).

mod figures;
mod memory;
mod owners;
mod time;
mod traffic;

pub use figures::{PolicyPlan, figures};
pub use memory::{DeviceMemory, PROGRAM, Phase};
pub use owners::Owners;
pub use time::StepTime;
pub use traffic::{Traffic, Wire};

use crate::config::RunConfig;
use crate::optim::{Group, HiddenRule, group_of};
use hadal_model::{ConfigError, ModelConfig, ModelCost, UnmadeModel};
use hadal_residual::Memory;
use serde::Serialize;

/// The part of a run that decides what a step takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The model.
    pub model: ModelConfig,
    /// Which rule moves the hidden matrices.
    pub hidden: HiddenRule,
    /// Steps of Muon's polynomials.
    pub muon_steps: usize,
    /// What the backward pass keeps.
    pub memory: Memory,
    /// Sequences of a pass, at most.
    pub batch: usize,
    /// Sequences of a step, on all devices together.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub seq_len: usize,
}

impl Job {
    /// Of a run whose model and length are known.
    pub fn of(config: &RunConfig, model: ModelConfig, seq_len: usize) -> Self {
        let train = &config.train;
        Self {
            model,
            hidden: config.optimizer.hidden,
            muon_steps: config.optimizer.muon.steps,
            memory: config.memory.memory(),
            batch: train.batch,
            sequences: train.batch.saturating_mul(train.accumulate),
            seq_len,
        }
    }

    /// The passes of a device, and how many sequences each has at most.
    pub fn passes(&self, devices: u64) -> Passes {
        let share = (self.sequences as u64).div_ceil(devices.max(1)).max(1);
        let batch = share.min(self.batch.max(1) as u64);
        Passes { count: share.div_ceil(batch), batch }
    }
}

/// The passes of a device in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Passes {
    /// How many.
    pub count: u64,
    /// Sequences of each, at most.
    pub batch: u64,
}

/// Devices that are all alike, and what connects them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// How many.
    pub devices: u64,
    /// Bytes that each has; `None` if that is not asked.
    pub memory: Option<u64>,
    /// Bytes that each can send in a second.
    pub bandwidth: f64,
    /// Floating-point operations that each does in a second of training.
    pub flops: f64,
    /// How gradients travel.
    pub wire: Wire,
}

/// What a step takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepPlan {
    /// Of the model.
    pub parameters: u64,
    /// How the batch is divided.
    pub passes: Passes,
    /// Bytes of the fullest device in a pass.
    pub pass: DeviceMemory,
    /// Bytes of it at the fullest moment of all, evaluations included.
    pub memory: DeviceMemory,
    /// The largest number of sequences in a pass that fits; `None` if not even one does, or no size was named.
    pub largest_batch: Option<u64>,
    /// The memory that a pass over one sequence takes: the least.
    pub least: u64,
    /// Bytes that each device sends.
    pub traffic: Traffic,
    /// Seconds.
    pub time: StepTime,
}

/// A job whose model was declared, to be asked about several machines and batches.
pub struct Counted {
    job: Job,
    unmade: UnmadeModel,
    cost: ModelCost,
    parameters: Vec<Parameter>,
}

/// A parameter and what its rule remembers.
#[derive(Clone, Debug, PartialEq)]
struct Parameter {
    shape: Vec<usize>,
    group: Group,
}

impl Parameter {
    fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, &length| product.saturating_mul(length as u64))
    }
}

impl Counted {
    /// Declares the model. Nothing of it is made.
    pub fn new(job: Job) -> Result<Self, ConfigError> {
        let length = ModelConfig { max_seq_len: job.seq_len.max(1), ..job.model.clone() };
        let cost = ModelCost::of(&length)?;
        let unmade = UnmadeModel::of(&job.model)?;
        let parameters = unmade
            .declared()
            .iter()
            .map(|declared| Parameter {
                shape: declared.shape.clone(),
                group: group_of(&declared.name, &declared.shape, &job.model.residual, job.hidden),
            })
            .collect();
        Ok(Self { job, unmade, cost, parameters })
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Bytes that the way forward keeps of each token.
    pub fn kept_per_token(&self, memory: Memory) -> f64 {
        self.unmade.kept_per_token(memory, self.job.seq_len)
    }

    /// Bytes at the fullest moment of a run on one device.
    pub fn memory_alone(&self) -> u64 {
        let [_, fullest] = self.memory(&self.owners(1), self.job.passes(1), 1);
        fullest.total()
    }

    /// What a step takes on these devices.
    pub fn plan(&self, machine: &Machine) -> StepPlan {
        let passes = self.job.passes(machine.devices);
        let owners = self.owners(machine.devices);
        let memory = |batch| self.memory(&owners, Passes { batch, ..passes }, machine.devices);
        let most = |batch| memory(batch)[1].total();
        let fits = |batch| machine.memory.is_some_and(|all| most(batch) <= all);
        let [pass, fullest] = memory(passes.batch);
        let parameters = self.cost.parameters.total();
        StepPlan {
            parameters,
            passes,
            pass,
            memory: fullest,
            largest_batch: largest(fits),
            least: most(1),
            traffic: Traffic::of(parameters, machine.devices, machine.wire),
            time: StepTime::of(self, &owners, machine),
        }
    }
}

/// The largest number for which `fits` holds, where it holds for all smaller ones.
fn largest(fits: impl Fn(u64) -> bool) -> Option<u64> {
    const MOST: u64 = 1 << 40;
    if !fits(1) {
        return None;
    }
    let (mut below, mut above) = (1, 2);
    while above <= MOST && fits(above) {
        (below, above) = (above, 2 * above);
    }
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if fits(middle) { below = middle } else { above = middle }
    }
    Some(below)
}

#[cfg(test)]
mod tests;
