//! Why there is no diagnosis.

use super::Kind;
use hadal_data::DataError;
use hadal_data::FeedError;
use hadal_files::FileError;
use hadal_model::{CheckpointError, ConfigError, PassError, TokenizerError};
use hadal_train::{RunConfigError, TrainError};
use std::path::PathBuf;

/// Why there is no diagnosis.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum DiagnoseError {
    /// There is nothing to look at.
    #[error(
        "{} holds neither a run (config.toml) nor a model (config.json); name a folder of `hadal train` or a model \
         directory",
        path.display()
    )]
    NoModel { path: PathBuf },
    /// The run has saved nothing yet.
    #[error("{} holds no checkpoint yet; wait for the first one", path.display())]
    NoCheckpoint { path: PathBuf },
    /// There is no data to look at the model with.
    #[error(
        "{} brings no data of its own; name a text file or a directory of `hadal data prepare` with --data",
        path.display()
    )]
    NoData { path: PathBuf },
    /// The data is too short.
    #[error("{} holds {tokens} tokens, but at least {least} are needed; name a longer text with --data", path.display())]
    TooShort { path: PathBuf, tokens: u64, least: u64 },
    /// The data has another vocabulary.
    #[error(
        "{} has {data} tokens, but the model's vocabulary has only {model}; prepare the text with the model's \
         tokenizer",
        path.display()
    )]
    Vocabulary { path: PathBuf, data: usize, model: usize },
    /// The data was made by another tokenizer.
    #[error(
        "{} was prepared with another tokenizer than the model's {}; prepare it again with `--tokenizer {}`",
        path.display(), tokenizer.display(), tokenizer.display()
    )]
    OtherTokenizer { path: PathBuf, tokenizer: PathBuf },
    /// A text cannot be read by the model.
    #[error("{} has no tokenizer.json to read a text with; copy its tokenizer there, or give --data a directory of `hadal data prepare`", path.display())]
    NoTokenizer { path: PathBuf },
    /// The model has no text at all.
    #[error(
        "{} was trained on the generated task {task}, so it reads no text; leave --data out, and its own held-out \
         data is taken",
        path.display()
    )]
    NoText { path: PathBuf, task: &'static str },
    /// The data is not a text.
    #[error("{} is not a UTF-8 text; turn it into data with `hadal data prepare`", path.display())]
    NotText { path: PathBuf },
    /// The model does not compute numbers.
    #[error(
        "the loss is {loss}: the model's numbers overflow, and no figure of it would mean anything"
    )]
    NotFinite { loss: f64 },
    /// There is no such diagnostic.
    #[error("{}", hadal_residual::unknown("diagnostic", name, &Kind::ALL.map(Kind::name)))]
    Unknown { name: String },
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The settings of the run cannot be read.
    #[error(transparent)]
    Settings(#[from] RunConfigError),
    /// The model cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The checkpoint of a run cannot be read.
    #[error(transparent)]
    Training(#[from] TrainError),
    /// The run's data cannot be read.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The prepared data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tokenizer fails.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model cannot be run.
    #[error(transparent)]
    Pass(#[from] PassError),
}

impl DiagnoseError {
    /// Whether the request makes no sense, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Training(error) => error.is_usage(),
            Self::NotFinite { .. } | Self::File(_) | Self::Checkpoint(_) | Self::Pass(_) => false,
            _ => true,
        }
    }
}
