//! From pieces of documents to tokens.

use super::durable;
use super::error::DataError;
use super::manifest::{TokenizerKind, TokenizerRecord};
use super::pieces::Piece;
use hadal_model::Tokenizer;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The name under which a tokenizer lies beside the shards.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Which tokenizer to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerChoice {
    /// One token for each byte.
    Bytes,
    /// A Hugging Face `tokenizer.json`.
    File(PathBuf),
}

/// `bytes`, or else a path.
impl FromStr for TokenizerChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "bytes" { Self::Bytes } else { Self::File(text.into()) })
    }
}

/// A tokenizer that knows where documents begin and end.
pub(super) struct Encoder {
    tokenizer: Tokenizer,
    record: TokenizerRecord,
    file: Option<PathBuf>,
    /// How many tokens the tokenizer itself puts before and after every text.
    before: usize,
    after: usize,
}

impl Encoder {
    /// Loads a tokenizer.
    pub(super) fn load(choice: &TokenizerChoice) -> Result<Self, DataError> {
        let (tokenizer, file) = match choice {
            TokenizerChoice::Bytes => (Tokenizer::bytes(), None),
            TokenizerChoice::File(path) => (Tokenizer::from_file(path)?, Some(path.clone())),
        };
        let ends = tokenizer.ends();
        let Some(&end_of_text) = ends.first() else {
            return Err(DataError::NoEndOfText { path: file.unwrap_or_default() });
        };
        // A letter shows what is put around every text.
        let example = tokenizer.encode("a")?;
        let frame = |id: &&u32| ends.contains(id) || tokenizer.begin() == Some(**id);
        let before = example.iter().take_while(frame).count();
        let after = example[before..].iter().rev().take_while(frame).count();
        let record = TokenizerRecord {
            kind: if file.is_some() { TokenizerKind::File } else { TokenizerKind::Bytes },
            file: file.is_some().then(|| TOKENIZER.to_owned()),
            blake3: match &file {
                Some(path) => durable::hash(path)?,
                None => "bytes".to_owned(),
            },
            vocab_size: tokenizer.vocab_size(),
            end_of_text,
        };
        Ok(Self { tokenizer, record, file, before, after })
    }

    /// What the manifest says of the tokenizer.
    pub(super) fn record(&self) -> &TokenizerRecord {
        &self.record
    }

    /// Where the tokenizer was read from, unless it is built in.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The tokens of a piece. A document begins as the tokenizer begins every text, ends with exactly
    /// one end-of-text token, and has nothing of the kind where it was cut.
    pub(super) fn encode(&self, piece: &Piece) -> Result<Vec<u32>, DataError> {
        let mut tokens = self.tokenizer.encode(&piece.text)?;
        tokens.truncate(tokens.len().saturating_sub(self.after));
        if !piece.starts_document {
            tokens.drain(..self.before.min(tokens.len()));
        }
        if piece.ends_document {
            tokens.push(self.record.end_of_text);
        }
        Ok(tokens)
    }
}
