//! `manifest.json`: what a directory of shards holds, where it came from and how it was made.

use super::error::DataError;
use hadal_files::{pretty_json, write_whole};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// The name of the file.
pub(super) const MANIFEST: &str = "manifest.json";

/// Grows when the same settings and sources give other tokens, or when the files change their form.
const VERSION: u32 = 1;

/// The description of a prepared directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of the directory.
    pub version: u32,
    /// What turned text into tokens.
    pub tokenizer: TokenizerRecord,
    /// Everything else that determines the tokens.
    pub settings: Settings,
    /// Sums over all shards.
    pub totals: Totals,
    /// The shards, in order.
    pub shards: Vec<ShardRecord>,
    /// The files that were read, in order.
    pub sources: Vec<SourceRecord>,
}

/// A tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerRecord {
    /// Which kind it is.
    pub kind: TokenizerKind,
    /// The file beside the manifest, unless it is built in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// The hash of the file, or `bytes`.
    pub blake3: String,
    /// One more than the largest token.
    pub vocab_size: usize,
    /// The token after every document.
    pub end_of_text: u32,
}

/// The kinds of tokenizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// One token for each byte.
    Bytes,
    /// A Hugging Face `tokenizer.json`.
    File,
}

/// What determines the tokens and where shards end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The JSON key or the column that holds the text.
    pub text_key: String,
    /// The largest number of tokens in a shard.
    pub shard_tokens: u64,
    /// Longer documents are tokenised in pieces of at most this length.
    pub piece_bytes: usize,
}

/// Sums over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Tokens, with those after documents.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
    /// Bytes of text, without separators.
    pub bytes: u64,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// The file beside the manifest.
    pub file: String,
    /// How many tokens it holds.
    pub tokens: u64,
    /// How many documents end in it.
    pub documents: u64,
    /// How many bytes of text it stands for.
    pub bytes: u64,
    /// The hash of the file.
    pub blake3: String,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRecord {
    /// The path as it was given, or `hf://datasets/owner/name@commit/path`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// When it was last changed, in milliseconds since 1970, where that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub modified: Option<u64>,
}

impl Manifest {
    /// A plan without any shard yet.
    pub(super) fn planned(
        tokenizer: TokenizerRecord,
        settings: Settings,
        sources: Vec<SourceRecord>,
    ) -> Self {
        let totals = Totals::default();
        Self { version: VERSION, tokenizer, settings, totals, shards: Vec::new(), sources }
    }

    /// Adds a shard and its counts.
    pub(super) fn push(&mut self, shard: ShardRecord) {
        self.totals.tokens += shard.tokens;
        self.totals.documents += shard.documents;
        self.totals.bytes += shard.bytes;
        self.shards.push(shard);
    }

    /// Reads the manifest of a directory, if there is one.
    pub(super) fn find(directory: &Path) -> Result<Option<Self>, DataError> {
        let path = directory.join(MANIFEST);
        let Some(manifest) = read_json::<Self>(&path)? else { return Ok(None) };
        manifest.check(&path)?;
        Ok(Some(manifest))
    }

    /// Puts the manifest into a directory.
    pub(super) fn write(&self, directory: &Path) -> Result<(), DataError> {
        write_json(&directory.join(MANIFEST), self)
    }

    /// Whether the numbers agree and the names stay inside the directory.
    pub(super) fn check(&self, path: &Path) -> Result<(), DataError> {
        let damaged = |reason: String| Err(DataError::Damaged { path: path.into(), reason });
        if self.version != VERSION {
            let found = self.version;
            return damaged(format!("it has version {found}, but this hadal reads {VERSION}"));
        }
        let names = self.shards.iter().map(|shard| &shard.file).chain(&self.tokenizer.file);
        for name in names {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return damaged(format!("`{name}` is not the name of a file beside it"));
            }
        }
        if (self.tokenizer.kind == TokenizerKind::File) != self.tokenizer.file.is_some() {
            return damaged("its tokenizer is of one kind and named as the other".into());
        }
        if self.tokenizer.end_of_text as usize >= self.tokenizer.vocab_size {
            return damaged("its end-of-text token is not in the vocabulary".into());
        }
        let sum = |get: fn(&ShardRecord) -> u64| {
            self.shards.iter().try_fold(0u64, |sum, shard| sum.checked_add(get(shard)))
        };
        let Totals { tokens, documents, bytes } = self.totals;
        let agree = sum(|shard| shard.tokens) == Some(tokens)
            && sum(|shard| shard.documents) == Some(documents)
            && sum(|shard| shard.bytes) == Some(bytes);
        if !agree {
            return damaged("its totals are not the sums over its shards".into());
        }
        Ok(())
    }

    /// How another preparation would differ from this one, in words.
    pub(super) fn differences(&self, wanted: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |name: &str, was: String, is: String| {
            if was != is {
                differences.push(format!("{name} was {was}, now {is}"));
            }
        };
        compare("tokenizer", self.tokenizer.to_string(), wanted.tokenizer.to_string());
        let (was, is) = (&self.settings, &wanted.settings);
        compare("text key", was.text_key.clone(), is.text_key.clone());
        compare("tokens per shard", was.shard_tokens.to_string(), is.shard_tokens.to_string());
        compare("bytes per piece", was.piece_bytes.to_string(), is.piece_bytes.to_string());
        let count = |manifest: &Self| format!("{} files", manifest.sources.len());
        compare("input", count(self), count(wanted));
        for (was, is) in self.sources.iter().zip(&wanted.sources) {
            if was.path != is.path {
                compare("input", was.path.clone(), is.path.clone());
            } else if was != is {
                compare(&was.path, was.state(), is.state());
            }
        }
        // The first few say what happened.
        differences.truncate(8);
        differences
    }
}

impl SourceRecord {
    fn state(&self) -> String {
        match self.modified {
            Some(modified) => format!("{} bytes (changed at {modified})", self.bytes),
            None => format!("{} bytes", self.bytes),
        }
    }
}

impl std::fmt::Display for TokenizerRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.kind {
            TokenizerKind::Bytes => f.write_str("bytes"),
            TokenizerKind::File => {
                let hash = self.blake3.get(..12).unwrap_or(&self.blake3);
                write!(f, "a file with blake3 {hash} and {} tokens", self.vocab_size)
            }
        }
    }
}

/// Reads a JSON file of ours, if it exists.
pub(super) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, DataError> {
    let content = match hadal_files::read(path) {
        Ok(content) => content,
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    serde_json::from_slice(&content)
        .map(Some)
        .map_err(|error| DataError::Damaged { path: path.into(), reason: error.to_string() })
}

/// Writes a JSON file of ours.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), DataError> {
    Ok(write_whole(path, pretty_json(path, value)? + "\n")?)
}
