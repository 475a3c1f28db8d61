//! Windows of a text, prepared or built in.

use super::{DataConfig, FeedError};
use crate::built_in::BuiltIn;
use crate::dataset::ShardSet;
use crate::error::DataError;
use crate::order::shuffled;
use crate::preparation::Preparation;
use crate::tasks::Split;
use hadal_tokenizer::Tokenizer;
use std::path::Path;

/// One long row of tokens.
#[derive(Debug)]
pub(super) enum Text {
    Prepared(Box<ShardSet>),
    BuiltIn(BuiltIn),
}

impl Text {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Prepared(set) => set.len(),
            Self::BuiltIn(text) => text.bytes().len() as u64,
        }
    }

    pub(super) fn read(&self, start: u64, len: usize) -> Result<Vec<u32>, DataError> {
        match self {
            Self::Prepared(set) => set.read(start, len),
            Self::BuiltIn(text) => {
                let (end, tokens) = (start + len as u64, self.len());
                let window = text.bytes().get(start as usize..end as usize);
                let window = window.ok_or(DataError::OutOfRange { start, end, tokens })?;
                Ok(window.iter().map(|&byte| u32::from(byte)).collect())
            }
        }
    }

    pub(super) fn vocab_size(&self) -> usize {
        match self {
            Self::Prepared(set) => set.manifest().tokenizer.vocab_size,
            Self::BuiltIn(_) => Tokenizer::bytes().vocab_size(),
        }
    }

    pub(super) fn tokenizer(&self) -> Result<Tokenizer, DataError> {
        match self {
            Self::Prepared(set) => set.tokenizer(),
            Self::BuiltIn(_) => Ok(Tokenizer::bytes()),
        }
    }

    pub(super) fn fingerprint(&self) -> String {
        match self {
            Self::Prepared(set) => set.fingerprint(),
            Self::BuiltIn(text) => format!("built-in text {}", blake3::hash(text.bytes())),
        }
    }

    pub(super) fn prepared(&self) -> Option<&ShardSet> {
        match self {
            Self::Prepared(set) => Some(set),
            Self::BuiltIn(_) => None,
        }
    }
}

/// Windows of a text.
#[derive(Debug)]
pub struct TextFeed {
    pub(super) train: Text,
    pub(super) validation: Option<ShardSet>,
    pub(super) seq_len: usize,
    /// Windows of `train` to learn from.
    pub(super) windows: u64,
    /// Windows to be measured on: of `validation`, or the rest of `train`.
    pub(super) held_out: u64,
    seed: u64,
}

impl TextFeed {
    pub(super) fn open(
        config: &DataConfig,
        seq_len: Option<usize>,
        seed: u64,
    ) -> Result<Self, FeedError> {
        let directory = config.train.as_deref().unwrap_or(Path::new(""));
        let train = match config.text {
            Some(text) => Text::BuiltIn(text),
            None => Text::Prepared(Box::new(prepared(directory, "data.train")?)),
        };
        let validation = config.validation.as_deref();
        let validation = validation.map(|path| prepared(path, "data.validation")).transpose()?;
        if let (Some(validation), Some(train)) = (&validation, train.prepared())
            && validation.manifest().tokenizer != train.manifest().tokenizer
        {
            return Err(FeedError::Unfit(
                "data.validation was prepared with another tokenizer than data.train".into(),
            ));
        }
        // A text that is not there comes before its length.
        let seq_len = seq_len.ok_or_else(|| {
            let said = "train.seq_len is missing, and text has no length of its own; set train.seq_len=128, for example";
            FeedError::Unfit(said.into())
        })?;
        let windows_of = |tokens: u64| tokens.saturating_sub(1) / seq_len as u64;
        let all = windows_of(train.len());
        let (windows, held_out) = match (&validation, &train) {
            (Some(validation), _) => (all, windows_of(validation.len())),
            // At least one. A built-in text is small: one in fifty would measure little.
            (None, Text::Prepared(_)) => split(all, 50),
            (None, Text::BuiltIn(_)) => split(all, 10),
        };
        if windows == 0 || held_out == 0 {
            let name =
                config.text.map_or(directory.display().to_string(), |text| text.name().into());
            return Err(FeedError::Unfit(format!(
                "{name} holds {} tokens, too few for sequences of {seq_len} to learn from and to be measured on",
                train.len()
            )));
        }
        Ok(Self { train, validation, seq_len, windows, held_out, seed })
    }

    /// One token more than a sequence: the last is only a target.
    pub(super) fn window(&self, sequence: u64, split: Split) -> Result<Vec<u32>, FeedError> {
        let tokens = |window: u64| (window * self.seq_len as u64, self.seq_len + 1);
        let (start, len) = match (split, &self.validation) {
            (Split::Train, _) => {
                let (epoch, position) = (sequence / self.windows, sequence % self.windows);
                tokens(shuffled(position, self.windows, self.seed, epoch))
            }
            (Split::HeldOut, Some(validation)) => {
                let (start, len) = tokens(sequence % self.held_out);
                return Ok(validation.read(start, len)?);
            }
            (Split::HeldOut, None) => tokens(self.windows + sequence % self.held_out),
        };
        Ok(self.train.read(start, len)?)
    }
}

fn prepared(path: &Path, setting: &'static str) -> Result<ShardSet, FeedError> {
    ShardSet::open(path).map_err(|error| match error {
        DataError::NotADirectory { path } => {
            FeedError::Unprepared { preparation: Preparation::of(&path), path, setting }
        }
        other => other.into(),
    })
}

/// How many windows are learned from, and how many, one in so many, are measured on.
fn split(all: u64, one_in: u64) -> (u64, u64) {
    let held_out = (all / one_in).max(1).min(all);
    (all - held_out, held_out)
}
