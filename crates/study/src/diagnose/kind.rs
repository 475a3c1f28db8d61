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
    /// How much of what a block does hangs on an earlier one.
    Causal,
    /// What it costs if two blocks change places.
    Permutation,
    /// What it costs to put an affine map in the place of a block.
    Usefulness,
    /// Sudden rises of the loss in training.
    Spikes,
}

impl Kind {
    /// Every diagnostic, in the order of the report.
    pub const ALL: [Self; 20] = [
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
        Self::Causal,
        Self::Permutation,
        Self::Usefulness,
        Self::Spikes,
    ];

    /// Whether it is left out unless it is asked for by name: its work grows with the square of the blocks or the cube of
    /// the width.
    pub fn is_dear(self) -> bool {
        matches!(self, Self::Permutation | Self::Usefulness)
    }

    /// Why a model has nothing to show.
    pub(crate) fn nothing(self) -> &'static str {
        match self {
            Self::Gates => "its policy has no gates",
            Self::Pools => "its policy reads no weighted sources",
            Self::Lanes => "its policy has no lanes of direction and norm",
            Self::Skips => "its tokens skip nothing",
            Self::Streams => "its depth state is a single stream",
            Self::Surgery | Self::Rescue => {
                "its policy has no streams whose weights a probe can change"
            }
            Self::Permutation => "no two of its blocks can change places",
            Self::Causal => "no block with another one behind it can be left out",
            Self::Spikes => "it has no record of its training; name the folder of a run",
            _ => "nothing could be measured on this data",
        }
    }

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
            Self::Causal => "causal",
            Self::Permutation => "permutation",
            Self::Usefulness => "usefulness",
            Self::Spikes => "spikes",
        }
    }
}

impl Kind {
    /// Those with these names; `all` are all of them.
    pub fn named(names: &[String]) -> Result<Vec<Self>, DiagnoseError> {
        match names.iter().any(|name| name.trim() == "all") {
            true => Ok(Self::ALL.to_vec()),
            false => names.iter().map(|name| name.parse()).collect(),
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
