//! Why nothing was measured or cut.

use crate::diagnose::DiagnoseError;
use hadal_files::FileError;
use hadal_gguf::{GgufError, WriteError};
use hadal_model::{
    CheckpointError, ConfigError, GenerateError, Part, PassError, SamplingError, TokenizerError,
};
use safetensors::SafeTensorError;
use std::path::{Path, PathBuf};

/// Why nothing was measured or cut.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// No limit was given.
    #[error(
        "nothing says how much to cut; give a number of blocks, a percentage, or a largest rise of perplexity or KL"
    )]
    NoBudget,
    /// A limit makes no sense.
    #[error("{name} is {value}: {reason}")]
    Limit {
        /// Which.
        name: &'static str,
        /// What it is.
        value: f64,
        /// What would do.
        reason: &'static str,
    },
    /// The score cannot be used like this.
    #[error("{0}")]
    Method(&'static str),
    /// There are not so many.
    #[error(
        "{wanted} parts should go, but only {candidates} may: {protected} of {blocks} blocks are protected, and {refused} parts cannot be left out; protect fewer with --protect, or cut less"
    )]
    TooMany {
        /// How many should go.
        wanted: usize,
        /// How many may.
        candidates: usize,
        /// Blocks that stay.
        protected: usize,
        /// Blocks of the model.
        blocks: usize,
        /// Parts that the policy needs.
        refused: usize,
    },
    /// Even the cheapest part costs too much.
    #[error(
        "nothing can go within the budget: the cheapest cut, {part}, takes perplexity from {before:.4} to {after:.4} (KL {kl:.5}); allow more, or keep the model"
    )]
    NothingFits {
        /// What would go first.
        part: String,
        /// Perplexity of the whole.
        before: f64,
        /// Perplexity without it.
        after: f64,
        /// KL without it.
        kl: f64,
    },
    /// A part is not in the model.
    #[error("{part} is not in this model, whose blocks are 0 to {}", blocks.saturating_sub(1))]
    NoSuchPart {
        /// The part.
        part: Part,
        /// Blocks of the model.
        blocks: usize,
    },
    /// Nothing would be left.
    #[error("all {blocks} blocks would go; keep at least one")]
    NothingLeft {
        /// Blocks of the model.
        blocks: usize,
    },
    /// The file cannot be cut.
    #[error("{}: {reason}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The cut cannot be written so that it computes the same.
    #[error(
        "a cut of {residual} cannot be written: {reason}; skip the parts when loading instead, with --skip-blocks"
    )]
    NotWritable {
        /// The policy.
        residual: String,
        /// Why.
        reason: String,
    },
    /// Something is there already.
    #[error("{} exists already; name another place with --out, or remove it", path.display())]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// A file is not the one that was planned for.
    #[error("{} changed since {since}; plan again, or restore it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What it is compared with.
        since: &'static str,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not what its name says.
    #[error("{} cannot be read: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file of tensors is damaged.
    #[error("{} is not a whole safetensors file ({reason}); copy or download it again", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: SafeTensorError,
    },
    /// The model or its data cannot be read.
    #[error(transparent)]
    Subject(#[from] DiagnoseError),
    /// The model cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The cut model makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model cannot be run.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// No text can be written.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// No token can be chosen.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The tokenizer fails.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A GGUF file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl PruneError {
    /// Whether what was asked for makes no sense, rather than having gone wrong on the way.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::NoBudget
            | Self::Limit { .. }
            | Self::Method(_)
            | Self::TooMany { .. }
            | Self::NoSuchPart { .. }
            | Self::NothingLeft { .. }
            | Self::Unfit { .. }
            | Self::NotWritable { .. }
            | Self::Exists { .. } => true,
            Self::Subject(error) => error.is_usage(),
            Self::Pass(error) => {
                matches!(error, PassError::NotAbsent { .. } | PassError::UnknownSite { .. })
            }
            _ => false,
        }
    }
}

pub(super) fn unfit(path: &Path, reason: impl Into<String>) -> PruneError {
    PruneError::Unfit { path: path.into(), reason: reason.into() }
}
