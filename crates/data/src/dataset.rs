//! A prepared directory as one long row of tokens.
//!
//! Nothing of it is used before it was compared with the hashes of the manifest: a shard when the first of its tokens is
//! read, the tokenizer when it is loaded, and each once. [`ShardSet::verify`] does it for all of them at once.

use super::error::DataError;
use super::manifest::{MANIFEST, Manifest, TokenizerKind};
use super::prepare::PROGRESS;
use super::shard::{Shard, Width};
use hadal_tokenizer::Tokenizer;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Open shards.
#[derive(Debug)]
pub struct ShardSet {
    directory: PathBuf,
    manifest: Manifest,
    shards: Vec<Shard>,
    /// How many tokens come before each shard.
    starts: Vec<u64>,
    /// Which shards were compared with their hashes.
    verified: Vec<Mutex<bool>>,
}

impl ShardSet {
    /// Opens a directory and checks that every file exists, with the right length and header. Hashes are compared later,
    /// when a file is first used.
    pub fn open(directory: &Path) -> Result<Self, DataError> {
        if directory.is_file() {
            return Err(DataError::NotADirectory { path: directory.into() });
        }
        let Some(manifest) = Manifest::find(directory)? else {
            return Err(DataError::NotPrepared {
                path: directory.into(),
                unfinished: directory.join(PROGRESS).exists(),
            });
        };
        let set = Self::from_manifest(directory, manifest)?;
        match set.tokenizer_file() {
            Some(path) if !path.exists() => Err(missing(path)),
            _ => Ok(set),
        }
    }

    pub(super) fn from_manifest(directory: &Path, manifest: Manifest) -> Result<Self, DataError> {
        let width = Width::of(manifest.tokenizer.vocab_size) as usize;
        let mut shards = Vec::with_capacity(manifest.shards.len());
        let mut starts = Vec::with_capacity(manifest.shards.len());
        let mut start = 0;
        for record in &manifest.shards {
            let path = directory.join(&record.file);
            if !path.exists() {
                return Err(missing(path));
            }
            let shard = Shard::open(&path)?;
            if shard.len() != record.tokens || shard.width() != width {
                let reason = format!(
                    "it holds {} tokens of {} bytes, but {MANIFEST} says {} of {width}",
                    shard.len(),
                    shard.width(),
                    record.tokens
                );
                return Err(DataError::Damaged { path, reason });
            }
            starts.push(start);
            start += shard.len();
            shards.push(shard);
        }
        let verified = shards.iter().map(|_| Mutex::new(false)).collect();
        Ok(Self { directory: directory.into(), manifest, shards, starts, verified })
    }

    /// The directory's description.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How many tokens there are.
    pub fn len(&self) -> u64 {
        self.manifest.totals.tokens
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shards, in order.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// `len` tokens from `start` on, wherever shards end.
    pub fn read(&self, start: u64, len: usize) -> Result<Vec<u32>, DataError> {
        let end = start.saturating_add(len as u64);
        if end > self.len() {
            return Err(DataError::OutOfRange { start, end, tokens: self.len() });
        }
        let mut tokens = Vec::with_capacity(len);
        let first = self.starts.partition_point(|&begin| begin <= start).saturating_sub(1);
        for (index, (shard, &begin)) in self.shards.iter().zip(&self.starts).enumerate().skip(first)
        {
            if begin >= end {
                break;
            }
            self.verify_shard(index)?;
            let from = tokens.len();
            tokens.extend(shard.tokens(start.saturating_sub(begin)..end - begin)?);
            self.check_vocabulary(shard, &tokens[from..])?;
        }
        Ok(tokens)
    }

    /// A token outside the vocabulary would end a run far from its cause.
    fn check_vocabulary(&self, shard: &Shard, tokens: &[u32]) -> Result<(), DataError> {
        let vocab_size = self.manifest.tokenizer.vocab_size;
        match tokens.iter().max() {
            Some(&token) if token as usize >= vocab_size => Err(DataError::Damaged {
                path: shard.path().into(),
                reason: format!("it holds token {token}, but the vocabulary ends at {vocab_size}"),
            }),
            _ => Ok(()),
        }
    }

    /// Compares everything that was not used yet with the hashes of the manifest. `progress` receives the number of tokens
    /// verified since its last call.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), DataError> {
        self.tokenizer()?;
        self.verify_shards(progress)
    }

    pub(super) fn verify_shards(&self, progress: &mut dyn FnMut(u64)) -> Result<(), DataError> {
        for (index, shard) in self.shards.iter().enumerate() {
            self.verify_shard(index)?;
            progress(shard.len());
        }
        Ok(())
    }

    /// Compares a shard with its hash, unless that was done before.
    fn verify_shard(&self, index: usize) -> Result<(), DataError> {
        // Whoever panicked while holding it has not said that the shard is whole.
        let mut verified = self.verified[index].lock().unwrap_or_else(|held| held.into_inner());
        if !*verified {
            let (shard, record) = (&self.shards[index], &self.manifest.shards[index]);
            same_hash(shard.path(), &shard.hash()?, &record.blake3)?;
            *verified = true;
        }
        Ok(())
    }

    /// The tokenizer that made the tokens, if it is still the same.
    pub fn tokenizer(&self) -> Result<Tokenizer, DataError> {
        let record = &self.manifest.tokenizer;
        match (record.kind, &record.file) {
            (TokenizerKind::File, Some(name)) => {
                let path = self.directory.join(name);
                same_hash(&path, &hadal_files::hash(&path)?.0, &record.blake3)?;
                Ok(Tokenizer::from_file(&path)?)
            }
            _ => Ok(Tokenizer::bytes()),
        }
    }

    /// The path of the tokenizer file, unless the tokenizer is built in.
    pub fn tokenizer_file(&self) -> Option<PathBuf> {
        self.manifest.tokenizer.file.as_ref().map(|name| self.directory.join(name))
    }

    /// A hash of everything that determines the tokens: equal for equal tokens in equal shards made by the same
    /// tokenizer, wherever they are stored and whatever they were made from.
    pub fn fingerprint(&self) -> String {
        let Manifest { version, tokenizer, shards, .. } = &self.manifest;
        let shards: Vec<_> = shards.iter().map(|shard| (shard.tokens, &shard.blake3)).collect();
        let essence = json!({
            "version": version,
            "tokenizer": tokenizer.blake3,
            "vocab_size": tokenizer.vocab_size,
            "end_of_text": tokenizer.end_of_text,
            "shards": shards,
        });
        blake3::hash(essence.to_string().as_bytes()).to_string()
    }
}

fn missing(path: PathBuf) -> DataError {
    DataError::Damaged { path, reason: format!("it is missing, but {MANIFEST} names it") }
}

fn same_hash(path: &Path, found: &str, expected: &str) -> Result<(), DataError> {
    if found == expected {
        return Ok(());
    }
    let reason = format!("its content does not have the hash that {MANIFEST} names");
    Err(DataError::Damaged { path: path.into(), reason })
}
