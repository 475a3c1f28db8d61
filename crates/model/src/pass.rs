//! What goes through a model, and how.

use crate::cache::Cache;
use crate::recording::Recording;
use crate::tally::Tally;
use hadal_kernels::{Precision, ReadBackError};
use hadal_residual::{Memory, Probe, Site, StepMode};
pub use hadal_tokenizer::Tokens;
use std::sync::atomic::AtomicBool;

/// How to go through the model. The default is a plain forward pass.
#[derive(Default)]
pub struct Pass<'a> {
    /// Continue after what the cache has seen, and add to it.
    pub cache: Option<&'a mut Cache>,
    /// Sub-layers to leave out.
    pub absent: &'a [Site],
    /// What changes from step to step of training.
    pub mode: &'a StepMode,
    /// What the backward pass may compute again instead of keeping it.
    pub memory: Memory,
    /// What its matrix products round, forward and backward.
    pub precision: Precision,
    /// Watches the pass. The policy then runs step by step instead of fused.
    pub probe: Option<&'a mut dyn Probe>,
    /// Only the logits of each row's last position.
    pub only_last: bool,
    /// Counts what ran.
    pub tally: Option<&'a mut Tally>,
    /// Where to keep what sub-layers return, for passes that replay it.
    pub record: Option<&'a mut Recording>,
    /// Outputs that need not be computed again. It has no effect with a cache or with depth slots.
    pub replay: Option<&'a Recording>,
    /// No sub-layer runs once this is set; the pass then ends with [`PassError::Stopped`].
    pub stop: Option<&'a AtomicBool>,
}

/// What several passes through one model have in common, such as those of a session or of an evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant<'a> {
    /// Sub-layers to leave out.
    pub absent: &'a [Site],
    /// What changes from step to step of training.
    pub mode: &'a StepMode,
    /// Ends a pass between two sub-layers.
    pub stop: Option<&'a AtomicBool>,
    /// What matrix products round.
    pub precision: Precision,
}

impl<'a> Variant<'a> {
    /// The model in use without some of its sub-layers.
    pub fn without(absent: &'a [Site]) -> Self {
        Self { absent, ..Self::default() }
    }

    /// The whole model in a mode of training.
    pub fn in_mode(mode: &'a StepMode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// A plain forward pass.
    pub fn pass(self) -> Pass<'a> {
        let Self { absent, mode, precision, stop } = self;
        Pass { absent, mode, precision, stop, ..Pass::default() }
    }
}

/// Why a pass cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PassError {
    /// There is nothing to read.
    #[error("the input holds no tokens")]
    Empty,
    /// A token is not in the vocabulary.
    #[error("token {id} is not in the model's vocabulary of {vocab_size}")]
    UnknownToken { id: u32, vocab_size: usize },
    /// There is not one target for each input.
    #[error("{targets} targets cannot be compared with {inputs} inputs")]
    Targets { targets: usize, inputs: usize },
    /// The sequence does not fit.
    #[error("{length} tokens do not fit: max_seq_len is {max_seq_len}")]
    TooLong {
        /// Length of the sequence, with what the cache holds.
        length: usize,
        max_seq_len: usize,
    },
    /// The cache does not belong to the pass.
    #[error("the cache does not fit: {reason}; start with an empty one")]
    ForeignCache { reason: &'static str },
    /// A site is not in the model.
    #[error("the {site} is not in this model, whose blocks are 0 to {}", (sites / 2).saturating_sub(1))]
    UnknownSite { site: Site, sites: usize },
    /// A site cannot be left out.
    #[error("the {site} cannot be absent: {reason}")]
    NotAbsent { site: Site, reason: &'static str },
    /// Somebody asked to stop.
    #[error("stopped")]
    Stopped,
    /// What was computed cannot be read.
    #[error(transparent)]
    ReadBack(#[from] ReadBackError),
}
