//! What devices send each other in a step.

use serde::{Deserialize, Serialize};

/// How gradients travel. Sums are f32 in any case, and so are parameters, which must be the same everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// As they are.
    #[default]
    F32,
    /// Rounded: half the bytes.
    Bf16,
}

impl Wire {
    /// Bytes of a number.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Bytes that each device sends in a step; it receives as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Every gradient goes to its parameter's owner.
    pub gradients: u64,
    /// Every owner sends its parameters to all others.
    pub parameters: u64,
}

impl Traffic {
    /// Of a model with so many parameters: `(p - 1) / p` of them, there and back.
    pub fn of(parameters: u64, devices: u64, wire: Wire) -> Self {
        let others = |bytes: u64| {
            let all = u128::from(parameters) * u128::from(bytes);
            let own = all.div_ceil(u128::from(devices.max(1)));
            u64::try_from(all - own).unwrap_or(u64::MAX)
        };
        Self { gradients: others(wire.bytes()), parameters: others(Wire::F32.bytes()) }
    }

    /// Both.
    pub fn total(&self) -> u64 {
        self.gradients.saturating_add(self.parameters)
    }
}
