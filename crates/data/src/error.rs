//! What can go wrong between a text and its shards.

use super::preparation::Preparation;
use hadal_files::FileError;
use hadal_tokenizer::TokenizerError;
use std::path::PathBuf;

/// Why data cannot be prepared or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum DataError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system gives no threads.
    #[error("cannot start threads for {}: {reason}", path.display())]
    Threads { path: PathBuf, reason: rayon::ThreadPoolBuildError },
    /// An input that is neither a local path nor the name of a dataset.
    #[error(
        "{} does not exist; give a file, a directory, or a Hugging Face dataset such as \
         HuggingFaceFW/fineweb:sample/10BT",
        input.display()
    )]
    NoSuchInput { input: PathBuf },
    /// A file of a kind that cannot be read.
    #[error(
        "{} is not a kind of file that can be read; give .txt or .jsonl, plain or as .gz or .zst, or .parquet",
        path.display()
    )]
    Unsupported { path: PathBuf },
    /// A directory without any file that can be read.
    #[error(
        "{} holds no .txt, .jsonl (plain, .gz or .zst) or .parquet file",
        path.display()
    )]
    NoFiles { path: PathBuf },
    /// There is no text at all.
    #[error("the inputs hold no text; check that they are the files you meant")]
    Empty,
    /// A text of another encoding.
    #[error(
        "{}: line {line} is not UTF-8 (byte {byte} of the text); convert it, for example with \
         `iconv -f latin1 -t utf8`",
        path.display()
    )]
    NotUtf8 { path: PathBuf, line: u64, byte: u64 },
    /// A line of a .jsonl file that holds no document.
    #[error("{}: line {line}: {reason}", path.display())]
    BadLine { path: PathBuf, line: u64, reason: String },
    /// A row of a .parquet file that holds no document.
    #[error("{}: row {row}: {reason}", path.display())]
    BadRow { path: PathBuf, row: u64, reason: String },
    /// A .parquet file that is damaged or has another layout.
    #[error("cannot read {}: {reason}", path.display())]
    Parquet { path: PathBuf, reason: String },
    /// A dataset of Hugging Face cannot be had.
    #[error("cannot load the Hugging Face dataset {dataset}: {reason}")]
    Hub { dataset: String, reason: String },
    /// The tokenizer cannot be read, or refuses a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A model without a tokenizer.
    #[error(
        "{} has no tokenizer.json; name one with --tokenizer FILE, or --tokenizer bytes for a model of bytes",
        path.display()
    )]
    NoTokenizer { path: PathBuf },
    /// Documents could not be told apart.
    #[error(
        "{} has no end-of-text token; add a special token `<|endoftext|>` to it, or make a tokenizer \
         with `hadal data train-tokenizer`",
        path.display()
    )]
    NoEndOfText { path: PathBuf },
    /// A token that its vocabulary does not have.
    #[error(
        "{} gives the token {token}, but its vocabulary ends at {vocab_size}; mend its post_processor or its added tokens",
        path.display()
    )]
    NoSuchToken { path: PathBuf, token: u32, vocab_size: usize },
    /// More text than was allowed.
    #[error(
        "the inputs hold more than {most} bytes of text; if that is meant, run the same command with a larger --max-bytes          to go on where {} ends",
        path.display()
    )]
    TooMuch { path: PathBuf, most: u64 },
    /// A setting that makes no sense.
    #[error("{name} is {value}, but {must}")]
    Setting { name: &'static str, value: u64, must: &'static str },
    /// The output directory holds something else.
    #[error(
        "{} is not empty and holds no prepared data; choose another output directory",
        path.display()
    )]
    Occupied { path: PathBuf },
    /// The output directory was begun with other settings or from other sources.
    #[error(
        "{} was prepared differently:{}\nuse the same settings and sources to go on, or another \
         output directory to begin anew",
        path.display(),
        differences.iter().map(|difference| format!("\n  {difference}")).collect::<String>()
    )]
    Different { path: PathBuf, differences: Vec<String> },
    /// Another process writes to the output directory.
    #[error("{} is in use by another process; wait for it, or choose another directory", path.display())]
    Busy { path: PathBuf },
    /// A source has fewer documents than it had when the work began.
    #[error(
        "{} has changed since the work began; remove the output directory and prepare again",
        path
    )]
    Changed { path: String },
    /// A file of a prepared directory is not what was written.
    #[error("{} is damaged: {reason}; copy it again, or remove the directory and prepare again", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// There is no prepared data.
    #[error(
        "{} holds no manifest.json; make it with `hadal data prepare`{}",
        path.display(),
        if *unfinished { ", which has not finished here: run the same command again" } else { "" }
    )]
    NotPrepared { path: PathBuf, unfinished: bool },
    /// A file where a directory with prepared data is expected, such as the text itself.
    #[error("{} is a file, and prepared data is a directory; make one with `{}`", path.display(), Preparation::of(path))]
    NotADirectory { path: PathBuf },
    /// The request goes past the end of the tokens.
    #[error("tokens {start}..{end} were asked for, but there are only {tokens}")]
    OutOfRange { start: u64, end: u64, tokens: u64 },
    /// The progress callback asked to stop.
    #[error("stopped; run the same command again to go on where {} ends", path.display())]
    Stopped { path: PathBuf },
    /// The tokenizer library could not train.
    #[error("cannot train the tokenizer: {reason}")]
    Training { reason: String },
}

impl DataError {
    /// Whether the request itself was wrong, so that nothing was begun.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NoSuchInput { .. }
                | Self::Unsupported { .. }
                | Self::NoFiles { .. }
                | Self::NoTokenizer { .. }
                | Self::NoEndOfText { .. }
                | Self::Setting { .. }
                | Self::Occupied { .. }
                | Self::Different { .. }
                | Self::NotADirectory { .. }
                | Self::NotPrepared { .. }
                | Self::OutOfRange { .. }
        )
    }
}
