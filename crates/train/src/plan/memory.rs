//! What a device holds when it holds most.

use super::{Counted, Owners, Passes};
use crate::optim::Group;
use serde::Serialize;

const FLOAT: u64 = 4;
/// The program itself, its threads and what they work in, with a model of next to nothing: as measured on Linux
/// (records/plan).
pub const PROGRAM: u64 = 32_000_000;
/// What the allocator takes for a hundred bytes that are live: it keeps what was freed, and not all of that is where the next
/// buffer fits. As measured (records/plan).
const ALLOCATED: u64 = 120;
/// Rows of logits of an evaluation: as they come, and twice where their logarithms are taken.
const LOGITS: u64 = 3;

/// Bytes of a device at its fullest moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// All parameters.
    pub weights: u64,
    /// What the optimiser remembers of those that the device owns.
    pub optimiser: u64,
    /// Gradients: of all parameters as a pass makes them, and sums of several passes or devices.
    pub gradients: u64,
    /// What the way forward keeps for the way back.
    pub activations: u64,
    /// What operations hold while they run.
    pub working: u64,
    /// Pages that the allocator holds beyond what is live.
    pub allocator: u64,
    /// The program without a model.
    pub program: u64,
    /// When that is.
    pub fullest: Phase,
    /// All that the way forward keeps, at its end.
    pub kept: u64,
}

/// Parts of a step, and what comes between steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A pass forward and back.
    #[default]
    Pass,
    /// The optimiser moves parameters.
    Optimiser,
    /// Held-out loss is measured.
    Evaluation,
    /// The first of several devices has everything that is saved.
    Checkpoint,
}

impl DeviceMemory {
    /// What is live: all but the program and the allocator.
    pub fn live(&self) -> u64 {
        [self.weights, self.optimiser, self.gradients, self.activations, self.working]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.live().saturating_add(self.allocator).saturating_add(self.program)
    }

    fn with_allocator(self) -> Self {
        let allocator = (u128::from(self.live()) * u128::from(ALLOCATED - 100) / 100) as u64;
        Self { allocator, ..self }
    }
}

impl Counted {
    /// In a pass, and at the fullest moment of all, of a device whose passes have so many sequences.
    pub(super) fn memory(
        &self,
        owners: &Owners,
        passes: Passes,
        devices: u64,
    ) -> [DeviceMemory; 2] {
        let bytes = |floats: u64| floats.saturating_mul(FLOAT);
        let all = self.parameters.iter().fold(0u64, |sum, p| sum.saturating_add(p.elements()));
        let sequences = usize::try_from(passes.batch).unwrap_or(usize::MAX);
        let pass = self.unmade.pass_memory(self.job.memory, sequences, self.job.seq_len);
        // Sums of the subtrees that are known while the last pass goes on, and those of what the device owns.
        let levels = u64::from(passes.count.max(1).ilog2());
        let own = if devices > 1 { bytes(owners.elements) } else { 0 };
        let sums = bytes(all).saturating_mul(levels).saturating_add(own);
        let always = DeviceMemory {
            weights: bytes(all),
            optimiser: bytes(owners.slots),
            program: PROGRAM,
            kept: pass.kept,
            ..DeviceMemory::default()
        };
        let in_pass = DeviceMemory {
            gradients: pass.gradients.saturating_add(sums),
            activations: pass.activations,
            working: pass.working,
            fullest: Phase::Pass,
            ..always
        };
        // Several devices have gradients of what they own, and all parameters on their way.
        let moved = if devices > 1 { all } else { 0 };
        let in_optimiser = DeviceMemory {
            gradients: bytes(owners.elements),
            working: bytes(self.muon_room().max(moved)),
            fullest: Phase::Optimiser,
            ..always
        };
        let tokens = passes.batch.saturating_mul(self.job.seq_len as u64);
        let rows = tokens.saturating_mul(LOGITS * self.job.model.vocab_size as u64);
        let table = (self.job.model.vocab_size * self.job.model.d_model) as u64;
        let in_evaluation = DeviceMemory {
            working: bytes(rows.saturating_add(table)),
            fullest: Phase::Evaluation,
            ..always
        };
        // The first device saves what all of them remember.
        let remembered = self.owners(1).slots;
        let in_checkpoint =
            DeviceMemory { optimiser: bytes(remembered), fullest: Phase::Checkpoint, ..always };
        let saving = (devices > 1).then_some(in_checkpoint);
        let others = [in_evaluation, in_optimiser].into_iter().chain(saving);
        let fullest = others.chain([in_pass]).max_by_key(DeviceMemory::live).unwrap_or(in_pass);
        [in_pass, fullest].map(DeviceMemory::with_allocator)
    }

    /// Floats that Muon holds while it moves its largest matrix: the direction, four forms of it, three squares.
    fn muon_room(&self) -> u64 {
        let muon = self.parameters.iter().filter(|parameter| parameter.group == Group::Muon);
        let room = |shape: &[usize]| {
            let [rows, columns] = [shape[0] as u64, shape[1] as u64];
            let least = rows.min(columns);
            let square = least.saturating_mul(least);
            rows.saturating_mul(columns).saturating_mul(5).saturating_add(square.saturating_mul(3))
        };
        muon.map(|parameter| room(&parameter.shape)).max().unwrap_or_default()
    }
}
