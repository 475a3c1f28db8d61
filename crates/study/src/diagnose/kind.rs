//! The names of the diagnostics.

use super::error::DiagnoseError;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A side to look at a model from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Size of the stream after each block, and its growth.
    Output,
    /// Gradients by block.
    Gradients,
    /// Relative size and angle of each write.
    Writes,
    /// Angular distance between block inputs.
    Distance,
    /// Loss without each block and sub-layer.
    Removal,
    /// Massive activations.
    Activations,
    /// Distributions of gates.
    Gates,
    /// Distributions of pool weights.
    Pools,
    /// NAG's lanes.
    Lanes,
    /// Attention on the first token.
    Sink,
    /// Which tokens skip what.
    Skips,
    /// How many streams count, how alike they are, and what their mixers do.
    Streams,
    /// How much of each earlier output is in what each sub-layer reads.
    Connectivity,
    /// How many directions the tokens of a sequence span.
    Collapse,
    /// What fixed mixers and fewer weights cost.
    Surgery,
    /// Predictions without a stream, and with another one put back.
    Rescue,
}

impl Kind {
    /// Every diagnostic, in the order of the report.
    pub const ALL: [Self; 16] = [
        Self::Output,
        Self::Gradients,
        Self::Writes,
        Self::Distance,
        Self::Removal,
        Self::Activations,
        Self::Gates,
        Self::Pools,
        Self::Lanes,
        Self::Sink,
        Self::Skips,
        Self::Streams,
        Self::Connectivity,
        Self::Collapse,
        Self::Surgery,
        Self::Rescue,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Gradients => "gradients",
            Self::Writes => "writes",
            Self::Distance => "distance",
            Self::Removal => "removal",
            Self::Activations => "activations",
            Self::Gates => "gates",
            Self::Pools => "pools",
            Self::Lanes => "lanes",
            Self::Sink => "sink",
            Self::Skips => "skips",
            Self::Streams => "streams",
            Self::Connectivity => "connectivity",
            Self::Collapse => "collapse",
            Self::Surgery => "surgery",
            Self::Rescue => "rescue",
        }
    }
}

impl FromStr for Kind {
    type Err = DiagnoseError;

    fn from_str(name: &str) -> Result<Self, DiagnoseError> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name.trim());
        known.ok_or_else(|| DiagnoseError::Unknown { name: name.into() })
    }
}
