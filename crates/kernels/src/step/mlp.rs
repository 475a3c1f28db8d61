//! The network for a single token.

use super::{Room, lend_some};
use crate::bridge::lend;
use crate::mlp::{MlpBiases, MlpWeights};
use hadal_cpu::Rows;
use hadal_cpu::mlp::{Biases, Mlp, step};

/// [`crate::mlp()`] for a single token. The gated form with biases agrees with it only to rounding: its tensor form is
/// not fused.
#[derive(Debug)]
pub struct MlpStep {
    width: usize,
    hidden: usize,
    up: Rows,
    gate: Option<Rows>,
    down: Rows,
    biases: Option<SharedBiases>,
}

#[derive(Debug)]
struct SharedBiases {
    up: Rows,
    gate: Option<Rows>,
    down: Rows,
}

impl MlpStep {
    /// `None` if [`lend`] returns `None`.
    pub fn new(weights: MlpWeights) -> Option<Self> {
        let MlpWeights { up, gate, down, biases } = weights;
        let [hidden, width] = up.dims();
        let biases = match biases {
            None => None,
            Some(MlpBiases { up, gate, down }) => {
                Some(SharedBiases { up: lend(up)?, gate: lend_some(gate)?, down: lend(down)? })
            }
        };
        let (up, gate, down) = (lend(up)?, lend_some(gate)?, lend(down)?);
        Some(Self { width, hidden, up, gate, down, biases })
    }

    /// # Shapes
    /// - `x` and `y`: `[width]`
    pub fn run(&self, x: &[f32], room: &mut Room, y: &mut [f32]) {
        let mlp = Mlp {
            width: self.width,
            hidden: self.hidden,
            up: self.up.values(),
            gate: self.gate.as_ref().map(|gate| gate.values()),
            down: self.down.values(),
        };
        let biases = self.biases.as_ref().map(|biases| Biases {
            up: biases.up.values(),
            gate: biases.gate.as_ref().map(|gate| gate.values()),
            down: biases.down.values(),
        });
        step(x, &mlp, biases, &mut room.network, y);
    }
}
