//! Batches: sequence number in, tokens out. Nothing here remembers a position.

mod text;

use super::built_in::BuiltIn;
use super::dataset::ShardSet;
use super::error::DataError;
use super::preparation::Preparation;
use super::tasks::{Example, GENERATOR_VERSION, Split, TaskConfig, TaskError};
use hadal_tokenizer::{Tokenizer, TokenizerError, Tokens};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;
use text::TextFeed;

/// Sequences to learn from or to be measured on.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// What the model reads.
    pub input: Tokens,
    /// The right answer at each position.
    pub target: Tokens,
    /// Which positions count; all of them if this is empty.
    pub scored: Vec<bool>,
}

impl Batch {
    /// Whether a position counts; positions are numbered row by row.
    pub fn counts(&self, position: usize) -> bool {
        self.scored.get(position).is_none_or(|&scored| scored)
    }

    /// How many positions count.
    pub fn positions(&self) -> usize {
        (0..self.target.ids().len()).filter(|&position| self.counts(position)).count()
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let time = self.input.time();
        let ids = rows.start * time..rows.end * time;
        let part = |tokens: &Tokens| {
            let ids = tokens.ids()[ids.clone()].to_vec();
            Tokens::rows(ids, rows.len()).expect("rows are as long as before")
        };
        let scored = self.scored.get(ids.clone()).unwrap_or_default().to_vec();
        Self { input: part(&self.input), target: part(&self.target), scored }
    }

    /// Pieces of whole rows, each of at most this many positions, or of one row.
    pub fn pieces(&self, positions: usize) -> Vec<Self> {
        let rows = (positions / self.input.time().max(1)).max(1);
        let all = self.input.batch();
        (0..all).step_by(rows).map(|from| self.rows(from..all.min(from + rows))).collect()
    }
}

/// What to learn from: prepared text, a text that ships with the program, or a generated task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A directory made by `hadal data prepare`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// Another, to measure progress on; by default the end of `train` is kept for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<PathBuf>,
    /// A text that ships with the program, as bytes. Its last tenth is kept to measure progress on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<BuiltIn>,
    /// A generated task instead of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<TaskConfig>,
}

/// Where batches come from.
#[derive(Debug)]
pub enum Feed {
    /// A generated task.
    Task {
        /// Its settings.
        task: TaskConfig,
        /// Which instances.
        seed: u64,
    },
    /// Prepared or built-in text.
    Text(Box<TextFeed>),
}

/// Why there are no batches.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The prepared data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The task's settings are impossible.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A setting names a text that is not prepared.
    #[error("{} is a file, and training reads prepared text: `{preparation}`, then {setting}={}", path.display(), preparation.out().display())]
    Unprepared {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        setting: &'static str,
        /// What makes it ready.
        preparation: Preparation,
    },
    /// The settings do not fit the data.
    #[error("{0}")]
    Unfit(String),
}

impl Feed {
    /// Opens what the settings name, in sequences of this length; a task brings its own. The seed decides the
    /// order of a text, or the instances of a task.
    pub fn open(config: &DataConfig, seq_len: Option<usize>, seed: u64) -> Result<Self, FeedError> {
        if let Some(task) = &config.generated {
            task.check()?;
            if let Some(length) = seq_len.filter(|&length| length != task.seq_len()) {
                return Err(FeedError::Unfit(format!(
                    "train.seq_len is {length}, but the task makes sequences of {}; leave it out",
                    task.seq_len()
                )));
            }
            return Ok(Self::Task { task: task.clone(), seed });
        }
        Ok(Self::Text(Box::new(TextFeed::open(config, seq_len, seed)?)))
    }

    /// Compares every byte of the data with what was prepared.
    pub fn verify(&self) -> Result<(), FeedError> {
        if let Self::Text(text) = self {
            for set in [text.train.prepared(), text.validation.as_ref()].into_iter().flatten() {
                set.verify(&mut |_| {})?;
            }
        }
        Ok(())
    }

    /// How many held-out sequences there are; `None` for a task, which makes any number.
    pub fn held_out_sequences(&self) -> Option<u64> {
        match self {
            Self::Task { .. } => None,
            Self::Text(text) => Some(text.held_out),
        }
    }

    /// How many tokens there are to learn from; `None` for a task, which makes any number.
    pub fn tokens(&self) -> Option<u64> {
        match self {
            Self::Task { .. } => None,
            Self::Text(text) => Some(text.windows * text.seq_len as u64),
        }
    }

    /// Number of different tokens.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Task { task, .. } => task.vocab_size(),
            Self::Text(text) => text.train.vocab_size(),
        }
    }

    /// Length of a sequence.
    pub fn seq_len(&self) -> usize {
        match self {
            Self::Task { task, .. } => task.seq_len(),
            Self::Text(text) => text.seq_len,
        }
    }

    /// The identity of the data, down to the bits: a run must not continue with other data.
    pub fn fingerprint(&self) -> Result<String, FeedError> {
        match self {
            Self::Task { task, seed } => {
                let settings = serde_json::to_string(task).map_err(|error| {
                    FeedError::Unfit(format!("the task cannot be written as JSON: {error}"))
                })?;
                Ok(format!("task generator {GENERATOR_VERSION} seed {seed} {settings}"))
            }
            Self::Text(text) => {
                let held_out = text.validation.as_ref().map(ShardSet::fingerprint);
                Ok(format!("{} {}", text.train.fingerprint(), held_out.unwrap_or_default()))
            }
        }
    }

    /// Mean UTF-8 bytes per token, where there is a text.
    pub fn bytes_per_token(&self) -> Option<f64> {
        match self {
            Self::Task { .. } => None,
            Self::Text(text) => {
                let measured = text.validation.as_ref().or(text.train.prepared());
                let Some(set) = measured else { return Some(1.0) };
                let totals = &set.manifest().totals;
                Some(totals.bytes as f64 / totals.tokens.max(1) as f64)
            }
        }
    }

    /// The tokenizer of the text, if there is a text.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, FeedError> {
        match self {
            Self::Task { .. } => Ok(None),
            Self::Text(text) => Ok(Some(text.train.tokenizer()?)),
        }
    }

    /// The tokenizer's file, if it has one.
    pub fn tokenizer_file(&self) -> Option<PathBuf> {
        match self {
            Self::Task { .. } => None,
            Self::Text(text) => text.train.prepared()?.tokenizer_file(),
        }
    }

    /// Sequences `first..first + count` of the run, in the order of its seed.
    pub fn train(&self, first: u64, count: usize) -> Result<Batch, FeedError> {
        self.batch(first, count, Split::Train)
    }

    /// Held-out sequences `first..first + count`, always in the same order.
    pub fn held_out(&self, first: u64, count: usize) -> Result<Batch, FeedError> {
        self.batch(first, count, Split::HeldOut)
    }

    fn batch(&self, first: u64, count: usize, split: Split) -> Result<Batch, FeedError> {
        let (mut input, mut target, mut scored) = (Vec::new(), Vec::new(), Vec::new());
        for sequence in first..first + count as u64 {
            match self {
                Self::Task { task, seed } => {
                    let Example { input: i, target: t, scored: s } =
                        task.example(split, *seed, sequence);
                    input.extend(i);
                    target.extend(t);
                    scored.extend(s);
                }
                Self::Text(text) => {
                    let window = text.window(sequence, split)?;
                    input.extend(&window[..text.seq_len]);
                    target.extend(&window[1..]);
                }
            }
        }
        let rows = |ids| {
            Tokens::rows(ids, count).ok_or_else(|| FeedError::Unfit("a batch is empty".into()))
        };
        Ok(Batch { input: rows(input)?, target: rows(target)?, scored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(scored: Vec<bool>) -> Batch {
        Batch {
            input: Tokens::rows((0..12).collect(), 4).unwrap(),
            target: Tokens::rows((1..13).collect(), 4).unwrap(),
            scored,
        }
    }

    #[test]
    fn pieces_are_whole_rows_in_order() {
        let batch = batch(vec![true; 12]);
        let pieces = batch.pieces(8);
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[1].input.ids(), [6, 7, 8, 9, 10, 11]);
        assert_eq!(pieces[1].target.ids()[0], 7);
        assert_eq!(pieces[1].scored.len(), 6);
        assert_eq!(batch.pieces(12), std::slice::from_ref(&batch));
        // A row is never cut.
        assert_eq!(batch.pieces(1).len(), 4);
    }

    #[test]
    fn a_built_in_text_is_learned_from_and_measured_on_apart() {
        let text = BuiltIn::try_from("yankee".to_owned()).unwrap();
        let config = DataConfig { text: Some(text), ..DataConfig::default() };
        let feed = Feed::open(&config, Some(128), 0).unwrap();
        let held_out = feed.held_out_sequences().unwrap();
        assert_eq!(held_out, (text.bytes().len() as u64 - 1) / 128 / 10);
        let first = |batch: Batch| Tokenizer::bytes().decode(&batch.input.ids()[..128]).unwrap();
        let read = String::from_utf8(text.bytes().to_vec()).unwrap();
        let place = |text: &str| read.find(text).unwrap() as u64;
        let border = text.bytes().len() as u64 - (held_out + 1) * 128;
        assert!(place(&first(feed.held_out(0, 1).unwrap())) >= border);
        assert!((0..40).all(|i| place(&first(feed.train(i * 100, 1).unwrap())) < border));
        assert_eq!(
            feed.fingerprint().unwrap(),
            Feed::open(&config, Some(64), 1).unwrap().fingerprint().unwrap()
        );
    }

    #[test]
    fn a_file_is_no_built_in_text() {
        let error = BuiltIn::try_from("book.txt".to_owned()).unwrap_err().to_string();
        assert!(
            error.contains("yankee") && error.contains("hadal data prepare book.txt"),
            "{error}"
        );
    }

    #[test]
    fn all_positions_count_unless_some_are_named() {
        assert_eq!(batch(Vec::new()).positions(), 12);
        let some: Vec<bool> = (0..12).map(|i| i % 3 == 1).collect();
        let batch = batch(some);
        assert_eq!(batch.positions(), 4);
        assert_eq!((batch.counts(1), batch.counts(2)), (true, false));
    }
}
