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
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum PruneError {
    /// No limit was given.
    #[error(
        "nothing says how much to cut; give a number of blocks, a percentage, or a largest rise of perplexity or KL"
    )]
    NoBudget,
    /// A limit makes no sense.
    #[error("{name} is {value}: {reason}")]
    Limit { name: &'static str, value: f64, reason: &'static str },
    /// The score cannot be used like this.
    #[error("{0}")]
    Method(&'static str),
    /// There are not that many.
    #[error(
        "{wanted} parts should go, but only {candidates} may: {protected} of {blocks} blocks are protected, and {refused} parts cannot be left out; protect fewer with --protect, or cut less"
    )]
    TooMany { wanted: usize, candidates: usize, protected: usize, blocks: usize, refused: usize },
    /// Even the cheapest part costs too much.
    #[error(
        "nothing can go within the budget: the cheapest cut, {part}, takes perplexity from {before:.4} to {after:.4} (KL {kl:.5}); allow more, or keep the model"
    )]
    NothingFits { part: String, before: f64, after: f64, kl: f64 },
    /// A part is not in the model.
    #[error("{part} is not in this model, whose blocks are 0 to {}", blocks.saturating_sub(1))]
    NoSuchPart { part: Part, blocks: usize },
    /// A file says a number of blocks that no model has.
    #[error(
        "the model says that it has {blocks} blocks, but no more than {most} are read; its file may be damaged"
    )]
    TooDeep { blocks: usize, most: usize },
    /// Nothing would be left.
    #[error("all {blocks} blocks would go; keep at least one")]
    NothingLeft { blocks: usize },
    /// The file cannot be cut.
    #[error("{}: {reason}", path.display())]
    Unfit { path: PathBuf, reason: String },
    /// The cut cannot be written so that it computes the same.
    #[error(
        "a cut of {residual} cannot be written: {reason}; leave the parts out when loading instead, with --without"
    )]
    NotWritable { residual: String, reason: String },
    /// There is nothing to replace.
    #[error(
        "the stream of this model is {residual}, whose streams are not mixed; only models whose streams are mixed have \
         mixers to replace"
    )]
    NoMixers { residual: String },
    /// The result would not compute what was measured.
    #[error(
        "a model of {residual} without these mixers cannot be written: {reason}; try other sub-layers with --sites"
    )]
    MixersDiffer { residual: String, reason: String },
    /// Something is there already.
    #[error("{} exists already; name another place with --out, or remove it", path.display())]
    Exists { path: PathBuf },
    /// It was asked to stop.
    #[error("stopped after {done} of {all} passes")]
    Stopped { kept: Option<PathBuf>, done: usize, all: usize },
    /// What another command left is not thrown away.
    #[error(
        "{} holds what was measured of another model, or by another version of hadal; write elsewhere with -o other.json, or over it with --force",
        path.display()
    )]
    OtherMeasurements { path: PathBuf },
    /// A file is not the one that was planned for.
    #[error("{} changed since {since}; plan again, or restore it", path.display())]
    Changed { path: PathBuf, since: &'static str },
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not what its name says.
    #[error("{} cannot be read: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
    /// A file of tensors is damaged.
    #[error("{} is not a whole safetensors file ({reason}); copy or download it again", path.display())]
    Tensors { path: PathBuf, reason: SafeTensorError },
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
    /// Whether the request makes no sense, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::NoBudget
            | Self::Limit { .. }
            | Self::Method(_)
            | Self::TooMany { .. }
            | Self::NoSuchPart { .. }
            | Self::NothingLeft { .. }
            | Self::TooDeep { .. }
            | Self::Unfit { .. }
            | Self::NotWritable { .. }
            | Self::NoMixers { .. }
            | Self::MixersDiffer { .. }
            | Self::Exists { .. }
            | Self::OtherMeasurements { .. } => true,
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
