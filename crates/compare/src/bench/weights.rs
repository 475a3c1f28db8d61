//! Weights to measure with.

use super::job::{Job, SkipRate};
use hadal_kernels::read_back;
use hadal_model::{ConfigError, Decoder, Device};
use hadal_residual::{Init, Weights};

/// Standard deviation of the weights of gates that should tell tokens apart.
const GATE_STD: f64 = 0.5;

/// A model with the initial values of seed 0. Unlike a model for training, it need not have a good start: MGR with many
/// streams and few blocks is worth timing, too.
pub(super) fn made_up(job: &Job, device: &Device) -> Result<Decoder, ConfigError> {
    let compared = job.skip != SkipRate::Unasked;
    // MGR's gates start alike for all tokens, and no threshold could separate them.
    let mut stored = |name: &str, shape: &[usize]| {
        let gate = compared && name.starts_with("residual.") && name.ends_with(".gate.weight");
        gate.then(|| normal(name, shape.iter().product()))
    };
    Decoder::stored(&job.model, &mut stored, device)
}

fn normal(name: &str, count: usize) -> Vec<f32> {
    let mut weights = Weights::fresh(0, &Device::flex());
    let values = weights.param(name, [count], Init::Normal { std: GATE_STD }).val();
    read_back(values).expect("what was just drawn on the host can be read")
}
