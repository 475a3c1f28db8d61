//! What can go wrong between a text and its shards.

use hadal_files::FileError;
use hadal_tokenizer::TokenizerError;
use std::path::PathBuf;

/// Why data cannot be prepared or read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system gives no threads.
    #[error("cannot start threads for {}: {reason}", path.display())]
    Threads {
        /// What was to be written.
        path: PathBuf,
        /// What the system said.
        reason: rayon::ThreadPoolBuildError,
    },
    /// An input that is neither here nor the name of a dataset.
    #[error(
        "{} does not exist; give a file, a directory, or a Hugging Face dataset such as \
         HuggingFaceFW/fineweb:sample/10BT",
        input.display()
    )]
    NoSuchInput {
        /// What was given.
        input: PathBuf,
    },
    /// A file of a kind that cannot be read.
    #[error(
        "{} is not a kind of file that can be read; give .txt or .jsonl, plain or as .gz or .zst, or .parquet",
        path.display()
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
    },
    /// A directory without any file that can be read.
    #[error(
        "{} holds no .txt, .jsonl (plain, .gz or .zst) or .parquet file",
        path.display()
    )]
    NoFiles {
        /// The directory.
        path: PathBuf,
    },
    /// There is no text at all.
    #[error("the inputs hold no text; check that they are the files you meant")]
    Empty,
    /// A text of another encoding.
    #[error(
        "{}: line {line} is not UTF-8 (byte {byte} of the text); convert it, for example with \
         `iconv -f latin1 -t utf8`",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The line, from one.
        line: u64,
        /// Where in the decompressed text the first wrong byte stands, from zero.
        byte: u64,
    },
    /// A line of a .jsonl file that holds no document.
    #[error("{}: line {line}: {reason}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line, from one.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A row of a .parquet file that holds no document.
    #[error("{}: row {row}: {reason}", path.display())]
    BadRow {
        /// The file.
        path: PathBuf,
        /// The row, from one.
        row: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A .parquet file that is damaged or has another layout.
    #[error("cannot read {}: {reason}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A dataset of Hugging Face cannot be had.
    #[error("cannot load the Hugging Face dataset {dataset}: {reason}")]
    Hub {
        /// The dataset.
        dataset: String,
        /// What is wrong and what helps.
        reason: String,
    },
    /// The tokenizer cannot be read, or refuses a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Documents could not be told apart.
    #[error(
        "{} has no end-of-text token; add a special token `<|endoftext|>` to it, or make a tokenizer \
         with `hadal data train-tokenizer`",
        path.display()
    )]
    NoEndOfText {
        /// The tokenizer file.
        path: PathBuf,
    },
    /// A setting that makes no sense.
    #[error("{name} is {value}, but {must}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What was given.
        value: u64,
        /// What it must be.
        must: &'static str,
    },
    /// The output directory holds something else.
    #[error(
        "{} is not empty and holds no prepared data; choose another output directory",
        path.display()
    )]
    Occupied {
        /// The directory.
        path: PathBuf,
    },
    /// The output directory was begun with other settings or from other sources.
    #[error(
        "{} was prepared differently:{}\nuse the same settings and sources to go on, or another \
         output directory to begin anew",
        path.display(),
        differences.iter().map(|difference| format!("\n  {difference}")).collect::<String>()
    )]
    Different {
        /// The directory.
        path: PathBuf,
        /// Every difference.
        differences: Vec<String>,
    },
    /// Another process writes to the output directory.
    #[error("{} is in use by another process; wait for it, or choose another directory", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// A source has fewer documents than it had when the work began.
    #[error(
        "{} has changed since the work began; remove the output directory and prepare again",
        path
    )]
    Changed {
        /// The source.
        path: String,
    },
    /// A file of a prepared directory is not what was written.
    #[error("{} is damaged: {reason}; copy it again, or remove the directory and prepare again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no prepared data.
    #[error(
        "{} holds no manifest.json; make it with `hadal data prepare`{}",
        path.display(),
        if *unfinished { ", which has not finished here: run the same command again" } else { "" }
    )]
    NotPrepared {
        /// The directory.
        path: PathBuf,
        /// Whether a preparation was begun there.
        unfinished: bool,
    },
    /// Tokens past the end were asked for.
    #[error("tokens {start}..{end} were asked for, but there are only {tokens}")]
    OutOfRange {
        /// The first token that was asked for.
        start: u64,
        /// One past the last token that was asked for.
        end: u64,
        /// How many there are.
        tokens: u64,
    },
    /// Whoever watched the progress wanted it to stop.
    #[error("stopped; run the same command again to go on where {} ends", path.display())]
    Stopped {
        /// The output directory.
        path: PathBuf,
    },
    /// The tokenizer library could not train.
    #[error("cannot train the tokenizer: {reason}")]
    Training {
        /// What it said.
        reason: String,
    },
}

impl DataError {
    /// Whether the request itself was wrong, so that nothing was begun.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NoSuchInput { .. }
                | Self::Unsupported { .. }
                | Self::NoFiles { .. }
                | Self::NoEndOfText { .. }
                | Self::Setting { .. }
                | Self::Occupied { .. }
                | Self::Different { .. }
                | Self::NotPrepared { .. }
                | Self::OutOfRange { .. }
        )
    }
}
